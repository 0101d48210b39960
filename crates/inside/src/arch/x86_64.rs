// SPDX-License-Identifier: Apache-2.0
//! x86-64.

use core::arch::asm;

/// Numbers of system calls (asm/unistd_64.h).
pub mod number {
    pub const READ: usize = 0;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const MREMAP: usize = 25;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const FCNTL: usize = 72;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const PIPE2: usize = 293;
    pub const PROCESS_VM_READV: usize = 310;
}

/// Makes a system call; returns a value or a negative errno.
///
/// # Safety
/// The arguments satisfy what the call's man page demands.
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: syscall(2): the kernel changes rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}
