// SPDX-License-Identifier: Apache-2.0
//! A thread that a stop finds in a system call: what is known of it, and how it goes on.

#[cfg(target_arch = "aarch64")]
use super::aarch64::regs::{Regs, SYSCALL_BYTES};
#[cfg(target_arch = "x86_64")]
use super::x86_64::regs::{Regs, SYSCALL_BYTES};
use hugelift_core::addr::Addr;

/// A system call in which a thread is: what `/proc/PID/task/TID/syscall` shows (proc_pid_syscall(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The call's number.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
    /// The stack pointer.
    pub sp: Addr,
    /// The program counter, behind the instruction that makes the call.
    pub pc: Addr,
}

/// What can be found out about a thread at a ptrace stop, beside its registers.
pub trait Surroundings {
    /// Returns the bytes at `at`, as many as an instruction has that makes a system call.
    fn instruction(&self, at: Addr) -> Option<[u8; SYSCALL_BYTES as usize]>;

    /// Returns the first argument of the call that the stop has ended with EINTR, if it was this one (its
    /// first argument is not compared). `None` if it may be a signal handler that has ended it.
    fn first_argument(&self, call: &Call) -> Option<u64>;
}

/// How a thread goes on that a stop found in a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// It was not in a call, or the call had ended: these registers are its own.
    No(Regs),
    /// With these registers it makes the call again, or goes on with it, without having seen the stop.
    Restarts(Regs, Option<CallEnd>),
    /// The call has ended with EINTR. It has this number, and would be made again with these registers.
    Eintr(i64, Regs, Option<CallEnd>),
    /// Whether the call is continued or made shows only when the thread has entered it again.
    Enters,
}

/// What makes the kernel do to an interrupted call what it would have done without the tracer, where it
/// decides so before the stop at which it delivers signals. Set at the end of another call, these registers
/// let it decide once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallEnd {
    /// The first argument that the other call must have.
    pub argument: u64,
    /// The registers, with the result that makes the kernel restart the call or end it with EINTR.
    pub regs: Regs,
}

/// How a thread makes its call anew that the kernel would continue by restart_syscall(2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anew {
    /// Its registers.
    pub regs: Regs,
    /// Code that must be in the cave, and stay there.
    pub code: Vec<u8>,
}
