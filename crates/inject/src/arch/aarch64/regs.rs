// SPDX-License-Identifier: Apache-2.0
//! The registers of AArch64.

use hugelift_core::addr::Addr;

/// Bytes of the instruction that makes a system call.
pub const SYSCALL_BYTES: u64 = 4;

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

/// `PSTATE.BTYPE`: not 0 right after an indirect branch, whose target must then be a `bti`.
const PSTATE_BTYPE: u64 = 0b11 << 10;

impl Regs {
    /// Returns the program counter.
    pub fn pc(&self) -> Addr {
        Addr(self.pc)
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> Addr {
        Addr(self.sp)
    }

    /// Returns registers that run the code at `pc` on the stack at `sp`.
    pub fn at(mut self, pc: Addr, sp: Addr) -> Regs {
        self.pc = pc.0;
        self.sp = sp.0;
        self.pstate &= !PSTATE_BTYPE;
        self
    }

    /// Loads the number and the arguments of a system call (syscall(2)).
    pub fn with_syscall(mut self, number: i64, args: [u64; 6]) -> Regs {
        self.x[8] = number as u64;
        self.x[..6].copy_from_slice(&args);
        self
    }

    /// Returns the fourth argument of a system call.
    pub fn fourth_argument(&self) -> u64 {
        self.x[3]
    }

    /// Loads the fourth argument of a system call alone.
    pub fn with_fourth_argument(mut self, value: u64) -> Regs {
        self.x[3] = value;
        self
    }

    /// Loads the arguments of the copy at [`super::COPY_AT`] in [`super::STUB`]; `number` is the system call that
    /// follows it. `bytes` is a multiple of 16.
    pub fn with_copy(mut self, from: Addr, to: Addr, bytes: u64, number: i64) -> Regs {
        (self.x[0], self.x[1], self.x[2]) = (to.0, from.0, bytes);
        self.x[8] = number as u64;
        self
    }

    /// Loads the address of the list of calls that [`super::BATCH`] makes.
    pub fn with_batch(mut self, list: Addr) -> Regs {
        self.x[19] = list.0;
        self
    }

    /// Returns the address of the list entry whose call [`super::BATCH`] is making.
    pub fn in_batch(&self) -> Addr {
        Addr(self.x[19])
    }

    /// Returns the loaded system call: its number and its first three arguments.
    pub fn call(&self) -> [u64; 4] {
        [self.x[8], self.x[0], self.x[1], self.x[2]]
    }

    /// Returns true: the registers do not show whether the thread is in a system call.
    pub fn is_in_call(&self) -> bool {
        true
    }

    /// Returns the result of a system call: a value, or a negative errno.
    pub fn result(&self) -> i64 {
        self.x[0] as i64
    }

    /// Returns the registers with which a program starts, from those at the system-call stop at the
    /// end of its execve(2). At such a stop the kernel shows in `x7` whether it is an entry or an exit,
    /// and restores `x7` afterwards.
    pub fn after_exec(mut self) -> Regs {
        self.x[7] = 0;
        self
    }
}
