// SPDX-License-Identifier: Apache-2.0
//! One system call of a thread that runs our code, and the signals that arrive meanwhile.
//!
//! All signals are blocked but those that an instruction can raise. If such a signal is raised while it is blocked, the
//! kernel resets its handler for the whole process and kills it (kernel/signal.c, `force_sig_info_to_task`). Not blocked,
//! it stops the thread before it is delivered:
//!
//! | the signal | is |
//! |---|---|
//! | is raised by our instruction: SIGSYS where calls are dispatched, SIGSEGV where the cave was unmapped | discarded, and no further call is made |
//! | was sent | blocked from now on and put back into its queue, as it was. The program gets it afterwards, once |
//! | stops the process (SIGSTOP cannot be blocked) | delivered. It takes effect when the thread has been given back |

use crate::arch::Regs;
use crate::deadline;
use crate::ptrace::{Error, Resume, Stop, Stopped};
use std::time::Duration;

/// The signals that an instruction can raise (`SYNCHRONOUS_MASK` in kernel/signal.c), one bit each.
const RAISED: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGFPE)
    | bit(libc::SIGSYS);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Returns the mask of a thread that runs our code, if these signals are pending: one that the program blocks stays blocked.
pub(super) fn blocked(pending: u64) -> u64 {
    !RAISED | pending
}

/// How a call of a thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It has returned this: a value, or a negative errno.
    With(i64),
    /// The instruction has raised this signal instead. The thread is stopped where the signal would be delivered.
    Raised(i32),
    /// The thread is the first of a new program (execve(2)), which has nothing of what was prepared.
    Exec,
}

/// Runs a thread with registers that enter a call to the end of the call. `at_entry` runs when the thread is in the kernel
/// and about to make the call.
///
/// # Errors
/// The thread has ended, or did not stop in time.
pub(super) fn run(
    stopped: &mut Stopped,
    regs: &Regs,
    asks: Duration,
    at_entry: &mut dyn FnMut(&Stopped) -> Result<(), Error>,
) -> Result<Ended, Error> {
    stopped.set_regs(regs)?;
    let mut in_call = false;
    let mut signal = 0;
    loop {
        signal = match stopped.run_asking(Resume::Syscall, signal, asks)? {
            Stop::Syscall if in_call => {
                let result = stopped.regs()?.map_or(i64::from(-libc::EIO), |regs| regs.result());
                return Ok(Ended::With(result));
            }
            Stop::Syscall => {
                in_call = true;
                at_entry(stopped)?;
                0
            }
            Stop::Signal(signal) if is_raised(stopped, signal)? => return Ok(Ended::Raised(signal)),
            Stop::Signal(signal) => hold(stopped, signal)?,
            Stop::Group(_) | Stop::Trap => 0,
            Stop::Exec => return Ok(Ended::Exec),
        };
        if deadline::is_over() {
            return Err(Error::Late(stopped.tid()));
        }
    }
}

/// Brings a thread from the end of a call to the stop at which the kernel is about to deliver signals, and to restart a
/// call that was interrupted. Returns false if it is a new program by then.
///
/// # Errors
/// The thread has ended, or did not stop in time.
pub(super) fn to_trap(stopped: &mut Stopped, asks: Duration) -> Result<bool, Error> {
    let mut stop = stopped.run_to_trap_asking(asks)?;
    loop {
        let signal = match stop {
            // Where the process is being stopped by a signal, it is this stop that reports it.
            Stop::Trap | Stop::Group(_) => return Ok(true),
            Stop::Signal(signal) if is_raised(stopped, signal)? => 0,
            Stop::Signal(signal) => hold(stopped, signal)?,
            Stop::Syscall => 0,
            Stop::Exec => return Ok(false),
        };
        if deadline::is_over() {
            return Err(Error::Late(stopped.tid()));
        }
        stop = stopped.run_asking(Resume::Cont, signal, asks)?;
    }
}

/// Returns whether an instruction has raised the signal at which a thread has stopped. What another process or a timer
/// sends has a code that is not positive (sigaction(2), `si_code`).
fn is_raised(stopped: &Stopped, signal: i32) -> Result<bool, Error> {
    Ok(RAISED & bit(signal) != 0 && stopped.signal_origin()?.0 > 0)
}

/// Blocks a signal that was sent, so that the kernel puts it back into its queue when the thread is resumed with it
/// (kernel/signal.c, `ptrace_signal`). Returns the signal.
fn hold(stopped: &Stopped, signal: i32) -> Result<i32, Error> {
    stopped.set_signal_mask(stopped.signal_mask()? | bit(signal))?;
    Ok(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_blocked() {
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGURG, 64] {
            assert_ne!(blocked(0) & bit(signal), 0, "{signal}");
        }
        for signal in [libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP, libc::SIGILL, libc::SIGFPE] {
            assert_eq!(blocked(0) & bit(signal), 0, "{signal}");
            assert_eq!(blocked(bit(signal)), blocked(0) | bit(signal));
        }
    }
}
