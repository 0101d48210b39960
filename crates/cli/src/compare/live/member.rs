// SPDX-License-Identifier: Apache-2.0
//! One of the processes that are compared together: it can be switched, or only counts.

use super::options::Options;
use super::subject::Subject;
use crate::compare::cut::Ended;
use anyhow::{Error, Result};
use hugelift_core::printable::Untrusted;
use hugelift_core::proc_stat::Identity;
use hugelift_lift::attach::Name;
use hugelift_linux::proc::procfs::{Process, is_alive};
use hugelift_measure::live::{CpuClock, State, WorkCounter};

/// One of the processes.
pub struct Member {
    /// The process.
    pub identity: Identity,
    /// Its name and id, for messages.
    pub name: Name,
    /// Why nothing of it is lifted, if so: its CPU time counts, and its pages stay.
    pub unlifted: Option<String>,
    /// Reads its CPU time.
    pub clock: CpuClock,
    /// Counts its work, once that is counted.
    pub counter: Option<WorkCounter>,
    /// The name of its program.
    comm: Untrusted,
    parent: u32,
    /// The file that it runs; `None` if that could not be read.
    program: Option<(u64, u64)>,
    subject: Option<Subject>,
}

impl Member {
    /// Reads a process, and changes nothing. One that cannot be read is not lifted.
    ///
    /// # Errors
    /// It has ended.
    pub fn open(identity: Identity, options: &Options) -> Result<Member> {
        let pid = identity.0;
        let stat = Process::new(pid).stat()?;
        let program = Process::new(pid).executable().ok();
        let (subject, unlifted) = match Subject::open(pid, options) {
            Ok(subject) => (Some(subject), None),
            Err(why) => (None, Some(format!("{:#}", why.root_cause()))),
        };
        let (name, comm, parent) = (Name::of(pid), stat.comm, stat.parent);
        let clock = CpuClock::open(pid);
        Ok(Member { identity, name, comm, unlifted, clock, counter: None, parent, program, subject })
    }

    /// Returns it if it is switched.
    pub fn switched(&self) -> Option<&Subject> {
        self.subject.as_ref().filter(|_| self.unlifted.is_none())
    }

    /// Returns it if it is switched, to change it.
    pub fn switched_mut(&mut self) -> Option<&mut Subject> {
        self.subject.as_mut().filter(|_| self.unlifted.is_none())
    }

    /// Returns it if it could be read, also if it is not switched.
    pub fn subject(&self) -> Option<&Subject> {
        self.subject.as_ref()
    }

    /// Returns it to change it, if it could be read, also if it is not switched.
    pub fn subject_mut(&mut self) -> Option<&mut Subject> {
        self.subject.as_mut()
    }

    /// Returns how it was found.
    pub fn found(&self) -> Option<State> {
        self.subject.as_ref().map(|subject| subject.found)
    }

    /// Returns whether it has ended, or executes another program since.
    pub fn is_gone(&self) -> bool {
        !is_alive(self.identity) || Process::new(self.identity.0).executable().ok() != self.program
    }

    /// Takes over how it is left at the end. A process that was forked by one of `others` has the copies that this one had at
    /// that moment, and is left as this one is.
    pub fn inherit<'a>(&mut self, others: impl Iterator<Item = &'a Member> + Clone) {
        let program = self.program;
        let mut alike = others.filter(|other| program.is_some() && other.program == program);
        let parent = alike.clone().find(|other| other.identity.0 == self.parent);
        let Some(subject) = &mut self.subject else { return };
        if let Some(found) = parent.and_then(Member::found) {
            subject.found = found;
        } else if alike.any(|other| other.found() == Some(State::Bare)) {
            // Its parent may have ended.
            subject.found = State::Bare;
        }
    }

    /// Lifts it for the first time. If that fails, it is not switched.
    ///
    /// # Errors
    /// It has ended.
    pub fn first_lift(&mut self) -> Result<()> {
        let Some(subject) = self.subject.as_mut().filter(|_| self.unlifted.is_none()) else { return Ok(()) };
        match subject.first_lift() {
            Err(_) if subject.has_ended() => Err(Ended.into()),
            Err(why) => {
                self.unlifted = Some(format!("{why:#}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Says what of it the first lift has left alone, a line each.
    pub fn left_alone(&self) -> Vec<String> {
        match (&self.unlifted, &self.subject) {
            (Some(why), _) => vec![format!("nothing of {} is lifted: {why}", self.comm)],
            (None, Some(subject)) => subject.not_lifted.clone(),
            (None, None) => Vec::new(),
        }
    }

    /// Brings it into a state, if it is switched.
    ///
    /// # Errors
    /// It has ended, or it was not switched in whole.
    pub fn switch(&mut self, to: State) -> Result<()> {
        let Some(subject) = self.switched_mut() else { return Ok(()) };
        subject.switch(to).map_err(|error| subject.cause(error))
    }

    /// Leaves it in a state, or as it was found.
    ///
    /// # Errors
    /// One line: the state in which it is, and the command that helps.
    pub fn leave(&mut self, to: Option<State>) -> Result<(), Error> {
        let is_switched = self.unlifted.is_none();
        let Some(subject) = &mut self.subject else { return Ok(()) };
        let to = to.filter(|_| is_switched).unwrap_or(subject.found);
        subject.leave(to).map(drop)
    }
}
