// SPDX-License-Identifier: Apache-2.0
//! What stays beside the program while it runs: to copy what is worth it, to lift what it opens later and the
//! programs that it starts, to join huge pages that writes after fork(2) have split.

use crate::job::LiftJob;
use crate::launch;
use crate::launch::bypass::Verdict;
use crate::lifted::Lifted;
use crate::live::LiveLift;
use crate::options::{AfterFork, Verbosity};
use crate::watcher::joiner::Joiner;
use crate::watcher::process::{Program, Watcher};
use hugelift_core::apply::{Outcome, lifted};
use hugelift_core::plan::Plan;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::{Part, Snapshot};

/// Returns whether a process may stay beside the program that this process becomes, and lift it while it runs.
/// Only the launcher may ask: the helper is another process.
pub(crate) fn may_lift_later() -> bool {
    // The program would wait for a process that is its child.
    !launch::adopts_orphans()
}

impl LiftJob {
    /// Starts what stays beside the program, which is still stopped. Returns `None` if nothing does.
    pub(crate) fn start_watcher(&self, lift: Lifted) -> Option<Watcher> {
        let Lifted { pid, before, plan, outcome, took: _ } = lift;
        let joins = self.may_join(&plan, &outcome);
        if self.adopts {
            // The program would wait for its helper for as long as the helper lives.
            if joins {
                self.say_unjoined("hugelift keeps no process beside pid 1 or a subreaper");
            }
            return None;
        }
        if self.leaves_all_memory(&before) {
            if joins {
                self.say_unjoined("the program may need all that its memory limit leaves; see --spare");
            }
            return None;
        }
        self.watch(pid, joins)
    }

    /// Does the same for a program that goes on without a stop at its entry point, of which no snapshot was taken.
    pub(crate) fn watch_unstopped(&self, pid: u32) -> Option<Watcher> {
        if self.reserved().is_none() { self.watch(pid, false) } else { None }
    }

    /// Starts a process that stays beside the program `pid`, to lift what is worth it later, and to join huge
    /// pages if it `joins`.
    fn watch(&self, pid: u32, joins: bool) -> Option<Watcher> {
        let (mark, options) = (self.mark.as_deref(), &self.asked.options);
        let live = self
            .lifts_later()
            .then(|| LiveLift::of_run(pid, mark, &self.policy, &self.asked.program, options));
        let live = live.flatten();
        if live.is_none() && !joins {
            return None;
        }
        let program = match Program::open(pid) {
            Ok(program) => program,
            Err(error) => {
                if joins {
                    self.say_unjoined(&format!("/proc/{pid}/pagemap: {error}"));
                }
                tracing::debug!(%error, "not watched");
                return None;
            }
        };
        let joiner = joins
            .then(|| Joiner::new(&program))
            .and_then(|joiner| joiner.map_err(|why| self.say_unjoined(&why.to_string())).ok());
        let mut watcher = Watcher::new(program);
        live.into_iter().for_each(|live| watcher.add(live));
        joiner.into_iter().for_each(|joiner| watcher.add(joiner));
        (!watcher.is_empty()).then_some(watcher)
    }

    /// Returns whether the program is lifted while it runs.
    pub(crate) fn lifts_later(&self) -> bool {
        // With --eager everything is done at the start, except for what the program maps later and for its children.
        let maps_more =
            self.policy.parts.iter().any(|part| matches!(part, Part::Anon | Part::Jit | Part::Shm));
        !self.adopts && (!self.asked.options.eager || self.mark.is_some() || maps_more)
    }

    /// Says why the programs that the program starts are not lifted, if that is so.
    pub(crate) fn give_up_children(&mut self) -> Option<Verdict> {
        self.mark.as_ref()?;
        let why = match self.reserved() {
            Some(why) => why.to_string(),
            None if self.adopts => "no process of hugelift can stay beside pid 1 or a subreaper; hugelift attach PID lifts a process \
                  that runs"
                .into(),
            None => return None,
        };
        self.mark = None;
        if self.asked.options.strict {
            return Some(self.asked.refuse(&format!("--children: {why}")));
        }
        self.asked.say(Verbosity::Problems, &format!("its children are started without huge pages: {why}"));
        Some(Verdict::Start)
    }

    /// Returns whether all memory that a control group's limit leaves is the program's: then nothing
    /// stays beside it, since its memory would be charged to the same limit.
    pub(crate) fn leaves_all_memory(&self, before: &Snapshot) -> bool {
        before.machine.memory_limit.is_some() && self.asked.options.policy.spare == 0
    }

    /// Returns whether split huge pages are to be joined, where that is possible.
    fn may_join(&self, plan: &Plan, outcome: &Outcome) -> bool {
        // Both may still be empty, or have huge pages that an allocator asks for.
        let grows = || self.policy.parts.iter().any(|part| matches!(part, Part::Heap | Part::Stack));
        let is_thp = |part, backing| matches!(part, Part::Data | Part::Bss) && backing == Backing::Thp;
        match self.asked.options.after_fork {
            AfterFork::Auto => {
                grows() || lifted(plan, outcome).any(|(span, backing)| is_thp(span.part, backing))
            }
            AfterFork::Join => true,
            AfterFork::Leave => false,
        }
    }

    /// Says why nothing is joined. With `--after-fork auto` only -v shows it.
    fn say_unjoined(&self, why: &str) {
        let asked = self.asked.options.after_fork == AfterFork::Join;
        let least = if asked { Verbosity::Problems } else { Verbosity::Summary };
        self.asked.say(least, &format!("huge pages that a fork splits stay split: {why}"));
    }
}
