// SPDX-License-Identifier: Apache-2.0
//! Memory on a known kind of pages. The kind is asked for, and smaps shows what the kernel gave.

use crate::results::Hue;
use crate::setting::Setting;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_linux::machine::pools;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::reservation::Reservation;
use nix::sys::resource::{UsageWho, getrusage};
use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// The share of the memory that must be on the pages that it was mapped for.
pub const AS_ASKED: f64 = 0.99;

/// A kind of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Base pages: 4 kB, except on some Arm machines.
    Small,
    /// Transparent huge pages.
    Thp,
    /// Pages of the hugetlb pool with this page size.
    Hugetlb(PageSize),
}

impl Pages {
    /// Returns the name that is shown: `4 kB`, `THP`, `hugetlb 2 MB`.
    pub fn name(self) -> String {
        match self {
            Pages::Small => human_bytes(base_page().bytes()),
            Pages::Thp => "THP".into(),
            Pages::Hugetlb(page) => format!("hugetlb {page}"),
        }
    }

    /// Returns the colour of its curves.
    pub fn hue(self) -> Hue {
        match self {
            Pages::Small => Hue::Small,
            Pages::Thp => Hue::Thp,
            Pages::Hugetlb(page) if thp_page().is_none_or(|thp| page.bytes() <= thp.bytes()) => Hue::Hugetlb,
            Pages::Hugetlb(_) => Hue::Giant,
        }
    }

    /// Returns the bytes of one page. If there are no transparent huge pages, [`Pages::Thp`] has the size of
    /// the base page.
    pub fn bytes(self) -> u64 {
        match self {
            Pages::Small => base_page().bytes(),
            Pages::Thp => thp_page().unwrap_or_else(base_page).bytes(),
            Pages::Hugetlb(page) => page.bytes(),
        }
    }

    /// Returns a note if only this share of the memory is on the pages that it was mapped for.
    pub fn note(self, share: &Result<f64>) -> Option<String> {
        let name = self.name();
        match share {
            Ok(share) if *share > AS_ASKED => None,
            Ok(share) => Some(format!(
                "smaps shows {:.0} % of the memory for {name} on such pages: see hugelift doctor",
                100.0 * share
            )),
            Err(why) => Some(format!("which pages the memory for {name} has could not be read: {why:#}")),
        }
    }

    /// Returns the flags of mmap(2) for private anonymous memory on these pages.
    pub fn flags(self) -> i32 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        match self {
            Pages::Small | Pages::Thp => flags,
            Pages::Hugetlb(page) => {
                flags | libc::MAP_HUGETLB | page.log2().cast_signed() << libc::MAP_HUGE_SHIFT
            }
        }
    }
}

/// Returns the hugetlb pages that have the size of a transparent huge page, if the kernel has a pool of
/// them.
pub fn usual_hugetlb() -> Option<Pages> {
    let size = thp_page().unwrap_or(PageSize::MB2).bytes();
    pools::read(&Tree::default())
        .iter()
        .find(|pool| pool.page_size == size)
        .and_then(|pool| PageSize::new(pool.page_size))
        .map(Pages::Hugetlb)
}

/// Makes sure that `pages` pages of a pool are available. If too few are, enlarges the pool for as long as
/// the returned value lives, which needs root. Returns `None` if nothing had to be changed.
///
/// # Errors
/// The pages are not available; the message says what would help. The pool is then unchanged.
pub fn pool_with(page: PageSize, pages: u64) -> Result<Option<Setting>> {
    let tree = Tree::default();
    let pool = || {
        let all = pools::read(&tree);
        all.into_iter().find(|pool| pool.page_size == page.bytes())
    };
    let before = pool().with_context(|| format!("this kernel has no pool of {page} pages"))?;
    if before.available >= pages {
        return Ok(None);
    }
    let wanted = (before.total - before.surplus) + (pages - before.available);
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page.bytes() >> 10);
    let help = || {
        format!(
            "the pool of {page} pages has {} available and {pages} are needed; as root hugelift enlarges it for \
             the time of the experiment, or: hugelift pool set {}=+{}",
            before.available,
            hugelift_core::addr::size_word(page.bytes()),
            pages - before.available
        )
    };
    ensure!(nix::unistd::geteuid().is_root(), help());
    let setting = Setting::pool(Path::new(&folder), wanted).with_context(help)?;
    let got = pool().map_or(0, |pool| pool.available);
    ensure!(got >= pages, "{}; the kernel found {got}", help());
    Ok(Some(setting))
}

/// Returns the page faults of this process so far that needed no disk.
///
/// # Errors
/// Those of getrusage(2).
pub fn page_faults() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    Ok(usage.minor_page_faults().cast_unsigned())
}

/// Anonymous memory of this process. It is unmapped when the value is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// The whole reservation. Unmapped pages before and behind the memory keep the kernel from merging it
    /// with a neighbour, whose pages smaps would then count too.
    _reserved: Reservation,
    pages: Pages,
}

