// SPDX-License-Identifier: Apache-2.0
//! Why a thread cannot be lent.

use crate::caves::CAVE_BYTES;
use crate::filter::Forbids;
use crate::ptrace::{Error, Tid};
use hugelift_core::addr::Addr;
use hugelift_linux::machine::cgroup::Frozen;

/// Why a thread cannot be lent now.
#[derive(Debug, thiserror::Error)]
pub enum NotLent {
    /// The thread has ended, or ptrace(2) refuses it.
    #[error(transparent)]
    Trace(#[from] Error),
    /// SIGSTOP or another stop signal has stopped the process.
    #[error("the process is stopped by signal {0}; send it SIGCONT and try again")]
    Stopped(i32),
    /// A signal is just being delivered; the thread has got it.
    #[error("thread {0} receives a signal")]
    Signal(Tid),
    /// The process has called execve(2).
    #[error("process {0} has become another program by execve(2)")]
    Exec(i32),
    /// The thread is in a restartable sequence (rseq(2)), which a stop inside would not abort.
    #[error("thread {0} is in a restartable sequence")]
    Rseq(Tid),
    /// The thread waits in a call that a stop ends, and whose timeout would begin anew.
    #[error("thread {0} waits in system call {1}, whose timeout a stop would extend")]
    Timed(Tid, i64),
    /// The thread runs, and may be about to leave a wait that has ended.
    #[error("thread {0} may have just woken up")]
    Woken(Tid),
    /// Its registers are not those of this architecture.
    #[error("thread {0} runs 32-bit code")]
    OtherBits(Tid),
    /// All threads are stopped, or in a sleep that a stop does not end.
    #[error("no thread of process {0} runs or is in a sleep that can be interrupted (see its STAT in ps)")]
    NoThread(i32),
    /// Another hugelift changes the process now.
    #[error("another hugelift changes process {0} just now; try again when it is done")]
    Busy(i32),
    /// The process has no executable mapping that ends with zeros.
    #[error("no executable mapping of process {0} ends with {CAVE_BYTES} unused bytes")]
    NoCave(i32),
    /// Seccomp forbids the thread calls of a lift, or may do so.
    #[error("thread {0}: {1}")]
    Filtered(Tid, Forbids),
    /// The thread waits in a call that a stop would cut short.
    #[error("thread {0} waits in system call {1}, which a stop may cut short")]
    CutShort(Tid, i64),
    /// A borrowed thread did not come back in time, or has ended.
    #[error("a borrowed thread did not come back ({0}); what was begun is left as it is")]
    Lost(Error),
    /// Its control group is frozen. No thread of it was borrowed.
    #[error("{0}")]
    Frozen(Frozen),
    /// A borrowed thread did not come back, as its control group was frozen meanwhile. It makes its call then.
    #[error("a borrowed thread did not come back: {0}; what was begun is left as it is")]
    LostFrozen(Frozen),
    /// No cave is near enough to the thread's code.
    #[error("no executable mapping near {1} in process {0} ends with {CAVE_BYTES} unused bytes")]
    OutOfReach(i32, Addr),
    /// The samples of some threads had become too old when the last one was taken.
    #[error(
        "the threads of process {0} could not all be sampled within a moment; there are many, or it is busy"
    )]
    Aged(i32),
    /// More threads have begun than were prepared for.
    #[error("process {0} makes threads faster than they are stopped")]
    TooMany(i32),
    /// The calls of the thread do not reach the kernel.
    #[error(
        "thread {0} dispatches its system calls to itself (prctl(PR_SET_SYSCALL_USER_DISPATCH), as Wine does): \
         hugelift can make none in it"
    )]
    Dispatches(Tid),
    /// A system call would clear registers that the thread uses.
    #[error("thread {0} computes with vector registers that a system call clears (SVE, SME)")]
    Vectors(Tid),
}

impl NotLent {
    /// Returns whether no other thread and no later moment helps.
    pub fn is_final(&self) -> bool {
        match self {
            NotLent::Trace(error) => {
                !matches!(error, Error::Vanished(_) | Error::Late(_) | Error::Raised { .. })
            }
            NotLent::Signal(_)
            | NotLent::Rseq(_)
            | NotLent::Timed(..)
            | NotLent::Woken(_)
            | NotLent::Filtered(..)
            | NotLent::CutShort(..)
            | NotLent::OutOfReach(..)
            | NotLent::TooMany(_)
            | NotLent::Aged(_)
            | NotLent::Dispatches(_)
            | NotLent::Vectors(_)
            | NotLent::Frozen(_)
            | NotLent::NoThread(_) => false,
            NotLent::Stopped(_)
            | NotLent::Exec(_)
            | NotLent::OtherBits(_)
            | NotLent::Busy(_)
            | NotLent::Lost(_)
            | NotLent::LostFrozen(_)
            | NotLent::NoCave(_) => true,
        }
    }
}
