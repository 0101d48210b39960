// SPDX-License-Identifier: Apache-2.0
//! The processes that are compared with themselves: lifted and restored together. One process is a batch of one.

use super::counted::Counted;
use super::member::Member;
use super::members::Members;
use super::options::Options;
use super::subject::{Copy, Subject};
use super::uncounted::Uncounted;
use crate::compare::cut::Ended;
use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use hugelift_core::addr::Range;
use hugelift_core::proc_stat::Identity;
use hugelift_lift::attach::Pages;
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::proc::procfs::is_whole;
use hugelift_measure::comparison::Memory;
use hugelift_measure::interrupt;
use hugelift_measure::live::{
    Command, Observed, Processes, Reading, Source, State, Switching, Threads, Work, WorkCounter,
};
use hugelift_measure::timed::Seen;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often the processes are listed in a switch at most: some may come while others are switched.
const LISTINGS: u32 = 4;

/// How often the memory of a process is read that lives and shows none, and the time between two readings.
const READINGS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(5);

/// The processes, and in which state they are.
pub struct Batch<'a> {
    /// Which processes are meant.
    pub members: Members,
    /// The process that was named, or the oldest.
    pub first: Identity,
    /// What lifting and restoring have cost so far.
    pub switching: Switching,
    /// What the lifts left alone, a line each.
    pub not_lifted: Vec<String>,
    /// How many there were.
    pub processes: Processes,
    /// What is counted of them, if that was asked for.
    pub counted: Counted,
    options: &'a Options,
    all: BTreeMap<Identity, Member>,
    counts_work: bool,
    uncounted: Uncounted,
}

/// How the processes were left.
#[derive(Clone, Copy)]
pub struct LeftAs {
    /// Whether any is lifted.
    pub state: State,
    /// Whether each is as it was found.
    pub as_found: bool,
}

