// SPDX-License-Identifier: Apache-2.0
//! The steps of a lift on the way of a program to its first own instruction, in the order of time.

use crate::job::{LiftJob, Recorded};
use crate::launch::bypass::{Bypass, Verdict};
use crate::lifted::Lifted;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::{Image, Move};
use hugelift_core::snapshot::Part;
use hugelift_core::target::Fault;
use hugelift_inject::remote::Remote;
use hugelift_linux::machine::{self, thp_page};
use std::time::Instant;

/// The helper makes these steps. From [`LiftJob::place`] to [`LiftJob::ends_at_exec`] the program stands at its exec stop: the kernel has mapped it, and
/// nothing of it has run. A static program has no loader, and is lifted at its exec stop.
impl LiftJob {
    /// Does what costs the program no time: the launcher is about to call execve(2).
    pub(crate) fn before_exec(&mut self) {
        self.huge = thp_page();
        self.foresee();
        self.recorded = self.find_recorded();
    }

    /// Returns where the executable should be instead; `None` leaves it where it is. The program stands at its exec stop,
    /// and `mappings` are all its mappings.
    pub(crate) fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        self.choose_base(pid, image, mappings)
    }

    /// Returns the huge page at which a heap that is to be lifted must begin; `None` leaves it where it is. The program stands
    /// at its exec stop.
    pub(crate) fn heap_page(&self) -> Option<PageSize> {
        self.huge.filter(|_| self.policy.parts.contains(&Part::Heap))
    }

    /// Takes what came of the move that [`LiftJob::place`] returned. The program stands at its exec stop.
    pub(crate) fn placed(&mut self, result: Result<(), &Fault>) {
        if let Err(fault) = result {
            self.placement.fail(fault);
        }
    }

    /// Returns whether nothing is left to do: the program is in huge folios already, or no store has a copy of
    /// anything. It is inspected again only for a report, `-v` or `--strict`.
    ///
    /// It is not called if the program is its helper's parent: such a program waits for the helper at its entry point.
    pub(crate) fn ends_at_exec(&mut self, pid: u32) -> bool {
        let is_primed =
            || self.primed.is_complete && self.placement.fits_page_cache && self.needs_no_report();
        let is_untouched = || self.recorded.as_ref().is_some_and(Recorded::is_empty);
        let ends = self.placement.fault().is_none() && (is_untouched() || is_primed());
        if ends {
            self.watcher = self.watch_unstopped(pid);
        }
        ends
    }

    /// Does what costs the program no time: the loader of the process `pid` runs, and then the constructors.
    pub(crate) fn while_loading(&mut self, pid: u32) {
        self.probed = Some(machine::probe(Some(pid)));
    }

    /// Returns whether the program may go on as it is, without [`LiftJob::lift`]. The process `pid` stands before its first own
    /// instruction. It is not called if the program is its helper's parent.
    pub(crate) fn goes_on_untouched(&mut self, pid: u32) -> bool {
        let goes_on = self.placement.fault().is_none() && self.is_unrecorded(pid);
        if goes_on {
            self.watcher = self.watch_unstopped(pid);
        }
        goes_on
    }

    /// Lifts the process `pid` through `target`: snapshot, plan, apply, report. Returns whether the program may start. It stands
    /// before its first own instruction.
    pub(crate) fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict {
        let began = Instant::now();
        let found = self.take_snapshot(pid, target).and_then(|mut before| {
            let (plan, guard) = self.choose(pid, &mut before)?;
            Ok((before, plan, guard))
        });
        let (before, mut plan, guard) = match found {
            Ok(found) => found,
            Err(why) => return self.bypass(&why),
        };
        self.placement.blame(&mut plan);
        let lifted = Lifted::apply(pid, target, before, plan, began);
        if let Some(guard) = guard {
            lifted.inform(&guard);
        }
        if let Err(refused) = self.complain(&lifted) {
            return refused;
        }
        if let Some(names) = self.asked.options.perf_map {
            self.name_code(&lifted, names);
        }
        self.report(&lifted);
        self.watcher = self.start_watcher(lifted);
        Verdict::Start
    }

    /// Does what stays to be done while the program runs. It is not called if the helper is the program's child.
    pub(crate) fn after_start(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.stay();
        }
    }

    /// Says why the program cannot be lifted, and returns whether it may start nevertheless. At most
    /// [`LiftJob::after_start`] follows.
    pub(crate) fn bypass(&mut self, why: &Bypass) -> Verdict {
        self.asked.bypass(why)
    }
}
