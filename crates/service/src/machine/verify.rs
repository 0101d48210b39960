// SPDX-License-Identifier: Apache-2.0
//! Verifies what rules with `verify = true` want: one experiment at a time, on the process that has used most CPU time among
//! the processes that wait. [`hugelift_core::service::verify`] decides.

use super::books::now;
use super::copies;
use super::experiment::Experiment;
use super::instance::Instance;
use super::outcome::Outcome;
use super::taken::Taken;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use hugelift_core::service::verify::{Advice, Program, Settings, Verdict, Verifier};
use hugelift_ledger::entry;
use hugelift_ledger::reader::Found;
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::{Process, is_alive, is_whole};
use hugelift_linux::proc::turn::turn_of_change;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// Between two checks for a process whose turn it is.
const CHECK_PAUSE: Duration = Duration::from_secs(5);
/// A process that has used less CPU time, in seconds, has nothing to gain yet.
const LEAST: u64 = 1;
/// How many are checked in one turn.
const CANDIDATES: usize = 8;
/// A new process is seen within this time, at the next listing.
const UNSEEN: Duration = Duration::from_secs(60);
/// From so many processes on, it is checked which of the lifted processes still live.
const KEPT: usize = 10_000;

/// What is verified.
#[derive(Debug)]
pub struct Verify {
    settings: Settings,
    verifier: Verifier,
    experiment: Option<(Experiment, Instance, PathBuf)>,
    check_at: Instant,
    /// Processes that had copies before this service knew them: another hugelift lifts them, and they are left alone.
    others: BTreeSet<Identity>,
    /// Processes that were named to a lifter of this service, by this policy or an earlier one: their copies are its own.
    ours: BTreeSet<Identity>,
    /// Processes that had copies of this service until these times.
    former: BTreeMap<Identity, Instant>,
}

/// An experiment that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The program.
    pub program: Program,
    /// The result, as it is written down.
    pub experiment: entry::Experiment,
    /// The process on which the experiment was made.
    pub instance: Instance,
    /// The process that has made the experiment. It may not have ended yet.
    pub child: Child,
}

impl Verify {
    /// Returns what verifies by these settings, and knows nothing.
    pub fn new(settings: Settings) -> Verify {
        Verify {
            settings,
            verifier: Verifier::new(settings),
            experiment: None,
            check_at: Instant::now(),
            others: BTreeSet::new(),
            ours: BTreeSet::new(),
            former: BTreeMap::new(),
        }
    }

    /// Changes the settings.
    pub fn obey(&mut self, settings: Settings) {
        self.settings = settings;
        self.verifier.obey(settings);
    }

    /// Takes a result of an earlier service.
    pub fn remember(&mut self, found: Found, now: u64) {
        let Found { program, at, experiment } = found;
        self.verifier.remember(program, experiment.verdict, at, experiment.until, now);
    }

    /// Returns whether a process may be named to a lifter.
    pub fn allows(&self, taken: &Taken, now: u64) -> bool {
        !self.is_on(taken.process) && (!taken.verify || self.pays(&taken.key, now))
    }

    /// Returns whether a gain was measured for a program, and still holds.
    pub fn pays(&self, program: &Program, now: u64) -> bool {
        self.verifier.advise(program, now) == Advice::Lift
    }

    /// Takes note that a process is named to a lifter.
    pub fn given(&mut self, process: Identity) {
        self.ours.insert(process);
        // The end of a process may not be seen.
        if self.ours.len() > KEPT {
            self.ours.retain(|process| is_alive(*process));
        }
    }

    /// Returns whether a process has copies of this service, or had them so recently that what it has forked with them is new. An
    /// experiment lifts and restores it in turn.
    pub fn had_copies(&self, process: Identity) -> bool {
        let was_ours = self.former.get(&process).is_some_and(|until| until.elapsed() < UNSEEN);
        was_ours || self.is_ours(process) || self.is_on(process)
    }

    /// Takes note that a process has inherited copies of this service by fork(2). Returns whether that is new.
    pub fn inherits(&mut self, child: Identity) -> bool {
        let is_new = !self.others.contains(&child) && !self.is_ours(child);
        if is_new {
            self.given(child);
        }
        is_new
    }

    /// Takes note that a process has no copies of this service any more.
    pub fn restored(&mut self, process: Identity) {
        self.ours.remove(&process);
        self.former.retain(|_, until| until.elapsed() < UNSEEN);
        self.former.insert(process, Instant::now());
    }

    /// Returns whether the copies of a process are of this service.
    pub fn is_ours(&self, process: Identity) -> bool {
        self.ours.contains(&process)
    }

