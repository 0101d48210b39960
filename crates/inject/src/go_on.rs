// SPDX-License-Identifier: Apache-2.0
//! Lets a thread go on that has stopped, and in which nothing was done.

use crate::arch::{self, Interrupted};
use crate::ptrace::{Error, Stop, Stopped, Tid};
use crate::seen::Seen;
use crate::timeout::{TimedWait, shortened};
use crate::waits;
use hugelift_linux::proc::procfs::Process;

/// Lets it go on. A call that the stop has ended with EINTR is made again, with the rest of its timeout, unless a
/// signal with a handler ends it.
pub(crate) fn let_go(
    pid: i32,
    (stopped, stop): (Stopped, Stop),
    wait: Option<TimedWait>,
) -> Result<(), Error> {
    let signal = match stop {
        Stop::Signal(signal) => signal,
        Stop::Trap | Stop::Group(_) | Stop::Exec | Stop::Syscall => 0,
    };
    let tid = stopped.tid();
    if let Some(regs) = stopped.regs()?
        && let seen = Seen::of(pid, tid)
        && let Interrupted::Eintr(number, again, _) = arch::interrupted(&regs, &seen.and_stopped(&stopped))
        && waits::can_be_made_again(number)
        && (arch::DECIDES_LATE || !is_handled(pid, tid, signal))
    {
        let is_it =
            |wait: &TimedWait| wait.was_stopped(pid, tid) && wait.is_in(number, again.fourth_argument());
        let rest = wait.filter(is_it).map(|wait| wait.rest());
        let again = shortened(again, rest);
        stopped.set_regs(&arch::undecided(&regs, &again).unwrap_or(again))?;
    }
    stopped.detach(signal)
}

/// Returns whether a handler runs when the thread goes on.
fn is_handled(pid: i32, tid: Tid, signal: i32) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    let delivered = if signal > 0 { 1 << (signal - 1) } else { 0 };
    status.is_ok_and(|status| (status.pending & !status.blocked | delivered) & status.caught != 0)
}
