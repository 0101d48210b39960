// SPDX-License-Identifier: Apache-2.0
//! Memory on pages of a kind that is known: asked for, and looked up in smaps.

use crate::results::Hue;
use crate::setting::Setting;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_os::machine::pools;
use hugelift_os::machine::tree::Tree;
use hugelift_os::machine::{base_page, thp_page};
use hugelift_os::proc::procfs::Process;
use hugelift_os::proc::reservation::Reservation;
use std::io;
use std::ptr::NonNull;

/// Which pages memory is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Base pages: 4 kB, but on some Arm machines.
    Small,
    /// Transparent huge pages.
    Thp,
    /// Of the hugetlb pool with pages of this size.
    Hugetlb(PageSize),
}

impl Pages {
    /// As shown: `4 kB`, `THP`, `hugetlb 2 MB`.
    pub fn name(self) -> String {
        match self {
            Pages::Small => human_bytes(base_page().bytes()),
            Pages::Thp => "THP".into(),
            Pages::Hugetlb(page) => format!("hugetlb {page}"),
        }
    }

    /// The colour of its curves.
    pub fn hue(self) -> Hue {
        match self {
            Pages::Small => Hue::Small,
            Pages::Thp => Hue::Thp,
            Pages::Hugetlb(page) if thp_page().is_none_or(|thp| page.bytes() <= thp.bytes()) => Hue::Hugetlb,
            Pages::Hugetlb(_) => Hue::Giant,
        }
    }

    /// Bytes of one page. Without transparent huge pages their size is that of the base page.
    pub fn bytes(self) -> u64 {
        match self {
            Pages::Small => base_page().bytes(),
            Pages::Thp => thp_page().unwrap_or_else(base_page).bytes(),
            Pages::Hugetlb(page) => page.bytes(),
        }
    }

    /// Flags of mmap(2) for private anonymous memory of it.
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

/// The hugetlb pages of the size of a transparent huge page, if the kernel has a pool of them.
pub fn usual_hugetlb() -> Option<Pages> {
    let size = thp_page().unwrap_or(PageSize::MB2).bytes();
    pools::read(&Tree::default())
        .iter()
        .find(|pool| pool.page_size == size)
        .and_then(|pool| PageSize::new(pool.page_size))
        .map(Pages::Hugetlb)
}

/// Sees to it that so many pages can be had from a pool: there, or by enlarging it for as long as
/// the value lives, which takes root. `None` where nothing had to be changed.
///
/// # Errors
/// They cannot be had; the message says what would help. The pool is then as it was.
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
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page.bytes() >> 10);
    let help = || {
        format!(
            "the pool of {page} pages has {} to give and {pages} are needed; as root hugelift enlarges it for \
             the time of the experiment, or: hugelift pool set {}=+{}",
            before.available,
            hugelift_core::pool::size_word(page.bytes()),
            pages - before.available
        )
    };
    ensure!(nix::unistd::geteuid().is_root(), help());
    let setting = Setting::change(path, &wanted.to_string()).with_context(help)?;
    let got = pool().map_or(0, |pool| pool.available);
    ensure!(got >= pages, "{}; the kernel found {got}", help());
    Ok(Some(setting))
}

/// Anonymous memory of this process, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// With guards about the memory: they keep the kernel from joining it with a neighbour, whose pages
    /// smaps would then count in.
    _reserved: Reservation,
    pages: Pages,
}

impl Mapping {
    /// Readable and writable memory of at least `bytes` bytes, in whole pages of the kind. Nothing
    /// of it is there before it is touched.
    ///
    /// # Errors
    /// As mmap(2) and madvise(2): no memory, too few pages in the pool.
    pub fn new(pages: Pages, bytes: u64) -> io::Result<Mapping> {
        let unit = pages.bytes();
        let size =
            |bytes: u64| usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM));
        let whole = bytes.max(1).checked_next_multiple_of(unit);
        let len = size(whole.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?)?;
        // A page before and one behind.
        let room = size(unit)?.checked_mul(2).and_then(|more| more.checked_add(len));
        let room = room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let align = PageSize::new(unit).ok_or(io::ErrorKind::InvalidInput)?;
        let mut reserved = Reservation::new(room, align)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = reserved.map_memory(size(unit)?, len, prot, pages.flags())?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mapping = Mapping { start, len, _reserved: reserved, pages };
        match pages {
            // Kernels without transparent huge pages refuse the advice, and need none.
            Pages::Small => mapping.advise(libc::MADV_NOHUGEPAGE).or(Ok(())),
            Pages::Thp => mapping.advise(libc::MADV_HUGEPAGE),
            Pages::Hugetlb(_) => Ok(()),
        }?;
        Ok(mapping)
    }

    /// As [`Mapping::new`], with every page there.
    ///
    /// # Errors
    /// As [`Mapping::new`] and [`Mapping::populate`].
    pub fn populated(pages: Pages, bytes: u64) -> io::Result<Mapping> {
        let mapping = Mapping::new(pages, bytes)?;
        mapping.populate()?;
        Ok(mapping)
    }

    /// Touches every page.
    ///
    /// # Errors
    /// No memory, or a limit: as an error where the kernel has `MADV_POPULATE_WRITE` (5.14).
    pub fn populate(&self) -> io::Result<()> {
        match self.advise(libc::MADV_POPULATE_WRITE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (0..self.len).step_by(4096) {
                    // SAFETY: inside the mapping, which is writable and known to nobody else.
                    unsafe { self.start.as_ptr().add(at).write_volatile(0) };
                }
                Ok(())
            }
            done => done,
        }
    }

    /// madvise(2) for all of it.
    ///
    /// # Errors
    /// Its.
    pub fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: madvise(2) of a mapping of ours; advice that drops its content hurts nobody, as
        // only raw pointers lead there.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// mprotect(2) for all of it. What is both writable and executable is refused.
    ///
    /// # Errors
    /// Its.
    pub fn protect(&self, prot: i32) -> io::Result<()> {
        if prot & libc::PROT_WRITE != 0 && prot & libc::PROT_EXEC != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: mprotect(2) of a mapping of ours, to which no reference exists.
        match unsafe { libc::mprotect(self.start.as_ptr().cast(), self.len, prot) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There is always something.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind that was asked for.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What is huge of it, in bytes, as `/proc/self/smaps` shows it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn huge_bytes(&self) -> Result<u64> {
        let range =
            Range::sized(Addr(self.start.as_ptr() as u64), self.len as u64).context("an address range")?;
        let usages = Process::OWN.smaps()?;
        Ok(usages.iter().filter(|u| range.covers(u.mapping.range)).map(|u| u.huge()).sum())
    }

    /// The share that has the pages that were asked for, 0 to 1: all of hugetlb and of small
    /// memory, of transparent huge pages what the kernel could give.
    ///
    /// # Errors
    /// As [`Mapping::huge_bytes`].
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
        // Beside it, and not counted in.
        let thp = Mapping::populated(Pages::Thp, (8 << 20) + 1).unwrap();
        assert_eq!(thp.len() as u64, ((8u64 << 20) + 1).next_multiple_of(Pages::Thp.bytes()));
        let huge = thp.huge_bytes().unwrap();
        // Memory may be in pieces; none is ever more than there is.
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
