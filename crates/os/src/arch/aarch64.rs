// SPDX-License-Identifier: Apache-2.0
//! AArch64.

use super::{Frame, put, put32};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;

/// As ELF headers name it.
pub const MACHINE: Machine = Machine::AArch64;

/// AAPCS64 has no red zone.
pub const RED_ZONE: u64 = 0;

/// `PROT_BTI`; 0 where there is no such protection.
pub const PROT_BTI: u64 = 0x10;

/// Whether a CPU of these features (`AT_HWCAP2`) honours [`PROT_BTI`].
pub fn has_bti(hwcap2: u64) -> bool {
    const HWCAP2_BTI: u64 = 1 << 17;
    hwcap2 & HWCAP2_BTI != 0
}

/// `NT_PRFPREG`
pub const FP_REGSET: usize = 2;

/// `struct user_pt_regs` (asm/ptrace.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the registers' own names
pub struct Regs {
    pub x: [u64; 31],
    pub sp: u64,
    pub pc: u64,
    pub pstate: u64,
}

/// `PSTATE.BTYPE`: the last instruction was an indirect branch, and must meet a `bti`.
const PSTATE_BTYPE: u64 = 0b11 << 10;

impl Regs {
    /// Program counter.
    pub fn pc(&self) -> Addr {
        Addr(self.pc)
    }

    /// Stack pointer.
    pub fn sp(&self) -> Addr {
        Addr(self.sp)
    }

    /// Registers that run the code at `pc` on the stack at `sp`.
    pub fn at(mut self, pc: Addr, sp: Addr) -> Regs {
        self.pc = pc.0;
        self.sp = sp.0;
        self.pstate &= !PSTATE_BTYPE;
        self
    }

    /// Loads a system call (syscall(2)).
    pub fn with_syscall(mut self, number: i64, args: [u64; 6]) -> Regs {
        self.x[8] = number as u64;
        self.x[..6].copy_from_slice(&args);
        self
    }

    /// Loads the copy loop of [`STUB`]; `number` is the system call behind it.
    /// `bytes` is a multiple of 16.
    pub fn with_copy(mut self, from: Addr, to: Addr, bytes: u64, number: i64) -> Regs {
        (self.x[0], self.x[1], self.x[2]) = (to.0, from.0, bytes);
        self.x[8] = number as u64;
        self
    }

    /// Loads the calls that [`BATCH`] makes.
    pub fn with_batch(mut self, list: Addr) -> Regs {
        self.x[19] = list.0;
        self
    }

    /// The call that [`BATCH`] is making.
    pub fn in_batch(&self) -> Addr {
        Addr(self.x[19])
    }

    /// The loaded system call: its number and three of its arguments.
    pub fn call(&self) -> [u64; 4] {
        [self.x[8], self.x[0], self.x[1], self.x[2]]
    }

    /// What a system call returned: a value, or a negative errno.
    pub fn result(&self) -> i64 {
        self.x[0] as i64
    }

    /// Registers of a program right behind execve(2), seen at its system-call stop, where
    /// the kernel shows the kind of stop in `x7` (and gives it back afterwards).
    pub fn after_exec(mut self) -> Regs {
        self.x[7] = 0;
        self
    }
}

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

const SVC: u32 = 0xd400_0001;

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
    // SAFETY: x20 belongs to the caller of a function (AAPCS64), so it keeps the old stack pointer
    // over the call; all registers that `code` may change are declared.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {code}",
            "mov sp, x20",
            top = in(reg) top,
            code = in(reg) code,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

/// `1: ldp x3,x4,[x1],#16; stp x3,x4,[x0],#16; subs x2,x2,#16; b.ne 1b; svc #0;
/// mov x8,#rt_sigreturn; svc #0`
pub const STUB: [u8; 28] = code([0xa8c1_1023, 0xa881_1003, 0xf100_4042, 0x54ff_ffa1, SVC, 0xd280_1168, SVC]);
/// Copies, then makes a system call, then goes home.
pub const COPY_AT: u64 = 0;
/// Makes a system call, then goes home.
pub const SYSCALL_AT: u64 = 16;
/// Goes home.
pub const RETURN_AT: u64 = 20;

/// Makes one system call after the other, from a list of words: a number and six arguments each,
/// a negative number at the end. Each result takes the place of its number. Then goes home.
///
/// `1: ldr x8,[x19]; tbnz x8,#63,2f; ldp x0,x1,[x19,#8]; ldp x2,x3,[x19,#24]; ldp x4,x5,[x19,#40];
/// svc #0; str x0,[x19],#56; b 1b; 2: mov x8,#rt_sigreturn; svc #0`
pub const BATCH: [u8; 40] = code([
    0xf940_0268,
    0xb7f8_00e8,
    0xa940_8660,
    0xa941_8e62,
    0xa942_9664,
    SVC,
    0xf803_8660,
    0x17ff_fff9,
    0xd280_1168,
    SVC,
]);

/// Bytes that [`entry_stub`] takes.
pub const ENTRY_STUB_BYTES: usize = 72;

/// Code for a dynamic program's entry point: puts `entry` back into the word of the
/// auxiliary vector at `slot`, sends itself SIGCONT, and goes on at `entry`.
///
/// At this point the ABI gives meaning to `sp` and `x0` alone; `x0` is kept in `x9`.
pub fn entry_stub(entry: Addr, slot: Addr) -> Vec<u8> {
    let words = [
        0xd503_245f_u32, // bti c: the loader gets here by an indirect branch
        0xaa00_03e9,     // mov x9, x0
        0x5800_0180,     // ldr x0, entry (12 words on)
        0x5800_01a1,     // ldr x1, slot (13 words on)
        0xf900_0020,     // str x0, [x1]
        0xd280_1588,     // mov x8, #getpid
        SVC,
        0xaa00_03e1, // mov x1, x0
        0xd280_0242, // mov x2, #SIGCONT
        0xd280_1068, // mov x8, #tgkill
        SVC,
        0xaa09_03e0, // mov x0, x9
        0x5800_0050, // ldr x16, entry (2 words on)
        0xd61f_0200, // br x16
    ];
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    out.extend(entry.0.to_le_bytes());
    out.extend(slot.0.to_le_bytes());
    out
}

/// The registers that [`entry_stub`] would have at `entry`, from those inside it.
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

/// Where in a frame the program counter is.
pub const FRAME_PC: u64 = (MCONTEXT + 8 + 8 * 32) as u64;

/// A frame at `base` from which `rt_sigreturn` restores `regs`, the floating-point state
/// `fp` (zero if empty) and the signal mask. The alternate signal stack is left alone.
pub fn signal_frame(regs: &Regs, fp: &[u8], mask: u64, _base: Addr) -> Frame {
    let mut bytes = vec![0; FRAME_BYTES];
    // Flags that sigaltstack(2) refuses: the frame then says nothing about the stack.
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
