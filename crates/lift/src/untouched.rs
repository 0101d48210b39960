// SPDX-License-Identifier: Apache-2.0
//! Decides whether a program can go on untouched: nothing of it can be mapped huge without a copy, and copies are
//! made while it runs.
//!
//! Most programs are short: what is not done at their start costs them nothing. The watcher does it for the others.
//!
//! ```text
//!   no store has a copy -------------------------- the helper lets go at the exec stop
//!   a store has copies, but of other files ------- ... at the entry point, which costs a look at the mappings
//!   a store has a copy of a file of the program -- it is lifted at the entry point
//! ```

use crate::job::LiftJob;
use crate::options::{AfterFork, Verbosity};
use hugelift_core::policy::{AUTO, Copies, PageChoice};
use hugelift_os::proc::procfs::Process;
use hugelift_os::proc::procmap::inodes_of_code;
use hugelift_os::store::recorded_inodes;
use std::collections::BTreeSet;

/// The inodes of all files of which a store has a copy.
pub(crate) type Recorded = BTreeSet<u64>;

impl LiftJob {
    /// Returns the files of which a store has a copy, if such a copy is all that the program could get at its start and
    /// would miss without it; `None` if the program must be looked at.
    ///
    /// The page cache is not looked at: where its huge folios fit, the kernel maps them by huge entries itself.
    pub(crate) fn find_recorded(&self) -> Option<Recorded> {
        let policy = &self.policy;
        let copies_later = policy.copies == Copies::Later && policy.backings == AUTO;
        let is_usual = policy.page == PageChoice::Usual && self.huge.is_some();
        let is_untouched = copies_later && is_usual && self.is_quiet() && self.reserved().is_none();
        is_untouched.then(recorded_inodes)
    }

    /// Returns whether a store has a copy of no file of which the process `pid` maps code, and nothing else must be
    /// looked at.
    pub(crate) fn is_unrecorded(&self, pid: u32) -> bool {
        let Some(recorded) = &self.recorded else { return false };
        let inodes = inodes_of_code(Process::new(pid));
        tracing::debug!(?inodes, recorded = recorded.len(), "files of the program's code");
        inodes.is_ok_and(|inodes| inodes.is_disjoint(recorded))
    }

    /// Returns whether nothing is reported about the program, and only parts that it does not write to are wanted.
    pub(crate) fn is_quiet(&self) -> bool {
        let options = &self.asked.options;
        let is_silent =
            !self.asked.is_heard(Verbosity::Summary) && self.asked.report.is_none() && !options.strict;
        let only_read = !self.policy.parts.iter().any(|p| p.is_writable());
        is_silent && only_read && options.after_fork != AfterFork::Join
    }
}
