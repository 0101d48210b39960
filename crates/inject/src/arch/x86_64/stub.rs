// SPDX-License-Identifier: Apache-2.0
//! The code that threads run on x86-64 which were stopped anywhere: without a stack, and without any change of the
//! flags or of a floating-point register. `syscall` changes rax, rcx and r11 only, and keeps the flags.
//!
//! ```text
//!   lent      | the tracer's call |                                 | own mask | own registers | jump | values |
//!   leading   | the tracer's call | word = 1 | wake all             | own mask | own registers | jump | values |
//!   waiting   | wait while the word is 0                            | own mask | own registers | jump | values |
//! ```

use super::regs::Regs;
use hugelift_core::addr::Addr;

/// Bytes that [`lent_stub`] takes at most.
pub const LENT_STUB_BYTES: usize = 160;

/// Bytes that [`waiting_stub`] and [`leading_stub`] take at most.
pub const SLOT_BYTES: usize = 192;

// System calls on x86-64.
const SYS_RT_SIGPROCMASK: u32 = 14;
const SYS_FUTEX: u32 = 202;

/// `FUTEX_WAIT_PRIVATE`, `FUTEX_WAKE_PRIVATE` (linux/futex.h)
const FUTEX_WAIT: u32 = 128;
const FUTEX_WAKE: u32 = 129;

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Returns code that makes one system call and then gives the thread back: it sets the signal mask, loads the
/// registers that a system call uses, and jumps to where the thread was. `regs` are the thread's own.
///
/// The tracer loads the call's number and arguments and enters at the first byte.
pub fn lent_stub(_cave: Addr, regs: &Regs, mask: u64) -> Option<Vec<u8>> {
    let mut code = Vec::with_capacity(LENT_STUB_BYTES);
    code.extend(SYSCALL); // the call that the tracer has loaded
    give_back(&mut code, regs, mask)?;
    Some(code)
}

/// Returns code that makes one system call, sets `word` to 1, wakes the threads that wait for it, and then gives
/// the thread back. The tracer enters as in [`lent_stub`], or behind the first instruction to leave the call out.
#[rustfmt::skip]
pub fn leading_stub(word: Addr, regs: &Regs, mask: u64) -> Option<Vec<u8>> {
    let mut code = Vec::with_capacity(SLOT_BYTES);
    code.extend(SYSCALL);                   // syscall              the call that the tracer has loaded
    code.extend([0x48, 0xbf]);              // movabs $word, %rdi
    code.extend(word.0.to_le_bytes());
    code.extend([0xc7, 0x07, 1, 0, 0, 0]);  // movl $1, (%rdi)      the others need wait no longer
    set(&mut code, 0xb8, SYS_FUTEX);        // mov $202, %eax
    set(&mut code, 0xbe, FUTEX_WAKE);       // mov $129, %esi
    set(&mut code, 0xba, i32::MAX as u32);  // mov $INT_MAX, %edx   all that wait
    code.extend(SYSCALL);                   // syscall
    give_back(&mut code, regs, mask)?;
    Some(code)
}

/// Returns code that waits until `word` is no longer 0, and then gives the thread back.
#[rustfmt::skip]
pub fn waiting_stub(word: Addr, regs: &Regs, mask: u64) -> Option<Vec<u8>> {
    let mut code = Vec::with_capacity(SLOT_BYTES);
    set(&mut code, 0xb8, SYS_FUTEX);        // wait: mov $202, %eax
    code.extend([0x48, 0xbf]);              // movabs $word, %rdi
    code.extend(word.0.to_le_bytes());
    set(&mut code, 0xbe, FUTEX_WAIT);       // mov $128, %esi
    set(&mut code, 0xba, 0);                // mov $0, %edx         while it is 0
    code.push(0x41);
    set(&mut code, 0xba, 0);                // mov $0, %r10d        without a timeout
    code.extend(SYSCALL);                   // syscall
    code.extend([0x8b, 0x0f]);              // mov (%rdi), %ecx     zero-extended
    let back = code.len() + 2;
    code.extend([0xe3, u8::try_from(back).ok()?.wrapping_neg()]); // jrcxz wait   tests no flag
    give_back(&mut code, regs, mask)?;
    Some(code)
}

/// Appends `mov $value, %reg` with this opcode. `xor` would change flags.
fn set(code: &mut Vec<u8>, opcode: u8, value: u32) {
    code.push(opcode);
    code.extend(value.to_le_bytes());
}

/// Appends code that sets the signal mask, loads the registers that a system call uses, and jumps to where the
/// thread was.
#[rustfmt::skip]
fn give_back(code: &mut Vec<u8>, regs: &Regs, mask: u64) -> Option<()> {
    set(code, 0xb8, SYS_RT_SIGPROCMASK);    // mov $14, %eax
    set(code, 0xbf, 2);                     // mov $2, %edi         SIG_SETMASK
    let mask_at = code.len() + 3;
    code.extend([0x48, 0x8d, 0x35, 0, 0, 0, 0]); // lea mask(%rip), %rsi
    set(code, 0xba, 0);                     // mov $0, %edx         no old mask
    code.push(0x41);
    set(code, 0xba, 8);                     // mov $8, %r10d        size of the mask
    code.extend(SYSCALL);                   // syscall
    let mut load = |opcode: [u8; 2], value: u64| {
        code.extend(opcode);                // movabs $value, %reg
        code.extend(value.to_le_bytes());
    };
    load([0x48, 0xb8], regs.rax);
    load([0x48, 0xb9], regs.rcx);
    load([0x48, 0xba], regs.rdx);
    load([0x48, 0xbe], regs.rsi);
    load([0x48, 0xbf], regs.rdi);
    load([0x49, 0xb8], regs.r8);
    load([0x49, 0xb9], regs.r9);
    load([0x49, 0xba], regs.r10);
    load([0x49, 0xbb], regs.r11);
    code.extend([0xff, 0x25, 0, 0, 0, 0]);  // jmp *0(%rip)         where the thread was
    code.extend(regs.rip.to_le_bytes());
    let mask_is = code.len();
    code.extend(mask.to_le_bytes());
    // The distance counts from the end of the instruction.
    let distance = u32::try_from(mask_is - (mask_at + 4)).ok()?;
    code[mask_at..mask_at + 4].copy_from_slice(&distance.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests;
