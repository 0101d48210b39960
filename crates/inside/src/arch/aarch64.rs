// SPDX-License-Identifier: Apache-2.0
//! AArch64.

use core::arch::{asm, naked_asm};

/// Numbers of system calls (asm-generic/unistd.h).
pub mod number {
    pub const FCNTL: usize = 25;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const PIPE2: usize = 59;
    pub const READ: usize = 63;
    pub const PPOLL: usize = 73;
    pub const EXIT_GROUP: usize = 94;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGPENDING: usize = 136;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const SOCKETPAIR: usize = 199;
    pub const SENDTO: usize = 206;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
    pub const WAIT4: usize = 260;
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

/// Makes clone(2): the child runs `work(data)` on the stack that ends at `stack`; `work` does not return.
/// Returns the child's pid or a negative errno.
///
/// # Safety
/// `stack` is aligned to 16 bytes, and nothing else uses the memory below it. `work` does only what a
/// child that shares its parent's memory may do.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_onto(
    flags: usize,
    stack: *mut u8,
    work: unsafe extern "C" fn(*mut u8) -> !,
    data: *mut u8,
) -> isize {
    naked_asm!(
        "mov x9, x2",   // save work
        "mov x10, x3",  // save data
        "mov x2, xzr",  // third argument: no address for the parent to store the child's thread id
        "mov x3, xzr",  // fourth argument: no TLS
        "mov x4, xzr",  // fifth argument: no address for the child's thread id either
        "mov x8, #220", // clone; flags in x0, stack in x1, as the caller passed them
        "svc 0",
        "cbz x0, 2f", // the child gets 0
        "ret",        // the parent returns the child's pid or a negative errno
        "2:",
        "mov x29, xzr", // the outermost frame has no caller
        "mov x0, x10",  // data is the argument
        "blr x9",       // work(data)
        "brk #1",       // not reached
    )
}

/// Sends SIGCONT to the calling thread, the first of its process. A tracer that has seized it then finds
/// it stopped at [`stop_address`].
#[unsafe(naked)]
pub extern "C" fn stop() {
    naked_asm!(
        "mov x8, #172", // getpid
        "svc 0",        // the process, in x0
        "mov x1, x0",   // its first thread
        "mov x2, #18",  // SIGCONT
        "mov x8, #131", // tgkill
        "svc 0",
        "ret", // `stop_address`: a seized thread stops before this instruction
    )
}

/// Size of the code in [`stop`] before its last instruction.
const STOP_BYTES: usize = 6 * 4;

/// Returns the address after the last system call in [`stop`].
pub fn stop_address() -> u64 {
    (stop as extern "C" fn() as usize + STOP_BYTES) as u64
}
