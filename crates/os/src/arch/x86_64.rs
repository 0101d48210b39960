// SPDX-License-Identifier: Apache-2.0
//! x86-64.

use super::{FRAME_ALIGN, Frame, put, put32};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;

/// As ELF headers name it.
pub const MACHINE: Machine = Machine::X86_64;

/// The System V ABI lets leaf functions use 128 bytes below the stack pointer.
pub const RED_ZONE: u64 = 128;

/// `PROT_BTI`; 0 where there is no such protection.
pub const PROT_BTI: u64 = 0;

/// Whether a CPU of these features (`AT_HWCAP2`) honours [`PROT_BTI`]: none does.
pub fn has_bti(_hwcap2: u64) -> bool {
    false
}

/// `NT_X86_XSTATE`
pub const FP_REGSET: usize = 0x202;

/// `struct user_regs_struct` (sys/user.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the registers' own names
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// Direction flag: string instructions run downwards.
const EFLAGS_DF: u64 = 1 << 10;

impl Regs {
    /// Program counter.
    pub fn pc(&self) -> Addr {
        Addr(self.rip)
    }

    /// Stack pointer.
    pub fn sp(&self) -> Addr {
        Addr(self.rsp)
    }

    /// Registers that run the code at `pc` on the stack at `sp`, not as the restart of an
    /// interrupted system call.
    pub fn at(mut self, pc: Addr, sp: Addr) -> Regs {
        self.rip = pc.0;
        self.rsp = sp.0;
        self.orig_rax = u64::MAX;
        self
    }

    /// Loads a system call (syscall(2)).
    pub fn with_syscall(mut self, number: i64, args: [u64; 6]) -> Regs {
        self.rax = number as u64;
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
        self
    }

    /// Loads the copy loop of [`STUB`]; `number` is the system call behind it.
    pub fn with_copy(mut self, from: Addr, to: Addr, bytes: u64, number: i64) -> Regs {
        (self.rsi, self.rdi, self.rcx) = (from.0, to.0, bytes);
        self.rax = number as u64;
        self.eflags &= !EFLAGS_DF;
        self
    }

    /// Loads the calls that [`BATCH`] makes.
    pub fn with_batch(mut self, list: Addr) -> Regs {
        self.rbx = list.0;
        self
    }

    /// The call that [`BATCH`] is making.
    pub fn in_batch(&self) -> Addr {
        Addr(self.rbx)
    }

    /// The loaded system call: its number and three of its arguments.
    pub fn call(&self) -> [u64; 4] {
        [self.rax, self.rdi, self.rsi, self.rdx]
    }

    /// What a system call returned: a value, or a negative errno.
    pub fn result(&self) -> i64 {
        self.rax as i64
    }

    /// Registers of a program right behind execve(2), seen at its system-call stop.
    pub fn after_exec(self) -> Regs {
        self
    }
}

