// SPDX-License-Identifier: Apache-2.0
//! A running process as a [`Target`]: the steps of a lift, made by borrowed threads and from outside.

use super::Live;
use crate::calls::{Calls as _, FILE_COPY, refused};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Prot;
use hugelift_core::placement::Placement;
use hugelift_core::scratch::Scratch;
use hugelift_core::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use hugelift_linux::proc::memory;

impl Target for Live {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        match place {
            Place::Over => self.map_over(range, prot, source),
            Place::Back => self.map(range, prot, source, place),
            Place::Free => {
                self.map(range, prot, source, place)?;
                self.note();
                // A child that is forked while the copy is made would share its huge pages, which the next
                // write then splits.
                self.madvise("madvise(MADV_DONTFORK)", range, libc::MADV_DONTFORK as u64)
            }
        }
    }

    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn release(&mut self, range: Range) -> Result<(), Fault> {
        let released = self.release_all(range);
        self.note();
        released
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        self.protect(range, prot)
    }

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let moved = self.replace(from, to);
        self.note_moved();
        moved
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_HUGEPAGE)", range, libc::MADV_HUGEPAGE as u64)
    }

    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        self.bind_to(range, placement)
    }

    /// Writes to the pages from outside: no thread of the process is stopped while the kernel clears them.
    fn populate(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        self.piece = self.piece.max(page.bytes());
        let mut starts = (range.start.0..range.end.0).step_by(page.bytes() as usize);
        self.with_thp(range, |live| starts.try_for_each(|at| live.write(Addr(at), &[0], range)))
    }

    fn fault_in(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        self.with_thp(range, |live| {
            memory::touch(live.pid, range, page.bytes()).map_err(|e| refused("process_vm_readv", range, &e))
        })
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        // It is copied piece by piece, just before each is replaced.
        if self.is_writable(from) { Ok(()) } else { self.copy_through(from, to) }
    }

    fn collapse(&mut self, range: Range) -> Result<(), Fault> {
        self.with_thp(range, |live| live.collapse_somehow(range))
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.count_huge(range)
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        self.make_memfd(page, bytes)
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        let flags = FILE_COPY | libc::MAP_FIXED_NOREPLACE;
        let mut map =
            |copy: &MapStored| self.with_thp(copy.range, |live| live.map_one(copy, flags).map(drop));
        let mapped = copies.iter().map(&mut map).collect();
        self.note();
        mapped
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.close_file(file)
    }
}
