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
//! | `PROT_BTI` | branch target identification, where the architecture has it |
//! | `call_on_stack` | calls a function on another stack |
//! | `RED_ZONE` | bytes below the stack pointer that belong to the program |

#[cfg(target_arch = "aarch64")]
mod aarch64;
// The tests of its code run on each architecture.
#[cfg(any(target_arch = "aarch64", test))]
mod aarch64_stub;
mod interrupted;
mod signal_frame;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
pub use interrupted::{Anew, Call, CallEnd, Interrupted, Surroundings};
pub use signal_frame::{FRAME_ALIGN, Frame};
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
