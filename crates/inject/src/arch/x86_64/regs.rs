// SPDX-License-Identifier: Apache-2.0
//! The registers of x86-64.

use hugelift_core::addr::Addr;

/// Bytes of the instruction that makes a system call.
pub const SYSCALL_BYTES: u64 = 2;

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
    /// Returns the program counter.
    pub fn pc(&self) -> Addr {
        Addr(self.rip)
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> Addr {
        Addr(self.rsp)
    }

    /// Returns registers that run the code at `pc` on the stack at `sp`. The kernel does not take the
    /// change of `pc` for the restart of an interrupted system call: `orig_rax` is -1.
    pub fn at(mut self, pc: Addr, sp: Addr) -> Regs {
        self.rip = pc.0;
        self.rsp = sp.0;
        self.orig_rax = u64::MAX;
        self
    }

    /// Loads the number and the arguments of a system call (syscall(2)).
    pub fn with_syscall(mut self, number: i64, args: [u64; 6]) -> Regs {
        self.rax = number as u64;
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
        self
    }

    /// Returns the fourth argument of a system call.
    pub fn fourth_argument(&self) -> u64 {
        self.r10
    }

    /// Loads the fourth argument of a system call alone.
    pub fn with_fourth_argument(mut self, value: u64) -> Regs {
        self.r10 = value;
        self
    }

    /// Loads the arguments of the copy at [`super::COPY_AT`] in [`super::STUB`]; `number` is the system call that
    /// follows it.
    pub fn with_copy(mut self, from: Addr, to: Addr, bytes: u64, number: i64) -> Regs {
        (self.rsi, self.rdi, self.rcx) = (from.0, to.0, bytes);
        self.rax = number as u64;
        self.eflags &= !EFLAGS_DF;
        self
    }

    /// Loads the address of the list of calls that [`super::BATCH`] makes.
    pub fn with_batch(mut self, list: Addr) -> Regs {
        self.rbx = list.0;
        self
    }

    /// Returns the address of the list entry whose call [`super::BATCH`] is making.
    pub fn in_batch(&self) -> Addr {
        Addr(self.rbx)
    }

    /// Returns the loaded system call: its number and its first three arguments.
    pub fn call(&self) -> [u64; 4] {
        [self.rax, self.rdi, self.rsi, self.rdx]
    }

    /// Returns whether the registers are those of a thread in a system call.
    pub fn is_in_call(&self) -> bool {
        self.orig_rax as i64 >= 0
    }

    /// Returns the result of a system call: a value, or a negative errno.
    pub fn result(&self) -> i64 {
        self.rax as i64
    }

    /// Returns the registers with which a program starts, from those at the system-call stop at the
    /// end of its execve(2).
    pub fn after_exec(self) -> Regs {
        self
    }
}
