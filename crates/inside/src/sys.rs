// SPDX-License-Identifier: Apache-2.0
//! System calls, without a C library.

use crate::arch::{number, syscall};
use core::ffi::{CStr, c_char, c_int};

pub const EINTR: isize = 4;

pub const SIG_BLOCK_ALL: u64 = u64::MAX;
const SIG_SETMASK: usize = 2;
pub const SIGCONT: usize = 18;

const AF_UNIX: usize = 1;
const SOCK_STREAM: usize = 1;
const SOCK_CLOEXEC: usize = 0o2_000_000;
const MSG_NOSIGNAL: usize = 0x4000;
const F_SETFD: usize = 2;
const F_DUPFD_CLOEXEC: usize = 1030;
const WALL: usize = 0x4000_0000;
const PR_GET_CHILD_SUBREAPER: usize = 37;
const PR_SET_PTRACER: usize = 0x5961_6d61;

pub const PROT_READ: usize = 1;
pub const PROT_READ_WRITE: usize = 3;
pub const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
pub const MAP_NORESERVE: usize = 0x4000;

pub const MADV_HUGEPAGE: usize = 14;
pub const MADV_POPULATE_WRITE: usize = 23;
const MAP_HUGETLB: usize = 0x40000;
const MAP_HUGE_SHIFT: u32 = 26;
const MREMAP_MAYMOVE_FIXED: usize = 3;
const AT_FDCWD: usize = (-100isize).cast_unsigned();
const O_CLOEXEC: usize = 0o2_000_000;

/// A system call's result: a value, or the errno.
pub type Result = core::result::Result<usize, isize>;

fn check(value: isize) -> Result {
    if (-4095..0).contains(&value) { Err(-value) } else { Ok(value.cast_unsigned()) }
}

/// Makes a system call.
///
/// # Safety
/// The arguments satisfy what the call's man page demands.
pub unsafe fn call(number: usize, args: [usize; 6]) -> Result {
    // SAFETY: the caller's promise.
    check(unsafe { syscall(number, args) })
}

pub fn getpid() -> usize {
    // SAFETY: getpid(2) takes nothing.
    unsafe { call(number::GETPID, [0; 6]) }.unwrap_or(0)
}

