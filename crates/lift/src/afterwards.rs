// SPDX-License-Identifier: Apache-2.0
//! Who stays beside the program when it runs: to note what it does, to join what fork(2) leaves split.

use super::job::LiftJob;
use crate::options::{AfterFork, Verbosity};
use crate::weigh::Chosen;
use hugelift_core::apply::{Outcome, lifted};
use hugelift_core::plan::Plan;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_os::watch::joiner::Joiner;
use hugelift_os::watch::watcher::{Program, Watcher};
use std::time::Duration;

impl LiftJob {
    /// Those who stay beside process `pid`, which is stopped yet; `lift` is the CPU time that its lift
    /// took of it.
    pub(super) fn start_watcher(
        &self,
        pid: u32,
        before: &Snapshot,
        chosen: Chosen,
        outcome: &Outcome,
        lift: Duration,
    ) -> Option<Watcher> {
        let joins = self.may_join(&chosen.plan, outcome);
        if self.adopts {
            // It would wait for its helper for as long as it lives.
            if joins {
                self.say_unjoined("pid 1 and subreapers have nobody beside them");
            }
            return None;
        }
        if self.leaves_all_memory(before) {
            if joins {
                self.say_unjoined("a memory limit holds, all of which the program may need; see --spare");
            }
            return None;
        }
        let observer = if self.is_child { None } else { chosen.observer(before, outcome, lift) };
        if observer.is_none() && !joins {
            return None;
        }
        let program = match Program::open(pid) {
            Ok(program) => program,
            Err(error) => {
                if joins {
                    self.say_unjoined(&format!("/proc/{pid}/pagemap: {error}"));
                }
                tracing::debug!(%error, "not looked at");
                return None;
            }
        };
        let joiner = joins
            .then(|| Joiner::new(&program))
            .and_then(|joiner| joiner.map_err(|why| self.say_unjoined(&why.to_string())).ok());
        let mut watcher = Watcher::new(program);
        observer.into_iter().for_each(|observer| watcher.add(observer));
        joiner.into_iter().for_each(|joiner| watcher.add(joiner));
        (!watcher.is_empty()).then_some(watcher)
    }

    /// Whether it is to be done, if it can be.
    fn may_join(&self, plan: &Plan, outcome: &Outcome) -> bool {
        // These may be empty yet, or an allocator's own.
        let grows = || self.policy.parts.iter().any(|part| matches!(part, Part::Heap | Part::Stack));
        let is_thp = |part, backing| matches!(part, Part::Data | Part::Bss) && backing == Backing::Thp;
        match self.after_fork {
            AfterFork::Auto => {
                grows() || lifted(plan, outcome).any(|(span, backing)| is_thp(span.part, backing))
            }
            AfterFork::Join => true,
            AfterFork::Leave => false,
        }
    }

    /// Who has not asked for it by name misses nothing.
    fn say_unjoined(&self, why: &str) {
        if self.after_fork == AfterFork::Join || self.verbosity >= Verbosity::Summary {
            self.say(&format!("{}: huge pages that a fork splits stay split: {why}", self.program));
        }
    }
}
