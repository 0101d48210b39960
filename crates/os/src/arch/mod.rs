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
//! | `lent_stub`, `LENT_STUB_BYTES`, `interrupted`, `made_anew` | code that a borrowed thread runs, where there is such code; how a thread in a system call goes on |
//! | `signal_frame`, `FRAME_PC` | the frame from which rt_sigreturn(2) restores registers; the program counter in it |
//! | `PROT_BTI`, `has_bti` | branch target identification, where the architecture has it |
//! | `call_on_stack` | calls a function on another stack |
//! | `RED_ZONE` | bytes below the stack pointer that belong to the program |

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

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

/// How a thread goes on that a stop found in a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// It was not in a call, or the call had ended: these registers are its own.
    No(Regs),
    /// It makes the call again, or goes on with it, without having seen the stop.
    Restarts(Regs),
    /// The call has ended with EINTR. It has this number, and would be made again with these registers.
    Eintr(i64, Regs),
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
