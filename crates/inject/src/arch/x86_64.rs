// SPDX-License-Identifier: Apache-2.0
//! x86-64.

use super::interrupted::{Anew, Interrupted, Surroundings};
use super::signal_frame::{FRAME_ALIGN, Frame, put, put32};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;

pub(super) mod regs;
mod stub;

pub use regs::{Regs, SYSCALL_BYTES};
pub use stub::{LENT_STUB_BYTES, SLOT_BYTES, leading_stub, lent_stub, waiting_stub};

/// The machine as ELF headers name it.
pub const MACHINE: Machine = Machine::X86_64;

/// The architecture in `struct seccomp_data`: `AUDIT_ARCH_X86_64` (linux/audit.h).
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// Bytes below the stack pointer that leaf functions may use (System V ABI).
pub const RED_ZONE: u64 = 128;

/// `PROT_BTI`; 0 where there is no such protection.
pub const PROT_BTI: u64 = 0;

/// `NT_X86_XSTATE`
pub const FP_REGSET: usize = 0x202;

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
    // SAFETY: r12 is callee-saved (System V ABI), so it still holds the old stack pointer after the
    // call. All registers that `code` may change are declared.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",   // save the caller's stack pointer
            "mov rsp, {top}", // switch to the other stack
            "call {code}",    // argument in rdi
            "mov rsp, r12",   // switch back
            top = in(reg) top,
            code = in(reg) code,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Code with three entry points: it copies memory, makes a system call, and returns to the program by
/// rt_sigreturn(2).
#[rustfmt::skip]
pub const STUB: [u8; 11] = [
    // COPY_AT:
    0xf3, 0xa4,                     // rep movsb          copy rcx bytes from (rsi) to (rdi)
    // SYSCALL_AT:
    0x0f, 0x05,                     // syscall            number in rax; arguments in rdi, rsi, rdx, r10, r8, r9
    // RETURN_AT:
    0xb8, 0x0f, 0x00, 0x00, 0x00,   // mov $15, %eax      rt_sigreturn
    0x0f, 0x05,                     // syscall            load all registers from the frame at rsp
];
/// Offset in [`STUB`] of the copy, which the system call and the return follow.
pub const COPY_AT: u64 = 0;
/// Offset in [`STUB`] of the system call, which the return follows.
pub const SYSCALL_AT: u64 = 2;
/// Offset in [`STUB`] of the return to the program.
pub const RETURN_AT: u64 = 4;

/// Code that makes one system call after the other, then returns to the program by rt_sigreturn(2).
///
/// `rbx` points to a list. Each entry has seven words: the call's number and six arguments. The result
/// replaces the number. A negative number ends the list. (The kernel changes only rax, rcx and r11.)
#[rustfmt::skip]
pub const BATCH: [u8; 50] = [
    // next:
    0x48, 0x8b, 0x03,               // mov (%rbx), %rax   number of the call
    0x48, 0x85, 0xc0,               // test %rax, %rax    negative?
    0x78, 0x23,                     // js end
    0x48, 0x8b, 0x7b, 0x08,         // mov 8(%rbx), %rdi  first argument
    0x48, 0x8b, 0x73, 0x10,         // mov 16(%rbx), %rsi second
    0x48, 0x8b, 0x53, 0x18,         // mov 24(%rbx), %rdx third
    0x4c, 0x8b, 0x53, 0x20,         // mov 32(%rbx), %r10 fourth
    0x4c, 0x8b, 0x43, 0x28,         // mov 40(%rbx), %r8  fifth
    0x4c, 0x8b, 0x4b, 0x30,         // mov 48(%rbx), %r9  sixth
    0x0f, 0x05,                     // syscall
    0x48, 0x89, 0x03,               // mov %rax, (%rbx)   the result replaces the number
    0x48, 0x83, 0xc3, 0x38,         // add $56, %rbx      the next entry
    0xeb, 0xd5,                     // jmp next
    // end:
    0xb8, 0x0f, 0x00, 0x00, 0x00,   // mov $15, %eax      rt_sigreturn
    0x0f, 0x05,                     // syscall            load all registers from the frame at rsp
];

/// Registers at a ptrace stop show the call that it has interrupted.
pub const SHOWS_CALLS: bool = true;
/// Whether [`undecided`] leaves it to the kernel, when a thread goes on, how its call does.
pub const DECIDES_LATE: bool = true;

