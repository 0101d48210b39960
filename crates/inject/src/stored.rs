// SPDX-License-Identifier: Apache-2.0
//! Maps files of the store in the target: it opens, maps and closes them for many spans in one round trip.

use crate::batch::{Batch, BatchResults, errno, fail};
use crate::calls::{Calls as _, FILE_COPY, mremap_call, prot_bits, refused};
use crate::remote::Remote;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::target::{Fault, MapStored};
use hugelift_linux::proc::procfs::Process;
use nix::sys::stat::fstat;
use std::os::fd::AsRawFd;

/// The number of spans whose calls fit into one batch.
const AT_ONCE: usize = 8;
const OPEN: &str = "openat of a file of the store";
const MMAP: &str = "mmap of a file";

/// The indexes of a copy's calls in a batch.
struct Calls {
    open: usize,
    fstat: usize,
    mmap: usize,
    /// The address that fstat(2) writes to.
    stat: u64,
}

impl Remote {
    /// Does the work of [`Target::map_stored`].
    pub(crate) fn map_copies(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        copies.chunks(AT_ONCE).flat_map(|some| self.map_some(some)).collect()
    }

    /// Does the work of [`Target::move_all`].
    pub(crate) fn move_mappings(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        moves.chunks(AT_ONCE).flat_map(|some| self.move_some(some)).collect()
    }

    fn map_some(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        // Each file is closed before the next is opened, so each gets the same descriptor. No other thread
        // runs that could take it.
        let fd = match Process::new(self.pid.cast_unsigned()).next_descriptor() {
            Ok(fd) => fd,
            Err(error) => return fail(copies.len(), &refused(OPEN, Range::default(), &error)),
        };
        let mut batch = self.batch();
        let calls: Vec<Calls> = copies.iter().map(|copy| self.add_copy(&mut batch, copy, fd)).collect();
        let made = match self.make(batch) {
            Ok(made) => made,
            Err(error) => return fail(copies.len(), &Fault::Lost(error.to_string())),
        };
        copies.iter().zip(&calls).map(|(copy, calls)| self.check_copy(copy, calls, &made, fd)).collect()
    }

    /// Adds the calls that map `copy`.
    fn add_copy(&self, batch: &mut Batch, copy: &MapStored, fd: u64) -> Calls {
        // By this process's descriptor, not by a path: that file was verified.
        let file = self.stored.get(copy.entry).map_or(-1, |file| file.as_raw_fd());
        let path = batch.add_bytes(format!("/proc/{}/fd/{file}\0", std::process::id()).as_bytes());
        let stat = batch.add_bytes(&[0; size_of::<libc::stat>()]);
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let open = batch.add_call(libc::SYS_openat, [libc::AT_FDCWD as i64 as u64, path, flags, 0, 0, 0]);
        let fstat = batch.add_call(libc::SYS_fstat, [fd, stat, 0, 0, 0, 0]);
        let flags = (FILE_COPY | libc::MAP_FIXED_NOREPLACE) as u64;
        let Range { start, .. } = copy.range;
        let args = [start.0, copy.range.len(), prot_bits(copy.prot), flags, fd, copy.offset];
        let mmap = batch.add_call(libc::SYS_mmap, args);
        batch.add_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        Calls { open, fstat, mmap, stat }
    }

    /// Returns whether `copy` was mapped. A mapping that is not as wanted is unmapped.
    fn check_copy(
        &mut self,
        copy: &MapStored,
        calls: &Calls,
        made: &BatchResults,
        fd: u64,
    ) -> Result<(), Fault> {
        let failed = |call, range, errno| Err(Fault::Call { call, range, errno });
        let opened = made.result(calls.open);
        let mapped = made.result(calls.mmap);
        let result = match (errno(opened), errno(mapped)) {
            (Some(errno), _) => failed(OPEN, Range::default(), errno),
            (_, Some(errno)) => failed(MMAP, copy.range, errno),
            _ if opened as u64 != fd => failed(OPEN, Range::default(), libc::EBADF),
            // Kernels before 4.17 take the address as a hint.
            _ if mapped as u64 != copy.range.start.0 => failed(MMAP, copy.range, libc::EEXIST),
            // The target may have another /proc than this process.
            _ if !self.is_wanted(copy, calls, made) => failed(OPEN, Range::default(), libc::ESTALE),
            _ => Ok(()),
        };
        if errno(mapped).is_none()
            && let Some(range) = Range::sized(Addr(mapped as u64), copy.range.len())
        {
            self.scratch.add(range);
            if result.is_err() {
                self.release_all(range)?;
            }
        }
        result
    }

    /// Returns whether the target has opened the file that was verified.
    fn is_wanted(&self, copy: &MapStored, calls: &Calls, made: &BatchResults) -> bool {
        let wanted = self.stored.get(copy.entry).and_then(|file| fstat(file).ok());
        // struct stat begins with st_dev and st_ino, a word each.
        let got = (made.word(calls.stat), made.word(calls.stat + 8));
        errno(made.result(calls.fstat)).is_none() && wanted.is_some_and(|w| (w.st_dev, w.st_ino) == got)
    }

    fn move_some(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        let mut batch = self.batch();
        let mut add = |(from, to): &(Range, Addr)| {
            let (number, args) = mremap_call(*from, *to);
            batch.add_call(number, args)
        };
        let calls: Vec<usize> = moves.iter().map(&mut add).collect();
        let made = match self.make(batch) {
            Ok(made) => made,
            Err(error) => return fail(moves.len(), &Fault::Lost(error.to_string())),
        };
        let result = |(n, (from, _)): (&usize, &(Range, Addr))| match errno(made.result(*n)) {
            Some(errno) => Err(Fault::Call { call: "mremap", range: *from, errno }),
            None => {
                self.scratch.give_up(*from);
                Ok(())
            }
        };
        calls.iter().zip(moves).map(result).collect()
    }
}
