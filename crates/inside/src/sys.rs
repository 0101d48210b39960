// SPDX-License-Identifier: Apache-2.0
//! System calls, without a C library.

use crate::arch::{number, syscall};
use core::ffi::{CStr, c_int};

pub const EINTR: isize = 4;

pub const SIG_BLOCK_ALL: u64 = u64::MAX;
const SIG_SETMASK: usize = 2;

const F_DUPFD_CLOEXEC: usize = 1030;

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
    let raised = pair.map(|fd| {
        let fd = fd.cast_unsigned() as usize;
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

/// Sets the calling thread's signal mask; returns the mask before.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let args = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads and writes 8 bytes each.
    let _ = unsafe { call(number::RT_SIGPROCMASK, args) };
    before
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

pub fn exit() -> ! {
    loop {
        // SAFETY: exit_group(2) does not return.
        let _ = unsafe { call(number::EXIT_GROUP, [0; 6]) };
    }
}
