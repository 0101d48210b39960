// SPDX-License-Identifier: Apache-2.0
//! Mappings of a file's huge pages in this process, to find out what is mapped huge:
//!
//! ```text
//!   |   gap   |=page 0=|   gap   |=page 1=|   gap   |=page 2=|   ...
//!             ^ congruent: aligned, as its offset in the file is
//! ```
//!
//! Each page is a mapping of its own, so that smaps counts it by itself.

use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::maps::FileId;
use hugelift_linux::proc::memory::{self, MADV_COLLAPSE};
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::reservation::Reservation;
use std::fs::File;
use std::io;

/// The advice for a view (madvise(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// `MADV_HUGEPAGE`: each fault reads in a whole huge page. `MADV_RANDOM` keeps the kernel from reading
    /// ahead behind it: those small pages would be the beginning of the next huge page.
    Huge,
    /// `MADV_RANDOM`: faults read nothing ahead.
    Random,
}

/// How much of a huge page of the file is in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resident {
    /// Whether its first base page is in memory.
    pub first: bool,
    /// Whether any base page is in memory.
    pub any: bool,
    /// Whether all of them are.
    pub all: bool,
}

/// The mappings; unmapped when dropped.
#[derive(Debug)]
pub struct View {
    reserved: Reservation,
    pages: Vec<Addr>,
    page: PageSize,
}

impl View {
    /// Maps the huge pages of `file` at these offsets, multiples of `page`.
    ///
    /// # Errors
    /// errno(3) of mmap(2).
    pub fn new(file: &File, offsets: &[u64], page: PageSize, advice: Advice) -> io::Result<View> {
        let bytes = usize::try_from(page.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let len = offsets.len().checked_mul(2).and_then(|n| (n + 1).checked_mul(bytes));
        let reserved = Reservation::new(len.ok_or(io::ErrorKind::OutOfMemory)?, page)?;
        let mut view = View { reserved, pages: Vec::with_capacity(offsets.len()), page };
        for (i, &offset) in offsets.iter().enumerate() {
            let at = map(&mut view.reserved, file, (2 * i + 1) * bytes, bytes, offset)?;
            view.pages.push(at);
            match advice {
                Advice::Huge => {
                    view.advise(at, bytes, libc::MADV_RANDOM)?;
                    view.advise(at, bytes, libc::MADV_HUGEPAGE)?;
                }
                Advice::Random => view.advise(at, bytes, libc::MADV_RANDOM)?,
            }
        }
        Ok(view)
    }

    fn advise(&self, at: Addr, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: madvise(2) on a mapping of a file that `new` made and nothing else uses;
        // none of the advice given here changes what it shows.
        match unsafe { libc::madvise(at.0 as *mut libc::c_void, bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Faults in the first `size` of page `i`, without a signal beyond the end of the file.
    ///
    /// # Errors
    /// errno(3): EFAULT beyond the end of the file, or where it cannot be read.
    pub fn populate(&self, i: usize, size: PageSize) -> io::Result<()> {
        let bytes = usize::try_from(size.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        match self.advise(self.pages[i], bytes, libc::MADV_POPULATE_READ) {
            // Linux before 5.14: process_vm_readv(2) faults pages in, too.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let mut bytes = vec![0; bytes];
                let got = memory::read(std::process::id().cast_signed(), self.pages[i], &mut bytes)?;
                if got < bytes.len() { Err(io::Error::from_raw_os_error(libc::EFAULT)) } else { Ok(()) }
            }
            other => other,
        }
    }

    /// Asks the kernel to collapse page `i`.
    pub fn collapse(&self, i: usize) {
        let Ok(bytes) = usize::try_from(self.page.bytes()) else { return };
        // The call is made once more after EAGAIN.
        for _ in 0..2 {
            match self.advise(self.pages[i], bytes, MADV_COLLAPSE) {
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return tracing::trace!(?done, at = %self.pages[i], "collapse"),
            }
        }
    }

    /// Returns where page `i` is mapped.
    pub fn start(&self, i: usize) -> Addr {
        self.pages[i]
    }

    /// Returns how much of page `i` is in memory (mincore(2)), if `sees_cache`.
    ///
    /// # Errors
    /// errno(3)
    pub fn resident(&self, i: usize, base: PageSize) -> io::Result<Resident> {
        let present = self.present(i, base)?;
        let [any, all] = [present.contains(&true), !present.contains(&false)];
        Ok(Resident { first: present.first().is_some_and(|first| *first), any, all })
    }

    /// Faults in those base pages of page `i` that are in memory, if `sees_cache`.
    ///
    /// # Errors
    /// errno(3)
    pub fn touch_present(&self, i: usize, base: PageSize) -> io::Result<()> {
        let bytes = usize::try_from(base.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        for (n, is_present) in (0u64..).zip(self.present(i, base)?) {
            if is_present {
                let at = Addr(self.pages[i].0 + n * base.bytes());
                self.advise(at, bytes, libc::MADV_POPULATE_READ)?;
            }
        }
        Ok(())
    }

    /// Returns which base pages of page `i` are in memory.
    fn present(&self, i: usize, base: PageSize) -> io::Result<Vec<bool>> {
        let bytes = usize::try_from(self.page.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut pages = vec![0u8; (self.page.bytes() / base.bytes()) as usize];
        let at = self.pages[i].0 as *mut libc::c_void;
        // SAFETY: mincore(2) writes one byte for each base page of `bytes`, of which `pages`
        // has one each.
        if unsafe { libc::mincore(at, bytes, pages.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.iter().map(|page| page & 1 != 0).collect())
    }

    /// Returns which pages are mapped huge, by smaps, and the file's identity there.
    ///
    /// # Errors
    /// [`ProcError`]: smaps cannot be read.
    pub fn huge(&self) -> Result<(Vec<bool>, Option<FileId>), ProcError> {
        let usage = Process::OWN.smaps()?;
        let of = |at: Addr| {
            let i = usage.binary_search_by_key(&at, |u| u.mapping.range.start).ok()?;
            usage.get(i)
        };
        let huge = |at: &Addr| of(*at).is_some_and(|u| u.huge() >= self.page.bytes());
        let id = self.pages.first().and_then(|at| of(*at)).map(|u| u.mapping.file);
        Ok((self.pages.iter().map(huge).collect(), id))
    }
}

/// Maps `bytes` of the file `at` bytes behind the start of the reservation.
fn map(reserved: &mut Reservation, file: &File, at: usize, bytes: usize, offset: u64) -> io::Result<Addr> {
    let mut with = |prot| reserved.map_file(at, bytes, prot, libc::MAP_PRIVATE, file, offset);
    // It is mapped as code, which READ_ONLY_THP_FOR_FS requires. Where the mount forbids code, it is mapped
    // as data.
    let start = match with(libc::PROT_READ | libc::PROT_EXEC) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => with(libc::PROT_READ),
        other => other,
    };
    Ok(Addr(start?.addr() as u64))
}
