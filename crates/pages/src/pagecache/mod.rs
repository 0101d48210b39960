// SPDX-License-Identifier: Apache-2.0
//! Finds out what the page cache holds of a file in huge folios, by a mapping of ours at a congruent
//! address, which the kernel maps by huge entries where it can.
//!
//! ```text
//!   file     |--2 MB--|--2 MB--|--2 MB--|      is one byte of each in the cache? (no disk is read)
//!   mapping  |  huge  |  small |  huge  |      touched once each, then PAGEMAP_SCAN
//! ```
//!
//! This takes about 25 us for each huge page of a file that is in small folios, less where the folios are huge.

pub mod prime;

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{Headers, Segment};
use hugelift_core::maps::Mapping;
use hugelift_core::plan::is_nearly_all;
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::prime::{Candidate, FileReport, candidates};
use hugelift_core::relocate::base::congruent_residue;
use hugelift_core::snapshot::{Object, Part, Snapshot};
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::elf::file_snapshot::executable;
use hugelift_linux::elf::needed::needed;
use hugelift_linux::io::open;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::reservation::Reservation;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// How many huge pages of a mapping [`Search::Sampled`] checks.
const SAMPLES: u64 = 8;

/// How thoroughly [`find`] searches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Every huge page is checked.
    Whole,
    /// Some huge pages of each mapping are checked, and all others only if one of them is in a huge folio.
    /// A file of which only a small part is huge may be missed.
    Sampled,
}

/// Fills [`Snapshot::cached`] for the `parts` of the objects for which `takes` returns true, of process `pid`
/// or of a program that does not run.
pub fn find(
    pid: Option<u32>,
    snapshot: &mut Snapshot,
    parts: &[Part],
    takes: impl Fn(&Object) -> bool,
    search: Search,
) {
    let Some(huge) = snapshot.machine.thp_page else { return };
    let files = pid.map(|pid| MappedFiles::of(Process::new(pid)));
    let mut cached = Vec::new();
    let worth = |range: Range| range.inner(huge).is_some();
    let mut all = snapshot.extents();
    all.retain(|e| parts.contains(&e.part) && e.file_backed && worth(e.range));
    for (index, object) in snapshot.objects.iter().enumerate().filter(|(_, o)| takes(o)) {
        let extents: Vec<_> = all.iter().filter(|e| e.object == index).collect();
        if extents.is_empty() {
            continue;
        }
        let Some(file) = file_of(files.as_ref(), object, &snapshot.mappings) else { continue };
        for mapping in extents.iter().filter_map(|e| snapshot.mapping_at(e.range.start)) {
            let skew = mapping.range.start.0.wrapping_sub(mapping.offset);
            if skew & (huge.bytes() - 1) == 0 && worth(mapping.range) {
                let back = |r: Range| Range { start: Addr(r.start.0 + skew), end: Addr(r.end.0 + skew) };
                cached.extend(stretches(&file, offsets(mapping), huge, search).into_iter().map(back));
            }
        }
    }
    cached.sort();
    cached.dedup();
    snapshot.cached = cached;
}

/// Fills [`Snapshot::cached`] for what a lift of process `pid` wants.
pub fn find_wanted(pid: u32, snapshot: &mut Snapshot, policy: &Policy) {
    if policy.backings.contains(&Backing::Pagecache) {
        find(Some(pid), snapshot, &policy.parts, |object| policy.objects.takes(object), Search::Whole);
    }
}

/// The result of [`prime_program`].
#[derive(Debug, Default)]
pub struct Priming {
    /// What was done to each file that was not in huge folios already.
    pub files: Vec<FileReport>,
    /// Whether nearly all whole huge pages that were wanted are in huge folios now.
    pub is_complete: bool,
}

/// Brings the wanted `parts` of a program and of the objects that it needs into huge folios, as far as that is
/// possible. The program must not run yet, as its own mappings would keep the small pages.
pub fn prime_program(path: &Path, parts: &[Part], takes: impl Fn(&Path) -> bool) -> Priming {
    let Ok(huge) = prime::huge_page() else { return Priming::default() };
    // execve(2) will report what is wrong with the program.
    let Ok(file) = executable(path).and_then(|path| ElfFile::open(&path)) else {
        return Priming::default();
    };
    let mut priming = Priming { files: Vec::new(), is_complete: true };
    for (index, file) in needed(file).files.into_iter().enumerate() {
        // The executable is moved to the best base; the kernel aligns the others.
        let moved = index == 0 && file.headers.relocatable;
        let bias = if moved { congruent_residue(&file.headers, parts, huge, base_page()) } else { None };
        if takes(&std::fs::canonicalize(&file.path).unwrap_or(file.path.clone())) {
            priming.is_complete &= priming.add(&file, bias.unwrap_or(0), parts, huge);
        }
    }
    priming
}

