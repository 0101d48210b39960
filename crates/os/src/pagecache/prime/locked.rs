// SPDX-License-Identifier: Apache-2.0
//! Huge pages of a file held in memory: mapped read-only and locked (mlock(2)), so that the
//! kernel does not evict them. The lock ends with the mapping, and so with the process.

use hugelift_core::addr::{Addr, PageSize};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// Locked pages of one file; released when dropped.
#[derive(Debug, Default)]
pub struct Locked {
    runs: Vec<(*mut c_void, usize)>,
    bytes: u64,
}

impl Locked {
    /// Locks the huge pages of `file` at these offsets, multiples of `page`, as far as the
    /// kernel lets us; and its answer where it does not: ENOMEM beyond RLIMIT_MEMLOCK, EPERM
    /// where that is 0.
    pub fn new(file: &File, offsets: &[u64], page: PageSize) -> (Locked, Option<io::Error>) {
        let mut locked = Locked::default();
        for run in offsets.chunk_by(|a, b| a.checked_add(page.bytes()) == Some(*b)) {
            if let Err(error) = locked.add(file, run[0], run.len() as u64 * page.bytes(), page) {
                return (locked, Some(error));
            }
        }
        (locked, None)
    }

    /// How much is locked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, file: &File, offset: u64, bytes: u64, page: PageSize) -> io::Result<()> {
        let too_much = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let (len, spare) = (usize::try_from(bytes).map_err(too_much)?, page.bytes() as usize);
        let offset = libc::off_t::try_from(offset).map_err(too_much)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), len + spare, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Kept whole: the pages lie somewhere inside, aligned as they are in the file.
        self.runs.push((start, len + spare));
        let at = Addr(start as u64).align_up(page).ok_or(io::ErrorKind::OutOfMemory)?.0 as *mut c_void;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: mmap(2) over a part of our own reservation, then mlock(2) of that.
        let done = unsafe {
            libc::mmap(at, len, libc::PROT_READ, flags, file.as_raw_fd(), offset) != libc::MAP_FAILED
                && libc::mlock(at, len) == 0
        };
        if !done {
            let error = io::Error::last_os_error();
            self.release_last();
            return Err(error);
        }
        self.bytes += bytes;
        Ok(())
    }

    fn release_last(&mut self) {
        if let Some((start, len)) = self.runs.pop() {
            // SAFETY: munmap(2) of a reservation made by `add`, of which no reference was given out.
            unsafe { libc::munmap(start, len) };
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        while !self.runs.is_empty() {
            self.release_last();
        }
    }
}
