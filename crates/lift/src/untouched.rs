// SPDX-License-Identifier: Apache-2.0
//! Decides whether a program can go on untouched: no store has a copy of it, and copies are made while it runs.
//!
//! Most programs are short: what is not done at their start costs them nothing. The watcher does it for the others.
//!
//! ```text
//!   no store has any copy ------------------------ the helper lets go at the exec stop
//!   a store has copies, but of other files ------- ... at the entry point, which costs a reading of the mappings
//!   a store has a copy of a file of the program -- it is lifted at the entry point
//! ```

use crate::job::{LiftJob, Recorded};
use crate::options::{AfterFork, Verbosity};
use hugelift_core::policy::{AUTO, Copies, PageChoice};
use hugelift_linux::proc::mapping::inodes_of_code;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::store::recorded_inodes;

impl LiftJob {
    /// Returns the files of which a store has a copy. Returns `None` if the program must be examined whatever a store
    /// has: for a message, for a part that it writes to, or because something is copied at the start.
    ///
    /// The page cache is not checked: where its huge folios fit, the kernel maps them by huge entries itself.
    pub(crate) fn find_recorded(&self) -> Option<Recorded> {
        let policy = &self.policy;
        let copies_later = policy.copies == Copies::Later && policy.backings == AUTO;
        let is_usual = policy.page == PageChoice::Usual && self.huge.is_some();
        let needs_no_examination =
            copies_later && is_usual && self.needs_no_report() && self.reserved().is_none();
        if needs_no_examination { recorded_inodes() } else { None }
    }

    /// Returns whether no store has a copy of a file of which the process `pid` maps code. Returns false if that is
    /// not known: before Linux 6.11, or if the program must be examined anyway.
    pub(crate) fn is_unrecorded(&self, pid: u32) -> bool {
        let Some(recorded) = &self.recorded else { return false };
        let inodes = inodes_of_code(Process::new(pid));
        tracing::debug!(?inodes, recorded = recorded.len(), "files of the program's code");
        inodes.is_ok_and(|inodes| inodes.is_disjoint(recorded))
    }

    /// Returns whether nothing is to be reported about the program's lift, and only parts that it does not write to are
    /// wanted.
    pub(crate) fn needs_no_report(&self) -> bool {
        let options = &self.asked.options;
        let is_silent =
            !self.asked.is_heard(Verbosity::Summary) && self.asked.report.is_none() && !options.strict;
        let only_read = !self.policy.parts.iter().any(|p| p.is_writable());
        is_silent && only_read && options.after_fork != AfterFork::Join
    }
}
