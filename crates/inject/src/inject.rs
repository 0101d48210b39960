// SPDX-License-Identifier: Apache-2.0
//! The loop that has a target run injected code up to its end: one system call, or a batch of them.
//!
//! All signals of the target are blocked meanwhile but those by which the code ends (see
//! [`crate::frame`]).

use crate::arch::Regs;
use crate::ptrace::{Error, Resume, Stop, Stopped};
use hugelift_core::addr::Addr;

/// The signal by which a batch ends: it is ignored by default and rarely used.
pub(crate) const BATCH_END: i32 = libc::SIGURG;

/// The event that ends injected code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The exit of its only system call.
    SyscallExit,
    /// The [`BATCH_END`] that the call at this address of the batch's list sends.
    BatchSignal(Addr),
}

/// How injected code ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It ended as [`End`] says.
    Complete,
    /// It could not read or write memory before its system call.
    Fault,
}

/// Lets `stopped`, the target, run from `regs` on until `end`. Sets `foreign_sigurg` if another process has sent SIGURG
/// meanwhile.
///
/// # Errors
/// The target is gone, did not stop in time, or became another program.
pub(crate) fn run(
    stopped: Stopped,
    regs: &Regs,
    end: End,
    foreign_sigurg: &mut bool,
) -> Result<(Stopped, Ending), Error> {
    let how = match end {
        End::SyscallExit => Resume::Syscall,
        End::BatchSignal(_) => Resume::Cont,
    };
    let pid = stopped.tid();
    stopped.set_regs(regs)?;
    let mut running = stopped.resume(how, 0)?;
    let mut in_syscall = false;
    loop {
        let (stopped, stop) = running.wait_shortly()?;
        let signal = match (stop, end) {
            (Stop::Syscall, _) if in_syscall => return Ok((stopped, Ending::Complete)),
            (Stop::Syscall, End::SyscallExit) => {
                in_syscall = true;
                0
            }
            // The fault is the injected code's: the program must not get the signal.
            (Stop::Signal(libc::SIGBUS | libc::SIGSEGV), End::SyscallExit) if !in_syscall => {
                return Ok((stopped, Ending::Fault));
            }
            (Stop::Signal(BATCH_END), End::BatchSignal(last)) => {
                let ours = stopped.signal_origin()? == (libc::SI_TKILL, pid);
                // Another process's signal is sent again when hugelift is done.
                *foreign_sigurg |= !ours;
                if stopped.regs()?.is_some_and(|r| r.in_batch() == last) {
                    return Ok((stopped, Ending::Complete));
                }
                0
            }
            // Only SIGSTOP can arrive here; it takes effect when hugelift is done. No other signal can be raised: at a
            // start nobody else has the memory in which an instruction could fail, and execve(2) has ended the dispatch
            // of system calls to a handler (fs/exec.c).
            (Stop::Signal(signal), _) => signal,
            (Stop::Group(_) | Stop::Trap | Stop::Syscall, _) => 0,
            (Stop::Exec, _) => return Err(Error::Unexpected { tid: pid, status: 0 }),
        };
        running = stopped.resume(how, signal)?;
    }
}