impl Priming {
    /// Primes a file and records the result. Returns whether nearly all of its wanted parts is then
    /// in huge folios that fit a mapping with `bias`.
    fn add(&mut self, file: &ElfFile, bias: u64, parts: &[Part], huge: PageSize) -> bool {
        let len = file.file().metadata().map_or(0, |m| m.len());
        let mut wanted = candidates(&file.headers, bias, len, base_page(), huge);
        wanted.retain(|c| parts.contains(&c.part) && c.whole > 0);
        let is_huge = |c: &Candidate| {
            let whole = c.first.and_then(|first| Range::sized(Addr(first), c.whole)).unwrap_or_default();
            let found = huge_stretches(file.file(), whole, huge).into_iter().map(Range::len).sum();
            is_nearly_all(found, c.whole)
        };
        let small: Vec<_> = wanted.iter().filter(|c| !is_huge(c)).collect();
        if small.iter().any(|c| c.first.is_some()) {
            self.files.push(prime::prime(file, bias, huge));
        }
        small.into_iter().all(is_huge)
    }
}

/// Returns whether nearly all whole huge pages of the wanted `parts` of the executable at `path` are in
/// huge folios. Only segments that are congruent when its bias leaves `residue` count.
pub fn is_primed(path: &Path, headers: &Headers, residue: u64, parts: &[Part], huge: PageSize) -> bool {
    let Ok((file, _)) = open::regular(path) else { return false };
    let (page, within) = (base_page(), huge.bytes() - 1);
    let part = |s: &&Segment| if s.prot.exec { Part::Text } else { Part::Rodata };
    let wanted = headers.segments.iter().filter(|s| !s.prot.write && parts.contains(&part(s)));
    let fits = |s: &&Segment| s.vaddr.wrapping_add(residue).wrapping_sub(s.offset) & within == 0;
    let whole = wanted.filter(fits).filter_map(|s| {
        let end = Addr(s.offset.checked_add(s.filesz)?).align_up(page)?;
        Range::new(Addr(s.offset).align_down(page), end)?.inner(huge)
    });
    let whole: Vec<Range> = whole.collect();
    let found =
        whole.iter().flat_map(|w| stretches(&file, *w, huge, Search::Sampled)).map(Range::len).sum::<u64>();
    is_nearly_all(found, whole.iter().map(|w| w.len()).sum())
}

/// Returns the bytes of the file that a mapping maps, as a range of offsets.
fn offsets(mapping: &Mapping) -> Range {
    Range::sized(Addr(mapping.offset), mapping.range.len()).unwrap_or_default()
}

/// Opens the file of an object that a process has mapped, or the file at its path if no process has.
fn file_of(files: Option<&MappedFiles>, object: &Object, mappings: &[Mapping]) -> Option<File> {
    match files {
        None => open::regular(&object.path).ok().map(|(file, _)| file),
        Some(files) => files.find_any(object.file, mappings).and_then(|found| found.open()).ok(),
    }
}

/// Returns the stretches of `offsets`, in whole pages of `huge`, that are in huge folios.
pub fn huge_stretches(file: &File, offsets: Range, huge: PageSize) -> Vec<Range> {
    stretches(file, offsets, huge, Search::Whole)
}

/// What is in memory of one huge page of a file.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Resident {
    /// How many of its base pages.
    pub pages: u64,
    /// It is a huge folio.
    pub huge: bool,
}

/// Returns what is in memory of each huge page of `offsets`, a range of whole ones (mincore(2)); `None` if that is not said.
/// Nothing is read in, and nobody is waited for: lseek(2) for holes would take the lock of the file, which a writer may hold
/// for as long as it likes.
pub fn in_memory(file: &File, offsets: Range, huge: PageSize) -> Option<Vec<Resident>> {
    if !prime::sees_cache(file) {
        return None;
    }
    let window = Window::new(file, offsets, huge)?;
    let base = base_page();
    let mut pages = vec![0u8; usize::try_from(offsets.len() / base.bytes()).ok()?];
    let (at, len) = (window.range.start.0 as *mut libc::c_void, usize::try_from(offsets.len()).ok()?);
    // SAFETY: mincore(2) writes one byte for each base page of the window, of which `pages` has one each.
    if unsafe { libc::mincore(at, len, pages.as_mut_ptr()) } != 0 {
        return None;
    }
    let all = huge.bytes() / base.bytes();
    let count = |pages: &[u8]| pages.iter().filter(|page| **page & 1 != 0).count() as u64;
    let mut found: Vec<Resident> = pages
        .chunks(usize::try_from(all).ok()?)
        .map(|pages| Resident { pages: count(pages), huge: false })
        .collect();
    // A huge folio is in memory as a whole.
    for (at, _) in (0..).step_by(huge.bytes() as usize).zip(&found).filter(|(_, found)| found.pages == all) {
        window.touch(at);
    }
    for range in window.huge() {
        let index = |at: Addr| ((at.0 - window.range.start.0) / huge.bytes()) as usize;
        let last = index(range.end).min(found.len());
        found[index(range.start).min(last)..last].iter_mut().for_each(|found| found.huge = true);
    }
    Some(found)
}

