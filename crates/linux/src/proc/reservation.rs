// SPDX-License-Identifier: Apache-2.0
//! Address space of this process at an aligned address, into which files and memory are mapped:
//!
//! ```text
//!   |  slack  |  mapping  |   gap   |  mapping  |  slack  |      PROT_NONE where nothing is mapped
//!             ^ start: a multiple of the alignment
//! ```

use hugelift_core::addr::PageSize;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// Reserved address space; unmapped, with all that was mapped into it, when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: *mut u8,
    /// Bytes that are mapped from `base` on.
    whole: usize,
    start: *mut u8,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// errno(3) of mmap(2); ENOMEM also where `len` is too much for an address space.
    pub fn new(len: usize, align: PageSize) -> io::Result<Reservation> {
        let too_much = || io::Error::from_raw_os_error(libc::ENOMEM);
        let align = usize::try_from(align.bytes()).map_err(|_| too_much())?;
        let whole = len.checked_add(align).ok_or_else(too_much)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        let skipped = base.addr().next_multiple_of(align) - base.addr();
        // SAFETY: fewer than `align` bytes are skipped, and `align` bytes more than `len` are reserved.
        let start = unsafe { base.add(skipped) };
        Ok(Reservation { base, whole, start, len })
    }

    /// Returns the first aligned address.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Maps `len` bytes of anonymous memory `at` bytes behind the start, over what is there.
    /// `flags` are flags of mmap(2). `MAP_ANONYMOUS` and `MAP_FIXED` are added.
    ///
    /// # Errors
    /// errno(3) of mmap(2); EINVAL for what is not inside the reservation, or would be both writable
    /// and executable. mmap(2) may have unmapped what was there.
    pub fn map_memory(&mut self, at: usize, len: usize, prot: i32, flags: i32) -> io::Result<*mut u8> {
        self.map(at, len, prot, flags | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps `len` bytes of `file` from `offset` on, `at` bytes behind the start, over what is there.
    /// `flags` are flags of mmap(2). `MAP_FIXED` is added.
    ///
    /// # Errors
    /// See [`Reservation::map_memory`].
    pub fn map_file(
        &mut self,
        at: usize,
        len: usize,
        prot: i32,
        flags: i32,
        file: &File,
        offset: u64,
    ) -> io::Result<*mut u8> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.map(at, len, prot, flags, file.as_raw_fd(), offset)
    }

    fn map(
        &mut self,
        at: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: libc::off_t,
    ) -> io::Result<*mut u8> {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        let is_code_to_write = prot & libc::PROT_WRITE != 0 && prot & libc::PROT_EXEC != 0;
        if !is_inside || is_code_to_write {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: `at` is inside the reservation.
        let place = unsafe { self.start.add(at) };
        // SAFETY: mmap(2) over a part of our own reservation, to which only raw pointers lead.
        match unsafe { libc::mmap(place.cast(), len, prot, flags | libc::MAP_FIXED, fd, offset) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(place),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of what `new` reserved, of which no reference was given out.
        unsafe { libc::munmap(self.base.cast(), self.whole) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::base_page;
    use crate::proc::procfs::Process;
    use hugelift_core::addr::{Addr, Range};
    use hugelift_core::maps::Mapping;

    const MB2: usize = 2 << 20;

    fn mappings(reservation: &Reservation) -> Vec<Mapping> {
        let range = Range::sized(Addr(reservation.start().addr() as u64), reservation.len as u64).unwrap();
        let mut maps = Process::OWN.maps().unwrap();
        maps.retain(|m| m.range.start < range.end && range.start < m.range.end);
        maps
    }

    #[test]
    fn what_is_mapped_is_aligned_with_gaps_about_it() {
        let page = base_page().bytes() as usize;
        let mut reservation = Reservation::new(3 * MB2, PageSize::MB2).unwrap();
        assert!(reservation.start().addr().is_multiple_of(MB2));
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let memory = reservation.map_memory(MB2, page, both, libc::MAP_PRIVATE).unwrap();
        // SAFETY: the mapping just made is readable and writable.
        unsafe { memory.write(7) };
        let file = File::open("/proc/self/exe").unwrap();
        let shown =
            reservation.map_file(2 * MB2, page, libc::PROT_READ, libc::MAP_PRIVATE, &file, 0).unwrap();
        // SAFETY: the executable has at least the four bytes that are read.
        assert_eq!(unsafe { shown.cast::<[u8; 4]>().read() }, *b"\x7fELF");
        let prots: Vec<bool> = mappings(&reservation).iter().map(|m| m.prot.read).collect();
        assert_eq!(prots, [false, true, false, true, false]);
    }

    #[test]
    fn nothing_outside_it_and_nothing_writable_and_executable() {
        let page = base_page().bytes() as usize;
        let mut reservation = Reservation::new(MB2, PageSize::MB2).unwrap();
        let mut errno = |at, len, prot| {
            let refused = reservation.map_memory(at, len, prot, libc::MAP_PRIVATE).unwrap_err();
            refused.raw_os_error().unwrap()
        };
        assert_eq!(errno(MB2, page, libc::PROT_READ), libc::EINVAL);
        assert_eq!(errno(usize::MAX, page, libc::PROT_READ), libc::EINVAL);
        assert_eq!(errno(0, page, libc::PROT_WRITE | libc::PROT_EXEC), libc::EINVAL);
        assert!(mappings(&reservation).iter().all(|m| !m.prot.read));
    }

    #[test]
    fn more_than_an_address_space_is_an_error() {
        assert!(Reservation::new(usize::MAX, PageSize::MB2).is_err());
        assert!(Reservation::new(1 << 62, PageSize::MB2).is_err());
    }
}