/// There is no regset of the system call's number alone.
pub const SYSCALL_REGSET: Option<usize> = None;

/// Regsets of registers that a system call clears: none.
pub const LOST_IN_CALLS: [usize; 0] = [];

/// Returns false: there are no such registers.
pub fn is_lost(_header: &[u8; 16]) -> bool {
    false
}

/// Returns true: the code of [`lent_stub`] jumps to any address.
pub fn reaches(_cave: Addr, _pc: Addr) -> bool {
    true
}

/// Returns how a thread with `regs` at a ptrace stop goes on (signal(7), "Interruption of system calls by
/// stop signals"; arch/x86/kernel/signal.c, `arch_do_signal_or_restart`).
pub fn interrupted(regs: &Regs, _around: &impl Surroundings) -> Interrupted {
    const EINTR: i64 = -4;
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOHAND: i64 = -514;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    let number = regs.orig_rax as i64;
    if number < 0 {
        return Interrupted::No(*regs);
    }
    // `syscall` has two bytes. A call number of -1 keeps the kernel from restarting a second time.
    let again = |rax: i64| Regs { rip: regs.rip - 2, rax: rax as u64, orig_rax: u64::MAX, ..*regs };
    match regs.rax as i64 {
        ERESTARTNOHAND..=ERESTARTSYS => Interrupted::Restarts(again(number), None),
        ERESTART_RESTARTBLOCK => Interrupted::Restarts(again(libc::SYS_restart_syscall), None),
        EINTR => Interrupted::Eintr(number, again(number), None),
        _ => Interrupted::No(Regs { orig_rax: u64::MAX, ..*regs }),
    }
}

/// Returns registers for a thread at a ptrace stop in a system call, with which the call returns `result`: a
/// value, or a negative errno.
pub fn returning(regs: &Regs, result: i64) -> Option<Regs> {
    regs.is_in_call().then_some(Regs { rax: result as u64, ..*regs })
}

/// Returns registers with which the kernel decides, when the thread goes on, how its call does that the stop has ended
/// with EINTR: a handler that runs ends it, else it is made again, as by `again`. `regs` are those at the stop. `None` if
/// `again` does not make the call again.
///
/// A signal to the process ends the calls of no other threads than the one that takes it, and which one takes it is not
/// known before.
pub fn undecided(regs: &Regs, again: &Regs) -> Option<Regs> {
    const ERESTARTNOHAND: i64 = -514;
    let is_again = regs.is_in_call() && again.rip == regs.rip.wrapping_sub(2);
    is_again.then_some(Regs { rax: ERESTARTNOHAND as u64, r10: again.r10, ..*regs })
}

/// Returns the same: the registers of a thread show at once how its call goes on.
pub fn entered(regs: &Regs, around: &impl Surroundings) -> Interrupted {
    interrupted(regs, around)
}

/// Returns registers for a thread at a ptrace stop in a call that the kernel would continue by
/// restart_syscall(2): with them the kernel makes the call itself again. `None` if it would not.
pub fn made_anew(regs: &Regs, _around: &impl Surroundings, _cave: Option<Addr>) -> Option<Anew> {
    const ERESTARTNOINTR: i64 = -513;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    let is_continued = regs.is_in_call() && regs.rax as i64 == ERESTART_RESTARTBLOCK;
    is_continued.then(|| Anew { regs: Regs { rax: ERESTARTNOINTR as u64, ..*regs }, code: Vec::new() })
}

/// Bytes that are reserved for the code that [`entry_stub`] returns.
pub const ENTRY_STUB_BYTES: usize = 64;

