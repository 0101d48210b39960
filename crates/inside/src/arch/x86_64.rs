// SPDX-License-Identifier: Apache-2.0
//! x86-64.

use core::arch::{asm, naked_asm};

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
    pub const SENDTO: usize = 44;
    pub const SOCKETPAIR: usize = 53;
    pub const EXECVE: usize = 59;
    pub const WAIT4: usize = 61;
    pub const FCNTL: usize = 72;
    pub const RT_SIGPENDING: usize = 127;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const PRCTL: usize = 157;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const PPOLL: usize = 271;
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
        "mov r8, rdx",    // save work: clone(2)'s fifth argument, the TLS, which it ignores here
        "mov r9, rcx",    // save data: the kernel keeps r8 and r9
        "xor edx, edx",   // third argument: no address for the parent to store the child's thread id
        "xor r10d, r10d", // fourth argument: none for the child either
        "mov eax, 56",    // clone; flags in rdi, stack in rsi, as the caller passed them
        "syscall",
        "test rax, rax", // the child gets 0
        "jz 2f",
        "ret", // the parent returns the child's pid or a negative errno
        "2:",
        "xor ebp, ebp", // the outermost frame has no caller
        "mov rdi, r9",  // data is the argument
        "call r8",      // work(data)
        "ud2",          // not reached
    )
}

/// Sends SIGCONT to the calling thread, the first of its process. A tracer that has seized it then finds
/// it stopped at [`stop_address`]. The red zone below its stack pointer holds nothing.
#[unsafe(naked)]
pub extern "C" fn stop() {
    naked_asm!(
        "mov eax, 39", // getpid
        "syscall",
        "mov edi, eax", // the process
        "mov esi, eax", // its first thread
        "mov edx, 18",  // SIGCONT
        "mov eax, 234", // tgkill
        "syscall",
        "ret", // `stop_address`: a seized thread stops before this instruction
    )
}

/// Size of the code in [`stop`] before its last instruction.
const STOP_BYTES: usize = 5 + 2 + 2 + 2 + 5 + 5 + 2;

/// Returns the address after the last system call in [`stop`].
pub fn stop_address() -> u64 {
    (stop as extern "C" fn() as usize + STOP_BYTES) as u64
}
