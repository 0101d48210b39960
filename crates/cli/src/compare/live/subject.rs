// SPDX-License-Identifier: Apache-2.0
//! The process that is compared with itself: lifted, restored, and left as it was found.

use super::Options;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::restore::replaced;
use hugelift_lift::attach::{AttachOptions, Change, Chosen, Name, attach, restore};
use hugelift_measure::interrupt;
use hugelift_measure::live::{State, Switching};
use hugelift_measure::timed::Seen;
use hugelift_os::proc::procfs::Process;
use hugelift_os::proc::snapshot;
use std::time::{Duration, Instant};

/// How often a restoring at the end is tried: a thread that cannot be borrowed now may be later.
const TRIES: u32 = 3;
/// The smallest base page of the supported machines.
const SMALLEST_PAGE: usize = 4096;
/// How long a process may take to end whose server no longer answers.
const DYING: Duration = Duration::from_secs(1);

/// The process has ended during the experiment.
#[derive(Debug, thiserror::Error)]
#[error("it has ended")]
pub struct Ended;

/// The process, and in which state it is.
pub struct Subject {
    /// Its id.
    pub pid: u32,
    /// Its name and id, for messages.
    pub name: Name,
    /// How it was found.
    pub found: State,
    /// What lifting and restoring have cost so far.
    pub switching: Switching,
    identity: (u32, u64),
    state: State,
    attach: AttachOptions,
    /// The text and rodata that a lift replaces.
    replaced: Vec<Range>,
}

impl Subject {
    /// Looks at a process, and changes nothing.
    ///
    /// # Errors
    /// There is no such process, or it cannot be read.
    pub fn open(pid: u32, options: &Options) -> Result<Subject> {
        let name = Name::of(pid);
        let stat = Process::new(pid).stat()?;
        let copies = copies(pid).with_context(|| name.to_string())?;
        let found = if copies.is_empty() { State::Bare } else { State::Lifted };
        Ok(Subject {
            pid,
            name,
            found,
            switching: Switching::default(),
            identity: stat.identity(),
            state: found,
            attach: options.attach.clone(),
            replaced: copies,
        })
    }

    /// Returns whether the process has ended; its id may have been given to another since.
    pub fn has_ended(&self) -> bool {
        let stat = Process::new(self.pid).stat();
        stat.map_or(true, |stat| stat.has_ended() || stat.identity() != self.identity)
    }

    /// Returns `error`, or [`Ended`] if it comes from the end of the process.
    pub fn cause(&self, error: anyhow::Error) -> anyhow::Error {
        let deadline = Instant::now() + DYING;
        while !self.has_ended() {
            // An interrupted experiment does not wait.
            if interrupt::check().is_err() || Instant::now() >= deadline {
                return error;
            }
            std::thread::sleep(DYING / 20);
        }
        Ended.into()
    }

    /// Makes the first lift, which also makes the store's entry.
    ///
    /// # Errors
    /// It cannot be lifted, or nothing of it is huge afterwards.
    pub fn first_lift(&mut self) -> Result<()> {
        let change = self.lift()?;
        self.switching.first_lift_ms = change.took_ms;
        self.replaced = copies(self.pid)?;
        let huge = Seen::now(self.pid).memory.map_or(0, |memory| memory.lifted());
        if self.replaced.is_empty() || huge == 0 {
            let why = change.complaints.first().or(change.lines.first()).map_or("", String::as_str);
            bail!("there is nothing to compare: no text and no rodata of it became huge: {why}");
        }
        Ok(())
    }

    /// Brings the process into a state, unless it is in it already. All pages that a lift replaces are mapped
    /// afterwards, so that no period has the page faults that follow a switch.
    ///
    /// # Errors
    /// The lift or the restoring fails, in whole or in part.
    pub fn switch(&mut self, to: State) -> Result<()> {
        if self.state == to {
            return Ok(());
        }
        ensure!(!self.has_ended(), Ended);
        match to {
            State::Lifted => {
                let change = self.lift()?;
                self.switching.lift_ms.push(change.took_ms);
            }
            State::Bare => {
                let change = restore(self.chosen(), self.attach.seccomp)
                    .map_err(|why| anyhow!("not restored: {why}"))?;
                self.count(&change);
                self.switching.restore_ms.push(change.took_ms);
                if let Some(why) = change.complaints.first() {
                    bail!("not wholly restored: {why}");
                }
                self.state = State::Bare;
            }
        }
        self.map_all();
        Ok(())
    }

    /// Leaves the process in a state, and tries more than once. A process that has ended is left.
    ///
    /// # Errors
    /// One line: the state in which it is, and the command that helps.
    pub fn leave(&mut self, to: State) -> Result<Option<State>> {
        let mut left = Ok(());
        for _ in 0..TRIES {
            if self.has_ended() {
                return Ok(None);
            }
            left = self.switch(to);
            if left.is_ok() {
                return Ok(Some(to));
            }
        }
        let verb = if to == State::Bare { "restore" } else { "attach" };
        left.with_context(|| {
            format!("{} is not left {}; 'hugelift {verb} {}'", self.name, to.name(), self.pid)
        })?;
        Ok(Some(to))
    }

    /// Returns the state in which it is.
    pub fn state(&self) -> State {
        self.state
    }

    fn chosen(&self) -> Chosen {
        let (pid, start) = self.identity;
        Chosen { pid, start: Some(start) }
    }

    fn lift(&mut self) -> Result<Change> {
        // A lift that fails halfway leaves copies, which the end of the experiment has to undo.
        self.state = State::Lifted;
        match attach(self.chosen(), &self.attach) {
            Ok(change) => {
                self.count(&change);
                Ok(change)
            }
            Err(why) => {
                if copies(self.pid).is_ok_and(|copies| copies.is_empty()) {
                    self.state = State::Bare;
                }
                bail!("not lifted: {why}")
            }
        }
    }

    fn count(&mut self, change: &Change) {
        self.switching.borrowed += change.borrowed;
        self.switching.longest_stop_us = self.switching.longest_stop_us.max(change.longest_stop_us);
    }

    /// Reads a byte of each page from outside, for which the kernel maps the page in the process.
    fn map_all(&self) {
        let process = Process::new(self.pid);
        for range in &self.replaced {
            for addr in (range.start.0..range.end.0).step_by(SMALLEST_PAGE) {
                // A page that cannot be read was unmapped by the program, and then it needs none.
                let _ = process.read_memory(Addr(addr), &mut [0]);
            }
        }
    }
}

/// Returns where text and rodata of a process are copies.
fn copies(pid: u32) -> Result<Vec<Range>> {
    let snapshot = snapshot::live(Some(pid), 0).map_err(|e| anyhow!("{e}"))?;
    Ok(replaced(&snapshot).into_iter().map(|copy| copy.range).collect())
}
