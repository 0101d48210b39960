// SPDX-License-Identifier: Apache-2.0
//! AArch64.

mod lent;
pub(super) mod regs;

pub use lent::*;
pub use regs::{Regs, SYSCALL_BYTES};

use super::aarch64_stub::SVC;
use super::signal_frame::{Frame, put, put32};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;

/// The machine as ELF headers name it.
pub const MACHINE: Machine = Machine::AArch64;

/// The architecture in `struct seccomp_data`: `AUDIT_ARCH_AARCH64` (linux/audit.h).
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Bytes below the stack pointer that leaf functions may use: AAPCS64 has no red zone.
pub const RED_ZONE: u64 = 0;

/// `PROT_BTI`; 0 where there is no such protection.
pub const PROT_BTI: u64 = 0x10;

/// `NT_PRFPREG`
pub const FP_REGSET: usize = 2;

/// Returns the bytes of instruction words; instructions are little-endian.
const fn code<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    let mut i = 0;
    while i < WORDS {
        let bytes = words[i].to_le_bytes();
        let mut j = 0;
        while j < 4 {
            out[4 * i + j] = bytes[j];
            j += 1;
        }
        i += 1;
    }
    out
}

/// Calls `code` with `argument` on the stack that ends at `top`, then returns on the caller's stack.
///
/// # Safety
/// `top` is aligned to 16 bytes, and the memory below it is writable, large enough for `code`, and
/// used by nothing else during the call.
pub unsafe fn call_on_stack(
    top: *mut libc::c_void,
    code: extern "C" fn(*mut libc::c_void),
    argument: *mut libc::c_void,
) {
    // SAFETY: x20 is callee-saved (AAPCS64), so it still holds the old stack pointer after the call.
    // All registers that `code` may change are declared.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",   // save the caller's stack pointer
            "mov sp, {top}", // switch to the other stack
            "blr {code}",    // argument in x0
            "mov sp, x20",   // switch back
            top = in(reg) top,
            code = in(reg) code,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

/// Code with three entry points: it copies memory, makes a system call, and returns to the program by
/// rt_sigreturn(2).
#[rustfmt::skip]
pub const STUB: [u8; 28] = code([
    // COPY_AT:
    0xa8c1_1023, // ldp x3, x4, [x1], #16   read 16 bytes from x1
    0xa881_1003, // stp x3, x4, [x0], #16   write them to x0
    0xf100_4042, // subs x2, x2, #16        16 bytes fewer are left
    0x54ff_ffa1, // b.ne COPY_AT
    // SYSCALL_AT:
    SVC,         // svc #0                  number in x8; arguments in x0 to x5
    // RETURN_AT:
    0xd280_1168, // mov x8, #139            rt_sigreturn
    SVC,         // svc #0                  load all registers from the frame at sp
]);
/// Offset in [`STUB`] of the copy, which the system call and the return follow.
pub const COPY_AT: u64 = 0;
/// Offset in [`STUB`] of the system call, which the return follows.
pub const SYSCALL_AT: u64 = 16;
/// Offset in [`STUB`] of the return to the program.
pub const RETURN_AT: u64 = 20;

/// Code that makes one system call after the other, then returns to the program by rt_sigreturn(2).
///
/// `x19` points to a list. Each entry has seven words: the call's number and six arguments. The result
/// replaces the number. A negative number ends the list. (The kernel changes only x0.)
#[rustfmt::skip]
pub const BATCH: [u8; 40] = code([
    // next:
    0xf940_0268, // ldr x8, [x19]           number of the call
    0xb7f8_00e8, // tbnz x8, #63, end       negative?
    0xa940_8660, // ldp x0, x1, [x19, #8]   first and second argument
    0xa941_8e62, // ldp x2, x3, [x19, #24]  third and fourth
    0xa942_9664, // ldp x4, x5, [x19, #40]  fifth and sixth
    SVC,         // svc #0
    0xf803_8660, // str x0, [x19], #56      the result replaces the number; on to the next entry
    0x17ff_fff9, // b next
    // end:
    0xd280_1168, // mov x8, #139            rt_sigreturn
    SVC,         // svc #0                  load all registers from the frame at sp
]);

/// Bytes that are reserved for the code that [`entry_stub`] returns.
pub const ENTRY_STUB_BYTES: usize = 72;

/// Returns code for the entry point of a dynamic program: it puts `entry` back into the word of the
/// auxiliary vector at `slot`, sends SIGCONT to its own thread, and jumps to `entry`.
///
/// At the entry point the ABI gives a meaning to `sp` and `x0` alone. `x9` holds `x0` meanwhile.
#[rustfmt::skip]
pub fn entry_stub(entry: Addr, slot: Addr) -> Vec<u8> {
    let words = [
        0xd503_245f_u32, // bti c              the loader comes by an indirect branch
        0xaa00_03e9,     // mov x9, x0         save the function for atexit(3)
        0x5800_0180,     // ldr x0, entry      the real entry point (literal 12 words ahead)
        0x5800_01a1,     // ldr x1, slot       (literal 13 words ahead)
        0xf900_0020,     // str x0, [x1]       AT_ENTRY as the kernel wrote it
        0xd280_1588,     // mov x8, #172       getpid
        SVC,             // svc #0             the process, in x0
        0xaa00_03e1,     // mov x1, x0         its first thread
        0xd280_0242,     // mov x2, #18        SIGCONT
        0xd280_1068,     // mov x8, #131       tgkill
        SVC,             // svc #0             a seized thread stops here
        0xaa09_03e0,     // mov x0, x9         restore x0
        0x5800_0050,     // ldr x16, entry     (literal 2 words ahead)
        0xd61f_0200,     // br x16             to the real entry point
    ];
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    out.extend(entry.0.to_le_bytes()); // entry: .quad
    out.extend(slot.0.to_le_bytes());  // slot: .quad
    out
}

/// Returns the registers that [`entry_stub`] leaves when it jumps to `entry`, from those at its stop.
pub fn entry_registers(mut regs: Regs, entry: Addr) -> Regs {
    regs.x[0] = regs.x[9];
    regs.at(entry, Addr(regs.sp))
}

// Offsets into struct rt_sigframe (arch/arm64/kernel/signal.c) and struct sigcontext.
const UC: usize = 128;
const UC_STACK_FLAGS: usize = UC + 24;
const SIGMASK: usize = UC + 40;
const MCONTEXT: usize = UC + 176;
const RESERVED: usize = MCONTEXT + 288;
const FRAME_BYTES: usize = RESERVED + 4096;
const FPSIMD_MAGIC: u32 = 0x4650_8001;
const FPSIMD_BYTES: u32 = 528;

/// Offset in a frame of the program counter.
pub const FRAME_PC: u64 = (MCONTEXT + 8 + 8 * 32) as u64;

/// Returns a frame from which rt_sigreturn(2) restores `regs`, the floating-point state `fp` (an empty
/// one zeroes it) and the signal mask. The alternate signal stack stays as it is.
pub fn signal_frame(regs: &Regs, fp: &[u8], mask: u64, _base: Addr) -> Frame {
    let mut bytes = vec![0; FRAME_BYTES];
    // sigaltstack(2) refuses these flags, so rt_sigreturn(2) leaves the alternate stack alone.
    put32(&mut bytes, UC_STACK_FLAGS, 0x7f);
    put(&mut bytes, SIGMASK, mask);
    for (i, value) in regs.x.into_iter().chain([regs.sp, regs.pc, regs.pstate]).enumerate() {
        put(&mut bytes, MCONTEXT + 8 + 8 * i, value);
    }
    put32(&mut bytes, RESERVED, FPSIMD_MAGIC);
    put32(&mut bytes, RESERVED + 4, FPSIMD_BYTES);
    if fp.len() >= 520 {
        // The regset is v0..v31, fpsr, fpcr; the frame has fpsr and fpcr first.
        bytes[RESERVED + 8..RESERVED + 16].copy_from_slice(&fp[512..520]);
        bytes[RESERVED + 16..RESERVED + 528].copy_from_slice(&fp[..512]);
    }
    Frame { bytes, sp_at: 0 }
}
