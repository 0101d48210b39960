// SPDX-License-Identifier: Apache-2.0
//! The loop that has a target run injected code up to its end: one system call, or a batch of them.
//!
//! All signals of the target are blocked meanwhile but those by which the code ends (see
//! [`crate::trace::frame`]).

use crate::arch::Regs;
use crate::trace::ptrace::{Error, Resume, Stop, Stopped};
use crate::trace::remote::Remote;
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

impl Remote {
    /// Lets `stopped`, the target, run from `regs` on until `end`.
    ///
    /// # Errors
    /// The target is gone, did not stop in time, or became another program.
    pub(crate) fn inject(
        &mut self,
        stopped: Stopped,
        regs: &Regs,
        end: End,
    ) -> Result<(Stopped, Ending), Error> {
        let how = match end {
            End::SyscallExit => Resume::Syscall,
            End::BatchSignal(_) => Resume::Cont,
        };
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
                    let ours = stopped.signal_origin()? == (libc::SI_TKILL, self.pid);
                    // Another process's signal is sent again when hugelift is done.
                    self.foreign_sigurg |= !ours;
                    if stopped.regs()?.is_some_and(|r| r.in_batch() == last) {
                        return Ok((stopped, Ending::Complete));
                    }
                    0
                }
                // Only SIGSTOP can arrive here; it takes effect when hugelift is done.
                (Stop::Signal(signal), _) => signal,
                (Stop::Group(_) | Stop::Trap | Stop::Syscall, _) => 0,
                (Stop::Exec, _) => return Err(Error::Unexpected { tid: self.pid, status: 0 }),
            };
            running = stopped.resume(how, signal)?;
        }
    }
}