    /// Returns whether there is an experiment on this process.
    pub fn is_on(&self, process: Identity) -> bool {
        self.experiment.as_ref().is_some_and(|(experiment, ..)| experiment.process == process)
    }

    /// Takes what the experiment has found out, once it has ended.
    pub fn turn(&mut self, now: u64) -> Option<Ended> {
        self.verifier.check_clock(now);
        let (experiment, ..) = self.experiment.as_mut()?;
        let Outcome { measure, ratio, pairs, verdict } = experiment.turn()?;
        let (experiment, instance, path) = self.experiment.take()?;
        let (program, until) = self.verifier.end(verdict, now)?;
        let child = experiment.into_child();
        let experiment = entry::Experiment { path, measure, ratio, pairs, verdict, until };
        Some(Ended { program, experiment, instance, child })
    }

    /// Chooses a process whose turn it is; `None` if there may be no experiment now. Processes of units come first, and processes
    /// of ordinary users whom no rule names come last: no user can take the turns of the units.
    pub fn choose<'a>(&mut self, all: impl Iterator<Item = &'a Taken>, now: u64) -> Option<&'a Taken> {
        if Instant::now() < self.check_at {
            return None;
        }
        self.check_at = Instant::now() + CHECK_PAUSE;
        if !self.verifier.may_begin(now) {
            return None;
        }
        let waits = all.filter(|one| {
            let is_its_turn = one.verify && self.verifier.advise(&one.key, now) == Advice::Wait;
            is_its_turn && !self.others.contains(&one.process)
        });
        let used = waits.filter_map(|one| {
            let stat = Process::new(one.process.0).stat().ok()?;
            let order = (one.of_user.is_none(), one.unit.is_some(), stat.cpu);
            stat.is_whole(one.process).then_some((order, one))
        });
        let least = LEAST * ticks_per_second();
        let mut used: Vec<_> = used.filter(|((.., cpu), _)| *cpu >= least).collect();
        used.sort_unstable_by_key(|(order, _)| Reverse(*order));
        for (_, one) in used.into_iter().take(CANDIDATES) {
            // One that a user compares just now may have copies for as long.
            let Some(_turn) = turn_of_change(one.process.0) else { continue };
            match copies::of(one.process) {
                Some(0) => return Some(one),
                Some(_) if self.ours.contains(&one.process) => return Some(one),
                Some(_) => {
                    let (program, pid) = (&one.program, one.process.0);
                    let line =
                        format!("{program} ({pid}) is lifted by another hugelift: it is left as it is");
                    log(Level::Info, &line);
                    self.others.insert(one.process);
                }
                None => {}
            }
        }
        None
    }

    /// Forgets a process that has ended.
    pub fn ended(&mut self, process: Identity) {
        self.others.remove(&process);
        self.ours.remove(&process);
    }

    /// Begins an experiment on a process.
    pub fn begin(&mut self, one: &Taken, now: u64) {
        // The end of its lifter may have taken seconds.
        if !is_whole(one.process) || !self.verifier.begin(&one.key, now) {
            return;
        }
        let name = format!("{} ({})", one.program, one.process.0);
        match Experiment::start(one.process, self.settings.length) {
            Ok(experiment) => {
                log(Level::Info, &format!("{name}: an experiment of {} s begins", self.settings.length));
                self.experiment = Some((experiment, one.instance(), one.program.as_os_str().into()));
            }
            Err(error) => {
                log(Level::Warning, &format!("{name}: cannot start an experiment: {error}"));
                self.verifier.give_up(now);
            }
        }
    }

    /// Returns the experiment that runs.
    pub fn experiment(&self) -> Option<&Experiment> {
        self.experiment.as_ref().map(|(experiment, ..)| experiment)
    }

    /// Returns when there is something to do without an event. Only processes that wait need a check.
    pub fn next<'a>(&self, mut all: impl Iterator<Item = &'a Taken>) -> Option<Instant> {
        match self.experiment() {
            Some(experiment) => Some(experiment.next()),
            None => all.any(|one| one.verify).then_some(self.check_at),
        }
    }

    /// Returns how many programs have each verdict.
    pub fn counts(&self) -> BTreeMap<Verdict, u64> {
        let now = now();
        Verdict::ALL.into_iter().map(|verdict| (verdict, self.verifier.count(verdict, now))).collect()
    }

    /// Ends the experiment that runs, of which nothing is known then. The process is restored. Returns the
    /// experiment's own process, and the one that it is about, if it has not ended by the deadline.
    pub fn end(&mut self, deadline: Instant, now: u64) -> Option<(Child, Instance)> {
        self.verifier.give_up(now);
        let (experiment, instance, _) = self.experiment.take()?;
        Some((experiment.finish(deadline)?, instance))
    }
}
