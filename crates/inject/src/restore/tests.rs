// SPDX-License-Identifier: Apache-2.0
//! Parts of a copy are restored in this process, and each call fails once.

use super::*;
use crate::calls::prot_bits;
use crate::own::Own;
use hugelift_core::addr::PageSize;
use hugelift_core::placement::Placement;
use hugelift_core::scratch::Scratch;
use hugelift_core::snapshot::Part;
use hugelift_core::target::{FileHandle, MapStored, Place, Source};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

const MB2: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// This process, in which the call of this number fails.
struct Failing {
    own: Own,
    calls: usize,
    at: usize,
}

impl Failing {
    fn next(&mut self, call: &'static str, range: Range) -> Result<(), Fault> {
        self.calls += 1;
        let fails = self.calls - 1 == self.at;
        if fails { Err(Fault::Call { call, range, errno: libc::ENOMEM }) } else { Ok(()) }
    }
}

impl Target for Failing {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        self.own.mmap(range, prot, source, place)
    }

    fn scratch(&self) -> &Scratch {
        self.own.scratch()
    }

    fn release(&mut self, range: Range) -> Result<(), Fault> {
        self.own.release(range)
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        self.next("mprotect", range)?;
        self.own.mprotect(range, prot)
    }

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        self.next("mremap", from)?;
        self.own.mremap(from, to)
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        self.own.advise_huge(range)
    }

    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        self.own.bind(range, placement)
    }

    fn populate(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        self.own.populate(range, page)
    }

    fn fault_in(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        self.own.fault_in(range, page)
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        self.own.copy(from, to)
    }

    fn collapse(&mut self, range: Range) -> Result<(), Fault> {
        self.own.collapse(range)
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.own.huge_bytes(range)
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        self.own.memfd(page, bytes)
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        self.own.map_stored(copies)
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.own.close(file)
    }
}

impl Remap for Failing {
    fn map_again(&mut self, page: Range, page_offset: u64, offset: u64, len: u64) -> Result<Range, Fault> {
        self.next("mremap(MREMAP_DONTUNMAP)", page)?;
        self.own.map_again(page, page_offset, offset, len)
    }

    fn map_file(&mut self, file: File, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault> {
        self.next("mmap of a file", Range::default())?;
        self.own.map_file(file, offset, len, prot)
    }

    fn put_back(&mut self, mapped: Range, over: Range) -> Result<(), NotPutBack> {
        self.next("mremap", mapped).map_err(NotPutBack::Fault)?;
        self.own.put_back(mapped, over)
    }
}

/// Makes a system call.
fn call(number: i64, args: [u64; 6]) -> u64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the calls of these tests map and unmap memory that nothing else uses.
    unsafe { libc::syscall(number, a, b, c, d, e, f) as u64 }
}

/// A file of 8 MB, of which all but the first 2 MB are a copy in this process. A page of it is mapped elsewhere, too: what is
/// restored joins the mapping before it, which is another one then.
struct Copied {
    _file: File,
    range: Range,
    elsewhere: u64,
}

