// SPDX-License-Identifier: Apache-2.0
//! The lift of one program: what is asked, and what each of its steps (`steps`) finds.

use crate::asked::Asked;
use crate::live::membership::new_mark;
use crate::memory_limit::reserved;
use crate::placement::{Foreseen, Placement};
use crate::watcher::process::Watcher;
use hugelift_core::addr::PageSize;
use hugelift_core::malloc::Setting;
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::snapshot::{Machine, Part};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The result of priming.
#[derive(Default)]
pub(crate) struct Primed {
    /// All that the program needs is in huge folios.
    pub(crate) is_complete: bool,
    /// The first file with an obstacle, in one line.
    pub(crate) obstacle: Option<String>,
}

/// The inodes of the files of which a store has a copy.
pub(crate) type Recorded = BTreeSet<u64>;

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
    /// The inodes of the files of which a store has a copy, if only these must be searched for at the start.
    pub(crate) recorded: Option<Recorded>,
    /// Where the executable is after the exec stop, and why.
    pub(crate) placement: Placement,
    /// Why memory that hugelift takes beside the program could end the program, once it was asked for.
    reserved: OnceCell<Option<String>>,
    /// The machine, if it was probed while the loader ran.
    pub(crate) probed: Option<Machine>,
    /// The watcher that stays beside the program, if there is one.
    pub(crate) watcher: Option<Watcher>,
}

impl LiftJob {
    /// Begins the lift of a program.
    pub(crate) fn new(asked: Asked, policy: Policy, lifts_children: bool, adopts: bool) -> LiftJob {
        LiftJob {
            asked,
            policy,
            mark: lifts_children.then(new_mark),
            adopts,
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
