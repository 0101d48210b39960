// SPDX-License-Identifier: Apache-2.0
//! Measures, without hugelift, how much of a file the page cache can hold on huge pages: the file is
//! read in under MADV_HUGEPAGE, and a second mapping shows what became huge.

use crate::common::cache::join_memory;
use hugelift_core::elf::{HEAD_BYTES, Headers, Segment};
use hugelift_linux::proc::procfs::Process;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

const HUGE: usize = 2 << 20;

/// Reads a file anew. Returns the bytes in whole huge pages of the segments, and how many of them the page cache maps huge.
pub fn huge(path: &Path) -> (u64, u64) {
    let (file, segments) = opened(path);
    let mut state = (0, 0);
    // Huge pages may be scarce for a moment.
    for _ in 0..10 {
        file.sync_all().expect("fsync");
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("fadvise");
        segments.iter().for_each(|segment| drop(Mapped::new(&file, segment, true)));
        state = mapped(&file, &segments);
        if state.0 == state.1 {
            break;
        }
        join_memory();
    }
    state
}

/// Returns what [`huge`] does, of the page cache as it is.
pub fn still_huge(path: &Path) -> (u64, u64) {
    let (file, segments) = opened(path);
    mapped(&file, &segments)
}

/// Opens a file. Returns its segments with a whole huge page, too.
fn opened(path: &Path) -> (File, Vec<Segment>) {
    let file = File::open(path).expect("open");
    // Only the headers: reading the whole file would fill the page cache with small pages.
    let at = |offset, size| {
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    };
    let head = at(0, HEAD_BYTES).expect("a file of more than a page");
    let headers = Headers::parse_with(&head, at).expect("an ELF file");
    let segments = headers.segments.iter().filter(|s| whole(s) > 0).copied().collect();
    (file, segments)
}

fn mapped(file: &File, segments: &[Segment]) -> (u64, u64) {
    let got = segments.iter().map(|s| Mapped::new(file, s, false).huge().min(whole(s)));
    (segments.iter().map(whole).sum(), got.sum())
}

fn whole(segment: &Segment) -> u64 {
    let huge = HUGE as u64;
    let end = (segment.vaddr + segment.filesz).next_multiple_of(4096) / huge * huge;
    end.saturating_sub((segment.vaddr & !4095).next_multiple_of(huge))
}

/// A segment's pages, mapped and touched. Their address modulo 2 MB is that in a program whose base is
/// aligned.
struct Mapped {
    room: (NonNull<c_void>, usize),
    start: usize,
}

impl Mapped {
    fn new(file: &File, segment: &Segment, advise: bool) -> Mapped {
        let offset = segment.offset & !4095;
        let len = (segment.offset + segment.filesz).next_multiple_of(4096) - offset;
        let len = usize::try_from(len).expect("it fits");
        let size = NonZeroUsize::new(len + 2 * HUGE).expect("not zero");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: mmap(2) and madvise(2) of memory of our own; the file is mapped inside it, and only read.
        unsafe {
            let room = mmap_anonymous(None, size, ProtFlags::PROT_NONE, flags).expect("mmap");
            let at = (segment.vaddr & !4095) as usize % HUGE;
            let start = (room.as_ptr() as usize).next_multiple_of(HUGE) + at;
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
            let [place, bytes] = [start, len].map(|n| NonZeroUsize::new(n).expect("not zero"));
            let there = mmap(Some(place), bytes, prot, flags, file, offset as i64).expect("mmap");
            if advise {
                madvise(there, len, MmapAdvise::MADV_HUGEPAGE).expect("madvise");
            }
            let end = (segment.offset - offset + segment.filesz) as usize;
            for at in (0..end).step_by(4096) {
                std::ptr::read_volatile(there.as_ptr().cast::<u8>().add(at));
            }
            Mapped { room: (room, size.get()), start }
        }
    }

    fn huge(&self) -> u64 {
        let all = Process::OWN.smaps().expect("smaps");
        let ours = all.iter().find(|u| u.mapping.range.start.0 == self.start as u64);
        ours.expect("our mapping").file_huge
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of the memory that `new` mapped; no pointer to it is left.
        unsafe { munmap(self.room.0, self.room.1) }.expect("munmap");
    }
}