fn stretches(file: &File, offsets: Range, huge: PageSize, search: Search) -> Vec<Range> {
    let Some(whole) = offsets.inner(huge) else { return Vec::new() };
    let Some(window) = Window::new(file, whole, huge) else { return Vec::new() };
    let touch = |at| {
        if is_resident(file, whole.start.0 + at) {
            window.touch(at);
        }
    };
    let count = whole.len() / huge.bytes();
    if search == Search::Sampled && count > SAMPLES {
        let samples = (0..SAMPLES).map(|n| n * (count - 1) / (SAMPLES - 1) * huge.bytes());
        samples.for_each(touch);
        if window.huge().is_empty() {
            return Vec::new();
        }
    }
    (0..whole.len()).step_by(huge.bytes() as usize).for_each(touch);
    let back = |r: &Range| {
        let at = |a: Addr| Addr(whole.start.0 + (a.0 - window.range.start.0));
        Range { start: at(r.start), end: at(r.end) }.inner(huge)
    };
    window.huge().iter().filter_map(back).collect()
}

/// Returns whether the page cache has the byte at `offset`. It is read without waiting for the disk.
fn is_resident(file: &File, offset: u64) -> bool {
    let mut byte = [0u8];
    let iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let Ok(offset) = i64::try_from(offset) else { return false };
    // SAFETY: preadv2(2) writes at most one byte to `byte`, which lives through the call.
    unsafe { libc::preadv2(file.as_raw_fd(), &raw const iov, 1, offset, libc::RWF_NOWAIT) == 1 }
}

/// A mapping of a file in this process at a congruent address; unmapped when dropped.
struct Window {
    _reserved: Reservation,
    range: Range,
}

impl Window {
    fn new(file: &File, offsets: Range, huge: PageSize) -> Option<Window> {
        let len = usize::try_from(offsets.len()).ok()?;
        let mut reserved = Reservation::new(len, huge).ok()?;
        let start =
            reserved.map_file(0, len, libc::PROT_READ, libc::MAP_PRIVATE, file, offsets.start.0).ok()?;
        let range = Range::sized(Addr(start.addr() as u64), offsets.len())?;
        Some(Window { _reserved: reserved, range })
    }

    /// Faults one page in. After an error (the file was truncated) it is not mapped.
    fn touch(&self, at: u64) {
        let addr = (self.range.start.0 + at) as *mut libc::c_void;
        // SAFETY: madvise(2) of a page of our own mapping; it touches none of our memory.
        unsafe { libc::madvise(addr, 4096, libc::MADV_POPULATE_READ) };
    }

    fn huge(&self) -> Vec<Range> {
        let own = std::process::id().cast_signed();
        pagemap::huge_ranges(own, self.range, false).unwrap_or_else(|_| self.huge_by_smaps())
    }

    /// Does the same before Linux 6.7. smaps does not say which bytes are huge: returns all or none.
    fn huge_by_smaps(&self) -> Vec<Range> {
        let usage = Process::OWN.smaps().unwrap_or_default();
        let own = usage.iter().filter(|u| self.range.covers(u.mapping.range));
        let huge: u64 = own.map(|u| u.file_huge + u.shmem_huge).sum();
        if huge >= self.range.len() { vec![self.range] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn issue_32_2_what_a_file_has_in_memory_is_seen_and_not_changed() {
        let file = File::from(memfd_create(c"holes", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1], 2 << 20).unwrap();
        file.write_all_at(&vec![1; 2 << 20], 4 << 20).unwrap();
        let all = Range { start: Addr(0), end: Addr(8 << 20) };
        let pages = |pages| Resident { pages, huge: false };
        let whole = (2 << 20) / base_page().bytes();
        let found = in_memory(&file, all, PageSize::MB2).unwrap();
        assert_eq!(found, [pages(0), pages(1), pages(whole), pages(0)]);
        assert_eq!(file.metadata().unwrap().blocks() * 512, (2 << 20) + base_page().bytes());
        // Beyond the end there is nothing.
        let beyond = Range { start: Addr(8 << 20), end: Addr(12 << 20) };
        assert_eq!(in_memory(&file, beyond, PageSize::MB2), Some(vec![pages(0), pages(0)]));
    }

    #[test]
    fn pages_outside_the_cache_are_not_read() {
        let path = std::env::temp_dir().join(format!("hugelift-cold-{}", std::process::id()));
        let bytes = vec![7u8; 8 << 20];
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.sync_all().unwrap();
        let all = Range { start: Addr(0), end: Addr(8 << 20) };
        // In whatever folios it is: whole pages of the file, and no offset beyond.
        let found = huge_stretches(&file, all, PageSize::MB2);
        assert!(found.iter().all(|r| all.covers(*r) && r.len() % (2 << 20) == 0), "{found:?}");
        assert!(
            huge_stretches(&file, Range { start: Addr(4096), end: Addr(2 << 20) }, PageSize::MB2).is_empty()
        );
        assert_eq!(stretches(&file, all, PageSize::MB2, Search::Sampled), found);
        let beyond = Range { start: Addr(64 << 20), end: Addr(80 << 20) };
        assert!(huge_stretches(&file, beyond, PageSize::MB2).is_empty());
    }
}
