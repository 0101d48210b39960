// SPDX-License-Identifier: Apache-2.0
//! AArch64.

use core::arch::asm;

/// Numbers of system calls (asm-generic/unistd.h).
pub mod number {
    pub const FCNTL: usize = 25;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const PIPE2: usize = 59;
    pub const READ: usize = 63;
    pub const EXIT_GROUP: usize = 94;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const GETPID: usize = 172;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
    pub const PROCESS_VM_READV: usize = 270;
}

/// Makes a system call; returns a value or a negative errno.
///
/// # Safety
/// The arguments satisfy what the call's man page demands.
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: syscall(2): the kernel changes x0 alone.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    result
}