/// Calls `code` with `argument` on the stack that ends at `top`, and comes back to the stack of now.
///
/// # Safety
/// `top` is aligned to 16 bytes, and the memory below it is writable, large enough for `code`, and
/// used by nothing else meanwhile.
pub unsafe fn call_on_stack(
    top: *mut libc::c_void,
    code: extern "C" fn(*mut libc::c_void),
    argument: *mut libc::c_void,
) {
    // SAFETY: r12 belongs to the caller of a function (System V ABI), so it keeps the old stack
    // pointer over the call; all registers that `code` may change are declared.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {code}",
            "mov rsp, r12",
            top = in(reg) top,
            code = in(reg) code,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// `rep movsb; syscall; mov $rt_sigreturn, %eax; syscall`
pub const STUB: [u8; 11] = [0xf3, 0xa4, 0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];
/// Copies, then makes a system call, then goes home.
pub const COPY_AT: u64 = 0;
/// Makes a system call, then goes home.
pub const SYSCALL_AT: u64 = 2;
/// Goes home.
pub const RETURN_AT: u64 = 4;

/// Makes one system call after the other, from a list of words: a number and six arguments each,
/// a negative number at the end. Each result takes the place of its number. Then goes home.
///
/// `1: mov (%rbx), %rax; test %rax, %rax; js 2f; mov 8(%rbx), %rdi; mov 16(%rbx), %rsi;
/// mov 24(%rbx), %rdx; mov 32(%rbx), %r10; mov 40(%rbx), %r8; mov 48(%rbx), %r9; syscall;
/// mov %rax, (%rbx); add $56, %rbx; jmp 1b; 2: mov $rt_sigreturn, %eax; syscall`
#[rustfmt::skip]
pub const BATCH: [u8; 50] = [
    0x48, 0x8b, 0x03, 0x48, 0x85, 0xc0, 0x78, 0x23,
    0x48, 0x8b, 0x7b, 0x08, 0x48, 0x8b, 0x73, 0x10, 0x48, 0x8b, 0x53, 0x18,
    0x4c, 0x8b, 0x53, 0x20, 0x4c, 0x8b, 0x43, 0x28, 0x4c, 0x8b, 0x4b, 0x30,
    0x0f, 0x05, 0x48, 0x89, 0x03, 0x48, 0x83, 0xc3, 0x38, 0xeb, 0xd5,
    0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05,
];

/// Bytes that [`entry_stub`] takes.
pub const ENTRY_STUB_BYTES: usize = 64;

/// Code for a dynamic program's entry point: puts `entry` back into the word of the
/// auxiliary vector at `slot`, sends itself SIGCONT, and goes on at `entry`.
///
/// At this point the ABI gives meaning to `%rsp` and `%rdx` alone; `%rdx` is kept in `%r8`.
pub fn entry_stub(entry: Addr, slot: Addr) -> Vec<u8> {
    let mut code = Vec::with_capacity(ENTRY_STUB_BYTES);
    code.extend([0x49, 0x89, 0xd0]); // mov %rdx, %r8
    code.extend([0x48, 0xb8]); // movabs $entry, %rax
    code.extend(entry.0.to_le_bytes());
    code.extend([0x48, 0xa3]); // movabs %rax, slot
    code.extend(slot.0.to_le_bytes());
    code.extend([0xb8, 39, 0, 0, 0]); // mov $getpid, %eax
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0x89, 0xc7, 0x89, 0xc6]); // mov %eax, %edi; mov %eax, %esi
    code.extend([0xba, 18, 0, 0, 0]); // mov $SIGCONT, %edx
    code.extend([0xb8, 234, 0, 0, 0]); // mov $tgkill, %eax
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0x4c, 0x89, 0xc2]); // mov %r8, %rdx
    code.extend([0x48, 0xb8]); // movabs $entry, %rax
    code.extend(entry.0.to_le_bytes());
    code.extend([0xff, 0xe0]); // jmp *%rax
    code
}

/// The registers that [`entry_stub`] would have at `entry`, from those inside it.
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
// The area of the fxsave image that software may use (struct _fpx_sw_bytes).
const SW_RESERVED: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
const UC_FLAGS: u64 = 7;

/// Where in a frame the program counter is.
pub const FRAME_PC: u64 = (MCONTEXT + 8 * 16) as u64;

/// A frame at `base` from which `rt_sigreturn` restores `regs`, the floating-point state
/// `fp` (reset if empty) and the signal mask. The alternate signal stack is left alone.
pub fn signal_frame(regs: &Regs, fp: &[u8], mask: u64, base: Addr) -> Frame {
    let fp_at = FRAME_BYTES.next_multiple_of(FRAME_ALIGN as usize);
    let mut bytes = vec![0; fp_at];
    put(&mut bytes, UC, UC_FLAGS);
    // Flags that sigaltstack(2) refuses: the frame then says nothing about the stack.
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
            // The kernel wants to know which features the image holds; the regset has the
            // mask where the frame has these fields.
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
    // The frame starts with the handler's return address, already popped at this point.
    Frame { bytes, sp_at: 8 }
}