impl Mapping {
    /// Maps readable and writable memory of at least `bytes` bytes, in whole pages of the kind. No page is
    /// allocated before it is touched.
    ///
    /// # Errors
    /// Those of mmap(2) and madvise(2): too little memory, or too few pages in the pool.
    pub fn new(pages: Pages, bytes: u64) -> io::Result<Mapping> {
        let unit = pages.bytes();
        let size =
            |bytes: u64| usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM));
        let whole = bytes.max(1).checked_next_multiple_of(unit);
        let len = size(whole.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?)?;
        // A page before and a page behind.
        let room = size(unit)?.checked_mul(2).and_then(|more| more.checked_add(len));
        let room = room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let align = PageSize::new(unit).ok_or(io::ErrorKind::InvalidInput)?;
        let mut reserved = Reservation::new(room, align)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = reserved.map_memory(size(unit)?, len, prot, pages.flags())?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mapping = Mapping { start, len, _reserved: reserved, pages };
        match pages {
            // A kernel without transparent huge pages refuses the advice, and does not need it.
            Pages::Small => mapping.advise(libc::MADV_NOHUGEPAGE).or(Ok(())),
            Pages::Thp => mapping.advise(libc::MADV_HUGEPAGE),
            Pages::Hugetlb(_) => Ok(()),
        }?;
        Ok(mapping)
    }

    /// Maps memory as [`Mapping::new`] does, and touches every page.
    ///
    /// # Errors
    /// Those of [`Mapping::new`] and [`Mapping::populate`].
    pub fn populated(pages: Pages, bytes: u64) -> io::Result<Mapping> {
        let mapping = Mapping::new(pages, bytes)?;
        mapping.populate()?;
        Ok(mapping)
    }

    /// Touches every page.
    ///
    /// # Errors
    /// Too little memory, or a limit is reached. Kernels without `MADV_POPULATE_WRITE` (before 5.14) send a
    /// signal instead.
    pub fn populate(&self) -> io::Result<()> {
        match self.advise(libc::MADV_POPULATE_WRITE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (0..self.len).step_by(4096) {
                    // SAFETY: inside the mapping, which is writable and to which no reference exists.
                    unsafe { self.start.as_ptr().add(at).write_volatile(0) };
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Calls madvise(2) for all of the memory.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: madvise(2) of our own mapping. Advice may drop its content, but only raw pointers lead
        // there.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Calls mprotect(2) for all of the memory. Memory that is both writable and executable is refused.
    ///
    /// # Errors
    /// Those of mprotect(2).
    pub fn protect(&self, prot: i32) -> io::Result<()> {
        if prot & libc::PROT_WRITE != 0 && prot & libc::PROT_EXEC != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: mprotect(2) of our own mapping, to which no reference exists.
        match unsafe { libc::mprotect(self.start.as_ptr().cast(), self.len, prot) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the kind of pages that was asked for.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns how many bytes of it are on huge pages, as `/proc/self/smaps` shows them.
    ///
    /// # Errors
    /// smaps cannot be read.
    pub fn huge_bytes(&self) -> Result<u64> {
        let range =
            Range::sized(Addr(self.start.as_ptr() as u64), self.len as u64).context("an address range")?;
        let usages = Process::OWN.smaps()?;
        Ok(usages.iter().filter(|u| range.covers(u.mapping.range)).map(|u| u.huge()).sum())
    }

    /// Returns the share of the memory, 0 to 1, that is on the pages that were asked for. It is 1 for
    /// hugetlb and small pages; for transparent huge pages it is what the kernel could give.
    ///
    /// # Errors
    /// Those of [`Mapping::huge_bytes`].
    pub fn share_as_asked(&self) -> Result<f64> {
        let huge = self.huge_bytes()? as f64 / self.len as f64;
        Ok(if self.pages == Pages::Small { 1.0 - huge } else { huge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_pages_that_it_was_asked_for() {
        let small = Mapping::populated(Pages::Small, 8 << 20).unwrap();
        assert_eq!((small.huge_bytes().unwrap(), small.share_as_asked().unwrap()), (0, 1.0));
        if thp_page().is_none() {
            return;
        }
        // A neighbour that is not counted.
        let thp = Mapping::populated(Pages::Thp, (8 << 20) + 1).unwrap();
        assert_eq!(thp.len() as u64, ((8u64 << 20) + 1).next_multiple_of(Pages::Thp.bytes()));
        let huge = thp.huge_bytes().unwrap();
        // Free memory may be too fragmented for huge pages.
        assert!(huge <= thp.len() as u64 && huge.is_multiple_of(Pages::Thp.bytes()), "{huge}");
        assert_eq!(small.huge_bytes().unwrap(), 0);
    }

    #[test]
    fn never_writable_and_executable() {
        let mapping = Mapping::populated(Pages::Small, 4096).unwrap();
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(mapping.protect(all).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        mapping.protect(libc::PROT_READ | libc::PROT_EXEC).unwrap();
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(Mapping::new(Pages::Small, u64::MAX - 5).is_err());
        assert!(Mapping::new(Pages::Thp, 1 << 62).is_err());
    }
}
