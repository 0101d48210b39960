// SPDX-License-Identifier: Apache-2.0
//! Huge pages of a file held in memory: mapped read-only and locked (mlock(2)), so that the
//! kernel does not evict them. The lock ends with the mapping, and so with the process.

use hugelift_core::addr::PageSize;
use hugelift_linux::proc::reservation::Reservation;
use std::fs::File;
use std::io;

/// Locked pages of one file; released when dropped.
#[derive(Debug, Default)]
pub struct Locked {
    runs: Vec<Reservation>,
    bytes: u64,
}

impl Locked {
    /// Locks the huge pages of `file` at these offsets, multiples of `page`, as far as the kernel allows. The
    /// error is the first refusal: ENOMEM beyond RLIMIT_MEMLOCK, EPERM where that is 0.
    pub fn new(file: &File, offsets: &[u64], page: PageSize) -> (Locked, Option<io::Error>) {
        let mut locked = Locked::default();
        for run in offsets.chunk_by(|a, b| a.checked_add(page.bytes()) == Some(*b)) {
            if let Err(error) = locked.add(file, run[0], run.len() as u64 * page.bytes(), page) {
                return (locked, Some(error));
            }
        }
        (locked, None)
    }

    /// Returns how many bytes are locked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, file: &File, offset: u64, bytes: u64, page: PageSize) -> io::Result<()> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut run = Reservation::new(len, page)?;
        let at = run.map_file(0, len, libc::PROT_READ, libc::MAP_SHARED, file, offset)?;
        // SAFETY: mlock(2) of a mapping of our own.
        if unsafe { libc::mlock(at.cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.runs.push(run);
        self.bytes += bytes;
        Ok(())
    }
}