impl Copied {
    fn new() -> Copied {
        // SAFETY: memfd_create(2) with a name that ends with a zero byte; the descriptor is new.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"restore".as_ptr(), libc::MFD_CLOEXEC)) };
        let bytes: Vec<u8> = (0..4 * MB2).map(|i| (i / PAGE % 251) as u8 + 1).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let (private, fixed) = (libc::MAP_PRIVATE as u64, libc::MAP_FIXED as u64);
        let anonymous = private | libc::MAP_ANONYMOUS as u64;
        let whole = call(libc::SYS_mmap, [0, 6 * MB2, 0, anonymous, u64::MAX, 0]);
        let start = (whole + 1).next_multiple_of(MB2);
        let (read, write) = (prot_bits(Prot::R), prot_bits(Prot::RW));
        let args = [start, 4 * MB2, read, private | fixed, file.as_raw_fd() as u64, 0];
        assert_eq!(call(libc::SYS_mmap, args), start);
        let elsewhere = call(libc::SYS_mmap, [0, PAGE, read, private, file.as_raw_fd() as u64, 0]);
        let copy = start + MB2;
        let args = [copy, 3 * MB2, write, anonymous | fixed, u64::MAX, 0];
        assert_eq!(call(libc::SYS_mmap, args), copy);
        // SAFETY: the mapping made above is writable and as long.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes[MB2 as usize..].as_ptr(), copy as *mut u8, 3 * MB2 as usize);
        }
        assert_eq!(call(libc::SYS_mprotect, [copy, 3 * MB2, read, 0, 0, 0]), 0);
        Copied { _file: file, range: Range::sized(Addr(start), 4 * MB2).unwrap(), elsewhere }
    }

    /// Returns a part of it, in units of 2 MB.
    fn part(&self, from: u64, to: u64) -> Range {
        let at = |n: u64| Addr(self.range.start.0 + n * MB2);
        Range::new(at(from), at(to)).unwrap()
    }

    /// Returns which of its four parts are pages of the file.
    fn of_file(&self) -> Vec<bool> {
        let maps = Process::OWN.maps().unwrap();
        let at = |n| maps.iter().find(|m| m.range.covers(self.part(n, n + 1))).unwrap();
        (0..4).map(at).inspect(|m| assert_eq!(m.prot, Prot::R)).map(Mapping::is_file).collect()
    }

    /// Restores these parts; returns the results, how many calls were made, and what memory of ours is left.
    fn restore(&self, parts: &[Range], at: usize) -> (Vec<Result<(), NotRestored>>, usize, Vec<Range>) {
        let mut snapshot = hugelift_linux::proc::snapshot::live(Some(std::process::id()), 0).unwrap();
        let file = snapshot.mapping_at(self.range.start).unwrap().file;
        snapshot.objects.insert(0, Object { file, path: "/restore".into(), ..snapshot.objects[0].clone() });
        let of = |range: &Range| Replaced {
            object: 0,
            part: Part::Text,
            range: *range,
            prot: Prot::R,
            offset: range.start.0 - self.range.start.0,
        };
        let copies: Vec<Replaced> = parts.iter().map(of).collect();
        let mut target = Failing { own: Own::new(&snapshot.mappings, Vec::new()), calls: 0, at };
        let results = restore(&mut target, Process::OWN, &snapshot, &copies);
        (results, target.calls, target.scratch().all().to_vec())
    }

    fn assert_bytes(&self) {
        for page in 0..4 * MB2 / PAGE {
            // SAFETY: all of it is mapped and readable.
            let byte = unsafe { ((self.range.start.0 + page * PAGE + 7) as *const u8).read_volatile() };
            assert_eq!(u64::from(byte), page % 251 + 1, "page {page}");
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        call(libc::SYS_munmap, [self.range.start.0, self.range.len(), 0, 0, 0, 0]);
        call(libc::SYS_munmap, [self.elsewhere, PAGE, 0, 0, 0, 0]);
    }
}

#[test]
fn issue_31_4_parts_of_a_copy_are_restored() {
    let copied = Copied::new();
    assert_eq!(copied.of_file(), [true, false, false, false]);
    let (results, _, left) = copied.restore(&[copied.part(2, 3)], usize::MAX);
    assert!(results.iter().all(Result::is_ok) && left.is_empty(), "{results:?} {left:?}");
    assert_eq!(copied.of_file(), [true, false, true, false]);
    copied.assert_bytes();
    let (results, _, left) = copied.restore(&[copied.part(1, 2), copied.part(3, 4)], usize::MAX);
    assert!(results.iter().all(Result::is_ok) && left.is_empty(), "{results:?} {left:?}");
    assert_eq!(copied.of_file(), [true; 4]);
    copied.assert_bytes();
}

#[test]
fn issue_31_4_each_call_of_a_restore_of_parts_fails_once() {
    for at in 0.. {
        let copied = Copied::new();
        let (results, calls, left) = copied.restore(&[copied.part(1, 2), copied.part(3, 4)], at);
        assert!(left.is_empty(), "{at}: {left:?}");
        let is_done: Vec<bool> = results.iter().map(Result::is_ok).collect();
        assert_eq!(copied.of_file(), [true, is_done[0], false, is_done[1]], "{at}: {results:?}");
        // One call has failed, and no other copy is lost by that.
        assert!(is_done.contains(&true), "{at}: {results:?}");
        copied.assert_bytes();
        if calls <= at {
            assert_eq!(is_done, [true, true]);
            break;
        }
    }
}

#[test]
fn issue_31_4_a_part_that_was_changed_stays() {
    let copied = Copied::new();
    let changed = copied.part(2, 3);
    let at = changed.start.0 + PAGE + 9;
    let page = [changed.start.0 + PAGE, PAGE];
    call(libc::SYS_mprotect, [page[0], page[1], prot_bits(Prot::RW), 0, 0, 0]);
    // SAFETY: the page is writable now.
    unsafe { (at as *mut u8).write_volatile(255) };
    call(libc::SYS_mprotect, [page[0], page[1], prot_bits(Prot::R), 0, 0, 0]);
    let parts = [copied.part(1, 2), changed, copied.part(3, 4)];
    let (results, _, left) = copied.restore(&parts, usize::MAX);
    assert!(left.is_empty(), "{left:?}");
    assert!(
        matches!(&results[1], Err(NotRestored::Differs { at: found, .. }) if found.0 == at),
        "{results:?}"
    );
    assert_eq!(copied.of_file(), [true, true, false, true]);
}
