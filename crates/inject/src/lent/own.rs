// SPDX-License-Identifier: Apache-2.0
//! What a stopped thread gets back.

use crate::arch::{self, CallEnd, Regs};
use crate::ptrace::Tid;
use crate::timeout::{TimedWait, shortened};
use hugelift_linux::proc::procfs::Process;

/// What a stopped thread gets back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// Its registers at the stop.
    pub(super) regs: Regs,
    /// Registers with which it makes the call again that has ended with EINTR.
    pub(super) again: Option<Regs>,
    /// The wait of that call, if it has a timeout that is shortened.
    pub(super) wait: Option<TimedWait>,
    /// What lets the kernel decide once more how its call goes on, if the registers are not enough.
    pub(super) end: Option<CallEnd>,
    /// The signals that it blocks.
    pub(super) mask: u64,
}

impl Own {
    /// Returns the registers that a thread gets back at a stop in which the kernel is about to deliver signals, and the
    /// rest of the timeout with which it makes its call again, if it does.
    pub(super) fn back(&self, pid: i32, tid: Tid) -> (Regs, Option<u64>) {
        let Some(again) = self.again else { return (self.regs, None) };
        let rest = self.wait.map(|wait| wait.rest());
        let made = shortened(again, rest);
        match arch::undecided(&self.regs, &made) {
            Some(regs) => (regs, rest),
            None if is_handled(pid, tid, self.mask) => (self.regs, None),
            None => (made, rest),
        }
    }
}

/// Returns whether a signal is pending for which a handler will run, in a thread that blocks `mask`. A signal
/// that is ignored is also kept while it is blocked, and ends no system call.
fn is_handled(pid: i32, tid: Tid, mask: u64) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    status.is_ok_and(|status| status.pending & status.caught & !mask != 0)
}