pub fn close(fd: usize) {
    // SAFETY: close(2) of a descriptor of ours.
    let _ = unsafe { call(number::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

/// Calls read(2) until `buffer` is full; returns whether that succeeded.
pub fn read_all(fd: usize, buffer: &mut [u8]) -> bool {
    let mut at = 0;
    while at < buffer.len() {
        let args = [fd, buffer[at..].as_mut_ptr() as usize, buffer.len() - at, 0, 0, 0];
        // SAFETY: read(2) into the buffer's own bytes.
        match unsafe { call(number::READ, args) } {
            Ok(0) => return false,
            Ok(n) => at += n,
            Err(EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Calls read(2); returns how many bytes were read, 0 at the end.
pub fn read(fd: usize, buffer: &mut [u8]) -> Result {
    loop {
        // SAFETY: read(2) into the buffer's own bytes.
        match unsafe { call(number::READ, [fd, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) } {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Opens a file to read it.
pub fn open(path: &CStr) -> Option<usize> {
    // SAFETY: openat(2) reads the path.
    unsafe { call(number::OPENAT, [AT_FDCWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) }.ok()
}

/// Makes a pipe; returns the end to read and the end to write, numbered above the standard files.
pub fn pipe() -> Option<(usize, usize)> {
    let mut pair: [c_int; 2] = [-1; 2];
    // SAFETY: pipe2(2) writes two ints.
    unsafe { call(number::PIPE2, [pair.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0]) }.ok()?;
    raised(pair)
}

/// Calls send(2) without SIGPIPE; returns whether all bytes were sent.
pub fn send(fd: usize, bytes: &[u8]) -> bool {
    let args = [fd, bytes.as_ptr() as usize, bytes.len(), MSG_NOSIGNAL, 0, 0];
    // SAFETY: sendto(2) reads the given bytes.
    let sent = unsafe { call(number::SENDTO, args) };
    sent == Ok(bytes.len())
}

/// Makes a pair of connected sockets, numbered above the standard files.
pub fn socketpair() -> Option<(usize, usize)> {
    let mut pair: [c_int; 2] = [-1; 2];
    let args = [AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.as_mut_ptr() as usize, 0, 0];
    // SAFETY: socketpair(2) writes two ints.
    unsafe { call(number::SOCKETPAIR, args) }.ok()?;
    raised(pair)
}

/// Returns the same files under numbers that no program uses for its standard files.
fn raised(pair: [c_int; 2]) -> Option<(usize, usize)> {
    let [a, b] = pair.map(|fd| fd.cast_unsigned() as usize);
    let raised = [a, b].map(|fd| {
        // SAFETY: fcntl(2) with numbers.
        let raised = unsafe { call(number::FCNTL, [fd, F_DUPFD_CLOEXEC, 10, 0, 0, 0]) };
        close(fd);
        raised
    });
    match raised {
        [Ok(a), Ok(b)] => Some((a, b)),
        other => {
            other.into_iter().flatten().for_each(close);
            None
        }
    }
}

/// Leaves a descriptor open over execve(2).
pub fn keep_over_exec(fd: usize) {
    // SAFETY: fcntl(2) with numbers.
    let _ = unsafe { call(number::FCNTL, [fd, F_SETFD, 0, 0, 0, 0]) };
}

/// Waits until there is something to read, or the other end is closed, for `nanoseconds` at most, under
/// the signal mask `mask`. Returns `false` when the time is over, or if the call fails.
pub fn wait_readable(fd: usize, nanoseconds: u64, mask: u64) -> bool {
    const POLLIN: c_int = 1;
    let mut poll = [fd as c_int, POLLIN];
    // The kernel writes the time that is left into it.
    let mut left = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    loop {
        let args =
            [poll.as_mut_ptr() as usize, 1, left.as_mut_ptr() as usize, &raw const mask as usize, 8, 0];
        // SAFETY: ppoll(2) of one descriptor: struct pollfd is an int and two shorts.
        match unsafe { call(number::PPOLL, args) } {
            Err(EINTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Sets the calling thread's signal mask; returns the mask before.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let args = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads and writes 8 bytes each.
    let _ = unsafe { call(number::RT_SIGPROCMASK, args) };
    before
}

/// Returns the pending signals.
pub fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: rt_sigpending(2) writes 8 bytes.
    let _ = unsafe { call(number::RT_SIGPENDING, [&raw mut set as usize, 8, 0, 0, 0, 0]) };
    set
}

/// Removes a blocked signal from the pending ones, if it is pending.
pub fn take_signal(signal: usize) {
    let (set, now) = (1u64 << (signal - 1), [0u64; 2]);
    let args = [&raw const set as usize, 0, now.as_ptr() as usize, 8, 0, 0];
    // SAFETY: rt_sigtimedwait(2) reads the set and the time.
    let _ = unsafe { call(number::RT_SIGTIMEDWAIT, args) };
}

/// Waits for the end of a child, whichever signal its end sends.
pub fn wait_for(child: usize) {
    // SAFETY: wait4(2) may have no place for the status.
    while matches!(unsafe { call(number::WAIT4, [child, 0, WALL, 0, 0, 0]) }, Err(EINTR)) {}
}

pub fn is_subreaper() -> bool {
    let mut value: c_int = 0;
    // SAFETY: prctl(2), PR_GET_CHILD_SUBREAPER: writes one int.
    let _ = unsafe { call(number::PRCTL, [PR_GET_CHILD_SUBREAPER, &raw mut value as usize, 0, 0, 0, 0]) };
    value != 0
}

/// Lets a process trace us where Yama restricts it; 0 takes that back.
pub fn set_ptracer(pid: usize) {
    // SAFETY: prctl(2) with numbers. Without Yama it returns EINVAL.
    let _ = unsafe { call(number::PRCTL, [PR_SET_PTRACER, pid, 0, 0, 0, 0]) };
}

/// Maps anonymous private memory, readable and writable.
pub fn map(at: usize, bytes: usize, flags: usize) -> Result {
    let args = [at, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS | flags, usize::MAX, 0];
    // SAFETY: mmap(2); no caller passes MAP_FIXED.
    unsafe { call(number::MMAP, args) }
}

/// Returns the flags for memory from the pool of this page size.
pub fn hugetlb(page: usize) -> usize {
    MAP_HUGETLB | (page.trailing_zeros() as usize) << MAP_HUGE_SHIFT
}

/// Calls madvise(2); returns whether it succeeded.
pub fn advise(at: usize, bytes: usize, advice: usize) -> bool {
    loop {
        // SAFETY: none of the advices that are given here changes what memory holds.
        match unsafe { call(number::MADVISE, [at, bytes, advice, 0, 0, 0]) } {
            Err(EINTR) => {}
            other => return other.is_ok(),
        }
    }
}

/// Calls mprotect(2); returns whether it succeeded.
///
/// # Safety
/// Nothing uses the range in a way that `prot` forbids.
pub unsafe fn protect(at: usize, bytes: usize, prot: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call(number::MPROTECT, [at, bytes, prot, 0, 0, 0]) }.is_ok()
}

/// Copies memory of this process; returns whether all of it could be read. (A load from unmapped memory
/// would raise a signal.)
///
/// # Safety
/// `bytes` from `to` on are mapped, and the caller's alone.
pub unsafe fn copy_own(from: usize, to: usize, bytes: usize) -> bool {
    let (local, remote) = ([to, bytes], [from, bytes]);
    let args = [getpid(), local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0];
    // SAFETY: process_vm_readv(2) writes where the caller says.
    let copied = unsafe { call(number::PROCESS_VM_READV, args) };
    copied == Ok(bytes)
}

/// Moves a mapping of ours over another of the same length and content.
pub fn move_over(from: usize, bytes: usize, to: usize) -> bool {
    // SAFETY: mremap(2): what is replaced has been copied.
    unsafe { call(number::MREMAP, [from, bytes, bytes, MREMAP_MAYMOVE_FIXED, to, 0]) }.is_ok()
}

/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(at: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        let _ = unsafe { call(number::MUNMAP, [at, bytes, 0, 0, 0, 0]) };
    }
}

/// Calls execve(2). Returns only if that fails: the errno.
///
/// # Safety
/// `argv` and `envp` are arrays of strings, as execve(2) takes them.
pub unsafe fn execve(path: &CStr, argv: *const *const c_char, envp: *const *const c_char) -> isize {
    let args = [path.as_ptr() as usize, argv as usize, envp as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { call(number::EXECVE, args) }.err().unwrap_or(0)
}

pub fn exit() -> ! {
    loop {
        // SAFETY: exit_group(2) does not return.
        let _ = unsafe { call(number::EXIT_GROUP, [0; 6]) };
    }
}
