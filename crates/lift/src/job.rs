// SPDX-License-Identifier: Apache-2.0
//! The lift of one program: what is asked, what each phase finds, and the hooks of the helper, in the
//! order in which it calls them.

use crate::asked::Asked;
use crate::lifted::Lifted;
use crate::live::family::new_mark;
use crate::memory_limit::reserved;
use crate::placement::{Foreseen, Placement};
use crate::prime::Primed;
use crate::untouched::Recorded;
use hugelift_core::addr::PageSize;
use hugelift_core::malloc::Setting;
use hugelift_core::maps::Mapping;
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::relocate::{Image, Move};
use hugelift_core::snapshot::{Machine, Part};
use hugelift_core::target::Fault;
use hugelift_os::launch;
use hugelift_os::launch::bypass::Bypass;
use hugelift_os::launch::helper::{LiftHooks, Verdict};
use hugelift_os::machine::{self, thp_page};
use hugelift_os::trace::remote::Remote;
use hugelift_os::watch::watcher::Watcher;
use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Instant;

/// The lift of one program. The launcher begins it; the helper, which is forked from the launcher, has a
/// copy and goes on with it.
pub struct LiftJob {
    /// What is asked.
    pub(crate) asked: Asked,
    /// The policy that was asked for, less what proved impossible or is spent.
    pub(crate) policy: Policy,
    /// The mark of the run, if the programs that it starts are lifted too.
    pub(crate) mark: Option<String>,
    /// Whether orphans become children of the program.
    pub(crate) adopts: bool,
    /// Why data is not taken from the pool although it was asked for.
    pub(crate) unguarded: Option<String>,
    /// What the program's allocators are asked by.
    pub(crate) allocator: Vec<Setting>,
    /// What the launcher has primed.
    pub(crate) primed: Primed,
    /// The size of a transparent huge page, read before the exec stop; `None` if the kernel has none.
    pub(crate) huge: Option<PageSize>,
    /// The file that the launcher is about to execute.
    pub(crate) path: Option<PathBuf>,
    /// Its best base, chosen before the exec stop.
    pub(crate) foreseen: Option<Foreseen>,
    /// The inodes of the files of which a store has a copy, if only these must be looked for at the start.
    pub(crate) recorded: Option<Recorded>,
    /// Where the executable is after the exec stop, and why.
    pub(crate) placement: Placement,
    /// Why memory that hugelift takes beside the program could end the program, once it was asked for.
    reserved: OnceCell<Option<String>>,
    /// The machine, if it was probed while the loader ran.
    pub(crate) probed: Option<Machine>,
    /// The watcher that stays beside the program, if there is one.
    watcher: Option<Watcher>,
}

impl LiftHooks for LiftJob {
    fn before_exec(&mut self) {
        self.huge = thp_page();
        self.foresee();
        self.recorded = self.find_recorded();
    }

    /// Chooses the base of the executable.
    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        self.choose_base(pid, image, mappings)
    }

    /// Returns the huge page at which a heap that is to be lifted must begin.
    fn heap_page(&self) -> Option<PageSize> {
        self.huge.filter(|_| self.policy.parts.contains(&Part::Heap))
    }

    fn placed(&mut self, result: Result<(), &Fault>) {
        if let Err(fault) = result {
            self.placement.fail(fault);
        }
    }

    /// Returns whether nothing is left to do: the program is in huge folios already, or no store has a copy of
    /// anything. It is inspected again only for a report, `-v` or `--strict`.
    fn ends_at_exec(&mut self, pid: u32) -> bool {
        let is_primed =
            || self.primed.is_complete && self.placement.fits_page_cache && self.needs_no_report();
        let is_untouched = || self.recorded.as_ref().is_some_and(Recorded::is_empty);
        let ends = self.placement.fault().is_none() && (is_untouched() || is_primed());
        if ends {
            self.watcher = self.watch_unstopped(pid);
        }
        ends
    }

    fn while_loading(&mut self, pid: u32) {
        self.probed = Some(machine::probe(Some(pid)));
    }

    fn goes_on_untouched(&mut self, pid: u32) -> bool {
        let goes_on = self.placement.fault().is_none() && self.is_unrecorded(pid);
        if goes_on {
            self.watcher = self.watch_unstopped(pid);
        }
        goes_on
    }

    /// Looks at the program, plans, applies the plan, and reports.
    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict {
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

    fn after_start(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.stay();
        }
    }

    fn bypass(&mut self, why: &Bypass) -> Verdict {
        self.asked.bypass(why)
    }
}

impl LiftJob {
    /// Begins the lift of a program.
    pub(crate) fn new(asked: Asked, policy: Policy, lifts_children: bool) -> LiftJob {
        LiftJob {
            asked,
            policy,
            mark: lifts_children.then(new_mark),
            adopts: launch::adopts_orphans(),
            unguarded: None,
            allocator: Vec::new(),
            primed: Primed::default(),
            huge: None,
            path: None,
            foreseen: None,
            recorded: None,
            reserved: OnceCell::new(),
            placement: Placement::default(),
            probed: None,
            watcher: None,
        }
    }

    /// Returns why memory that hugelift takes beside the program could end the program, as the launcher or the helper
    /// found it first.
    pub(crate) fn reserved(&self) -> Option<&str> {
        self.reserved.get_or_init(|| reserved(&self.policy)).as_deref()
    }

    /// Returns whether data or bss is to be on pages of the pool, where fork(2) needs a guard.
    pub(crate) fn takes_data_from_pool(&self) -> bool {
        let parts = &self.policy.parts;
        self.policy.data_backings.contains(&Backing::Hugetlb)
            && (parts.contains(&Part::Data) || parts.contains(&Part::Bss))
    }

    /// Leaves written parts off the pool: without a guard, a child of fork(2) might be killed where the
    /// pool has no page left.
    pub(crate) fn leave_pool(&mut self, why: &str) {
        self.policy.data_backings = vec![Backing::Thp];
        self.unguarded = Some(why.to_string());
    }
}