impl Batch<'_> {
    /// Reads the processes, and changes nothing.
    ///
    /// # Errors
    /// There is none, or a process that was named alone cannot be read.
    pub fn open(members: Members, options: &Options) -> Result<Batch<'_>> {
        let now = members.now()?;
        let first = members.first(&now).with_context(|| format!("{members}: it has ended"))?;
        if members.is_one() {
            // What prevents it is said as it is.
            Subject::open(first.0, options)?;
        }
        let mut batch = Batch {
            uncounted: Uncounted::new(&members)?,
            members,
            first,
            switching: Switching::default(),
            not_lifted: Vec::new(),
            processes: Processes::default(),
            counted: Counted::default(),
            options,
            all: BTreeMap::new(),
            counts_work: false,
        };
        raise_file_limit();
        batch.list()?;
        Ok(batch)
    }

    /// Lists the processes again: what has ended is dropped, and what has come is opened. Returns what has come.
    fn list(&mut self) -> Result<Vec<Identity>> {
        let now = self.members.now()?;
        let before = self.all.len();
        self.all.retain(|identity, member| now.contains(identity) && !member.is_gone());
        self.processes.ended += (before - self.all.len()) as u64;
        self.counted.keep(|identity| self.all.contains_key(identity));
        let mut come = Vec::new();
        for identity in now {
            if self.all.contains_key(&identity) {
                continue;
            }
            // A process may end meanwhile.
            let Ok(mut member) = Member::open(identity, self.options) else { continue };
            if self.processes.measured > 0 {
                member.inherit(self.all.values());
            }
            if self.counts_work {
                member.counter = Some(WorkCounter::open(identity.0));
            }
            if self.options.counters {
                self.counted.begin(identity);
            }
            self.all.insert(identity, member);
            come.push(identity);
        }
        Ok(come)
    }

    /// Lifts all for the first time, which also makes the store's entries.
    ///
    /// # Errors
    /// Nothing of any of them became huge, ctrl-C was pressed, or all have ended.
    pub fn first_lift(&mut self) -> Result<()> {
        let all: Vec<Identity> = self.all.keys().copied().collect();
        self.lift_first(&all)?;
        self.processes.joined = 0;
        if self.processes.lifted > 0 {
            return Ok(());
        }
        ensure!(!self.has_ended(), Ended);
        let first = self.all.get(&self.first).or(self.all.values().next());
        let why = first.and_then(|one| one.unlifted.clone()).unwrap_or_default();
        match (first, self.all.len()) {
            (Some(one), 2..) => {
                bail!("none of {} processes could be lifted: {}: {why}", self.all.len(), one.name)
            }
            _ => bail!("{why}"),
        }
    }

    /// Lifts these for the first time.
    fn lift_first(&mut self, come: &[Identity]) -> Result<()> {
        for identity in come {
            interrupt::check()?;
            let Some(member) = self.all.get_mut(identity) else { continue };
            if member.first_lift().is_err() {
                self.drop_ended(*identity);
                continue;
            }
            self.processes.measured += 1;
            self.processes.joined += 1;
            if let Some(subject) = member.switched() {
                self.processes.lifted += 1;
                self.processes.found_lifted += u64::from(subject.found == State::Lifted);
            }
            for line in member.left_alone() {
                // Many processes may run the same program.
                if !self.not_lifted.contains(&line) {
                    self.not_lifted.push(line);
                }
            }
        }
        self.collect();
        Ok(())
    }

    fn drop_ended(&mut self, identity: Identity) {
        self.all.remove(&identity);
        self.processes.ended += 1;
    }

    /// Brings all into a state. Those that have come since are lifted for the first time.
    ///
    /// # Errors
    /// All have ended, or one that lives was not switched in whole.
    pub fn switch(&mut self, to: State) -> Result<()> {
        for listing in 0..LISTINGS {
            ensure!(!self.has_ended(), Ended);
            let come = self.list()?;
            if listing > 0 && come.is_empty() {
                break;
            }
            self.lift_first(&come)?;
            let all: Vec<Identity> = self.all.keys().copied().collect();
            for identity in all {
                let Some(member) = self.all.get_mut(&identity) else { continue };
                match member.switch(to) {
                    Ok(()) => {}
                    Err(error) if error.is::<Ended>() => self.drop_ended(identity),
                    Err(error) if self.members.is_one() => return Err(error),
                    Err(error) => return Err(error.context(member.name.to_string())),
                }
            }
        }
        self.collect();
        ensure!(self.all.values().any(|member| member.switched().is_some()), Ended);
        Ok(())
    }

    /// Leaves all in a state, or each as it was found. Tries more than once. `None`: all have ended.
    ///
    /// # Errors
    /// One line: a process that is not left so, and the command that helps.
    pub fn leave(&mut self, to: Option<State>) -> Result<Option<LeftAs>> {
        let mut failed: BTreeMap<Identity, Error> = BTreeMap::new();
        for listing in 0..LISTINGS {
            let come = self.list().unwrap_or_default();
            if listing > 0 && come.is_empty() {
                break;
            }
            for (identity, member) in &mut self.all {
                if to == Some(State::Lifted) && come.contains(identity) {
                    // What cannot be lifted is left as it was found.
                    let _ = member.first_lift();
                }
                match member.leave(to) {
                    Ok(()) => failed.remove(identity),
                    Err(error) => failed.insert(*identity, error),
                };
            }
        }
        self.collect();
        failed.retain(|identity, _| is_whole(*identity));
        let count = failed.len();
        if let Some((_, error)) = failed.pop_first() {
            let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
            bail!("{error:#}{more}");
        }
        if self.has_ended() {
            return Ok(None);
        }
        let as_found = self.all.values().filter_map(Member::subject).all(|one| one.state() == one.found);
        Ok(Some(LeftAs { state: self.state(), as_found }))
    }

    /// Returns how they were found: lifted, if any was.
    pub fn found(&self) -> State {
        let mut all = self.all.values().filter_map(Member::found);
        if all.any(|found| found == State::Lifted) || self.processes.found_lifted > 0 {
            State::Lifted
        } else {
            State::Bare
        }
    }

    /// Returns in which state they are: lifted, if any of them has a copy.
    pub fn state(&self) -> State {
        let mut states = self.all.values().filter_map(Member::subject).map(Subject::state);
        states.find(|state| *state != State::Bare).unwrap_or(State::Bare)
    }

    /// Returns whether the experiment is over, as its processes have ended.
    pub fn has_ended(&self) -> bool {
        let lives = |(identity, _): (&Identity, _)| is_whole(*identity);
        match self.members.outlive_first() {
            true => !self.all.iter().any(lives) && self.members.now().is_err(),
            false => !is_whole(self.first),
        }
    }

    /// Returns `error`, or [`Ended`] if it comes from the end of the processes.
    pub fn cause(&self, error: Error) -> Error {
        Ended::cause_of(error, || self.has_ended())
    }

    /// Begins to count the work of each, also of those that come later.
    pub fn count_work(&mut self) {
        self.counts_work = true;
        for (identity, member) in &mut self.all {
            member.counter = Some(WorkCounter::open(identity.0));
        }
    }

    /// Counts it no longer.
    pub fn count_no_work(&mut self) {
        self.counts_work = false;
        self.all.values_mut().for_each(|member| member.counter = None);
    }

    /// Reads the threads of all.
    pub fn threads(&self) -> Threads {
        self.all.keys().map(|(pid, _)| Threads::read(*pid)).fold(Threads::default(), Threads::and)
    }

    /// Reads what each has done so far.
    ///
    /// # Errors
    /// All have ended.
    pub fn observed(&self) -> Result<Observed> {
        let all = self.all.iter();
        Observed::now(
            all.filter_map(|(identity, member)| Some((*identity, &member.clock, member.counter.as_ref()?))),
        )
    }

    /// Reads them at an end of a period.
    ///
    /// # Errors
    /// `command` fails, or what the kernel counts of one that lives cannot be read.
    pub fn read(&self, work: Option<Work>, command: Option<&Command>) -> Result<Reading> {
        let source = |(identity, member): (&Identity, _)| {
            let Member { clock, counter, .. }: &Member = member;
            Source { identity: *identity, clock, work: counter.as_ref().zip(work) }
        };
        Reading::take(&self.all.iter().map(source).collect::<Vec<_>>(), command)
    }

    /// Checks that those that were measured in a period do the work.
    ///
    /// # Errors
    /// Other processes, which they have started, do it.
    pub fn do_the_work(&mut self, first: &Reading, last: &Reading) -> Result<()> {
        let checked = self.uncounted.check(&self.members, first, last);
        self.processes.not_counted_s = self.uncounted.ended.as_secs_f64();
        checked
    }

    /// Returns the huge parts of those that are switched; `None` where smaps of one that lives could not be read.
    pub fn memory(&self) -> Option<Memory> {
        let switched = self.all.values().filter_map(Member::switched);
        // A process whose memory changes cannot be read at that moment.
        let read = |subject: &Subject| {
            let mut memory = Seen::now(subject.pid).memory;
            for _ in 1..READINGS {
                if memory.is_some() || subject.has_ended() {
                    break;
                }
                std::thread::sleep(BETWEEN);
                memory = Seen::now(subject.pid).memory;
            }
            memory
        };
        let seen: Vec<(&Subject, Option<Memory>)> =
            switched.map(|subject| (subject, read(subject))).collect();
        // One that ends while it is read has no smaps.
        let living = seen.into_iter().filter(|(subject, seen)| seen.is_some() || !subject.has_ended());
        living.map(|(_, seen)| seen).reduce(|one, two| Some(one? + two?)).flatten()
    }

    /// Returns those that live.
    pub fn living(&self) -> impl Iterator<Item = Identity> {
        self.all.iter().filter(|(_, member)| member.switched().is_some()).map(|(identity, _)| *identity)
    }

    /// Returns bytes of copies whose page size was not changed, at most.
    pub fn left_out(&self) -> u64 {
        self.all.values().filter_map(Member::switched).map(|subject| subject.left_out).sum()
    }

    /// Returns why the page size of a copy was not changed.
    pub fn left_out_why(&self) -> Option<String> {
        self.all.values().filter_map(Member::switched).find_map(|subject| subject.left_out_why.clone())
    }

    /// Returns the copies of the first process.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn copies(&self) -> Result<Vec<Copy>> {
        self.all.get(&self.first).and_then(Member::switched).ok_or(Ended)?.copies()
    }

    /// Maps each of these copies of the first process by its pages.
    ///
    /// # Errors
    /// The process cannot be changed, or none of its copies is one of the store that can be mapped so.
    pub fn resize_each(&mut self, copies: &[(Range, Pages)]) -> Result<()> {
        let first = self.all.get_mut(&self.first).and_then(Member::switched_mut);
        first.ok_or_else(|| anyhow!(Ended))?.resize_each(copies)?;
        self.collect();
        Ok(())
    }

    /// Splits the memory of each again that is to be on small pages. Returns whether any had become huge ([`Subject::split_again`]).
    ///
    /// # Errors
    /// A process cannot be changed.
    pub fn split_again(&mut self) -> Result<bool> {
        let mut again = false;
        for member in self.all.values_mut() {
            if let Some(subject) = member.switched_mut() {
                again |= subject.split_again().map_err(|error| subject.cause(error))?;
            }
        }
        self.collect();
        Ok(again)
    }

    /// Adds up what has been done to each since the last time, as one step.
    fn collect(&mut self) {
        let (mut lift, mut restore) = (Vec::new(), Vec::new());
        for subject in self.all.values_mut().filter_map(Member::subject_mut) {
            let done = std::mem::take(&mut subject.switching);
            self.switching.first_lift_ms += done.first_lift_ms;
            self.switching.borrowed += done.borrowed;
            self.switching.longest_stop_us = self.switching.longest_stop_us.max(done.longest_stop_us);
            lift.extend(done.lift_ms);
            restore.extend(done.restore_ms);
        }
        for (times, all) in [(lift, &mut self.switching.lift_ms), (restore, &mut self.switching.restore_ms)] {
            if !times.is_empty() {
                all.push(times.iter().sum());
            }
        }
    }
}
