// SPDX-License-Identifier: Apache-2.0
//! What differs between the architectures that hugelift runs on: registers, three short pieces of
//! machine code, and the layout of a signal frame. No other module knows the architecture.
//!
//! Each architecture offers the same names:
//!
//! | name | what |
//! |---|---|
//! | `MACHINE` | the machine as ELF headers name it |
//! | `AUDIT_ARCH`, `SYSCALL_BYTES` | the architecture as seccomp filters see it; the length of a system call instruction |
//! | `Regs` | the general registers as `PTRACE_GETREGSET(NT_PRSTATUS)` gives them |
//! | `FP_REGSET` | the regset that holds the floating-point state |
//! | `STUB`, `COPY_AT`, `SYSCALL_AT`, `RETURN_AT` | code that makes one system call, then calls rt_sigreturn(2) |
//! | `BATCH`, `Regs::with_batch`, `Regs::in_batch` | code that makes a list of system calls, then calls rt_sigreturn(2) |
//! | `entry_stub`, `entry_registers`, `ENTRY_STUB_BYTES` | code that a dynamic program runs at its entry point |
//! | `lent_stub`, `LENT_STUB_BYTES`, `reaches` | code that a borrowed thread runs, and how far it may be from the thread's own code |
//! | `waiting_stub`, `leading_stub`, `SLOT_BYTES` | the same for threads that wait for a word in memory, and for the one that sets it |
//! | `interrupted`, `made_anew`, `returning`, `undecided`, `DECIDES_LATE`, `SHOWS_CALLS`, `SYSCALL_REGSET` | how a thread in a system call goes on; what its registers show of the call |
//! | `LOST_IN_CALLS`, `is_lost` | registers that a system call clears |
//! | `signal_frame`, `FRAME_PC` | the frame from which rt_sigreturn(2) restores registers; the program counter in it |
//! | `PROT_BTI`, `has_bti` | branch target identification, where the architecture has it |
//! | `call_on_stack` | calls a function on another stack |
//! | `RED_ZONE` | bytes below the stack pointer that belong to the program |

use hugelift_core::addr::Addr;

#[cfg(target_arch = "aarch64")]
mod aarch64;
// The tests of its code run on each architecture.
#[cfg(any(target_arch = "aarch64", test))]
#[path = "aarch64/stub.rs"]
mod aarch64_stub;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Bytes of a slot for the code of a thread that waits for others; there is no such code here.
#[cfg(target_arch = "aarch64")]
pub const SLOT_BYTES: usize = 256;

/// Returns `None`: no jump leads back from a mapping of its own to everywhere.
#[cfg(target_arch = "aarch64")]
pub fn waiting_stub(_word: Addr, _regs: &Regs, _mask: u64) -> Option<Vec<u8>> {
    None
}

/// Returns `None`, as [`waiting_stub`] does.
#[cfg(target_arch = "aarch64")]
pub fn leading_stub(_word: Addr, _regs: &Regs, _mask: u64) -> Option<Vec<u8>> {
    None
}

/// Returns registers with which an interrupted call returns `result`; `None` here: such a call is made again.
#[cfg(target_arch = "aarch64")]
pub fn returning(_: &Regs, _: i64) -> Option<Regs> {
    None
}

/// A signal frame, ready to be written to the target's stack.
pub struct Frame {
    /// The frame's bytes.
    pub bytes: Vec<u8>,
    /// Offset in `bytes` at which the stack pointer must be for rt_sigreturn(2) to find the frame.
    pub sp_at: u64,
}

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
    /// Returns the instruction at `at`, of as many bytes as one that makes a system call.
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

/// The alignment that the first byte of a frame must have.
pub const FRAME_ALIGN: u64 = 64;

/// Writes a little-endian word at an offset: both architectures are little-endian.
fn put(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(slot) = bytes.get_mut(at..at + 8) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(slot) = bytes.get_mut(at..at + 4) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}