/// Returns code for the entry point of a dynamic program: it puts `entry` back into the word of the
/// auxiliary vector at `slot`, sends SIGCONT to its own thread, and jumps to `entry`.
///
/// At the entry point the ABI gives a meaning to `%rsp` and `%rdx` alone. `%r8` holds `%rdx` meanwhile.
#[rustfmt::skip]
pub fn entry_stub(entry: Addr, slot: Addr) -> Vec<u8> {
    let mut code = Vec::with_capacity(ENTRY_STUB_BYTES);
    code.extend([0x49, 0x89, 0xd0]);    // mov %rdx, %r8       save the function for atexit(3)
    code.extend([0x48, 0xb8]);          // movabs $entry, %rax the real entry point
    code.extend(entry.0.to_le_bytes());
    code.extend([0x48, 0xa3]);          // movabs %rax, slot   AT_ENTRY as the kernel wrote it
    code.extend(slot.0.to_le_bytes());
    code.extend([0xb8, 39, 0, 0, 0]);   // mov $39, %eax       getpid
    code.extend([0x0f, 0x05]);          // syscall             clobbers rcx and r11
    code.extend([0x89, 0xc7]);          // mov %eax, %edi      the process
    code.extend([0x89, 0xc6]);          // mov %eax, %esi      its first thread
    code.extend([0xba, 18, 0, 0, 0]);   // mov $18, %edx       SIGCONT
    code.extend([0xb8, 234, 0, 0, 0]);  // mov $234, %eax      tgkill
    code.extend([0x0f, 0x05]);          // syscall             a seized thread stops here
    code.extend([0x4c, 0x89, 0xc2]);    // mov %r8, %rdx       restore rdx
    code.extend([0x48, 0xb8]);          // movabs $entry, %rax
    code.extend(entry.0.to_le_bytes());
    code.extend([0xff, 0xe0]);          // jmp *%rax           to the real entry point
    code
}

/// Returns the registers that [`entry_stub`] leaves when it jumps to `entry`, from those at its stop.
pub fn entry_registers(mut regs: Regs, entry: Addr) -> Regs {
    regs.rdx = regs.r8;
    regs.at(entry, Addr(regs.rsp))
}

// Offsets into struct rt_sigframe (arch/x86/include/asm/sigframe.h).
const UC: usize = 8;
const UC_STACK_FLAGS: usize = UC + 24;
const MCONTEXT: usize = UC + 40;
const FPSTATE: usize = MCONTEXT + 184;
const SIGMASK: usize = MCONTEXT + 256;
const FRAME_BYTES: usize = SIGMASK + 8 + 128;
// Offset in the fxsave image of the area that software may use (struct _fpx_sw_bytes).
const SW_RESERVED: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
const UC_FLAGS: u64 = 7;

/// Offset in a frame of the program counter.
pub const FRAME_PC: u64 = (MCONTEXT + 8 * 16) as u64;

/// Returns a frame for the address `base`, from which rt_sigreturn(2) restores `regs`, the
/// floating-point state `fp` (an empty one resets it) and the signal mask. The alternate signal stack
/// stays as it is.
pub fn signal_frame(regs: &Regs, fp: &[u8], mask: u64, base: Addr) -> Frame {
    let fp_at = FRAME_BYTES.next_multiple_of(FRAME_ALIGN as usize);
    let mut bytes = vec![0; fp_at];
    put(&mut bytes, UC, UC_FLAGS);
    // sigaltstack(2) refuses these flags, so rt_sigreturn(2) leaves the alternate stack alone.
    put32(&mut bytes, UC_STACK_FLAGS, 0x7f);
    let general = [
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ];
    for (i, value) in general.into_iter().enumerate() {
        put(&mut bytes, MCONTEXT + 8 * i, value);
    }
    // cs, gs, fs, ss as 16-bit fields.
    put(&mut bytes, MCONTEXT + 144, (regs.cs & 0xffff) | (regs.ss & 0xffff) << 48);
    put(&mut bytes, SIGMASK, mask);
    if fp.len() >= 512 {
        put(&mut bytes, FPSTATE, base.0 + fp_at as u64);
        let mut image = fp.to_vec();
        if fp.len() > 512 + 64 {
            // struct _fpx_sw_bytes tells the kernel which features the image holds. The regset has the
            // mask of features at the place of its first two fields.
            let mut features = [0; 8];
            features.copy_from_slice(&fp[SW_RESERVED..SW_RESERVED + 8]);
            put32(&mut image, SW_RESERVED, FP_XSTATE_MAGIC1);
            put32(&mut image, SW_RESERVED + 4, fp.len() as u32 + 4);
            image[SW_RESERVED + 8..SW_RESERVED + 16].copy_from_slice(&features);
            put32(&mut image, SW_RESERVED + 16, fp.len() as u32);
            image.extend(FP_XSTATE_MAGIC2.to_le_bytes());
        }
        bytes.extend(image);
    }
    // The frame begins with the return address of a handler, which the handler's `ret` has popped
    // before rt_sigreturn(2).
    Frame { bytes, sp_at: 8 }
}
