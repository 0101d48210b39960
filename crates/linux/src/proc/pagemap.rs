// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst): which pages of a range are present.
//! `PAGEMAP_SCAN` (Linux 6.7) also says which of them huge entries map, without the walk over the whole
//! process that smaps costs.

use crate::machine::{base_page, thp_page};
use crate::proc::procfs::Process;
use crate::proc::unchanged::parse_unchanged;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::smaps::parse_smaps;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// In swap space, or on the way to another place in memory.
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Bytes of an entry of the file.
const ENTRY: u64 = 8;
/// Regions that one call may return; adjacent pages of the same kind are one region.
const REGIONS: usize = 64;

/// `struct pm_scan_arg` (linux/fs.h)
#[derive(Default)]
#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` (linux/fs.h)
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Returns the bytes of `range` in process `pid` that huge pages map.
///
/// # Errors
/// ENOTTY before Linux 6.7; EACCES, ENOENT.
pub fn huge_bytes(pid: i32, range: Range) -> io::Result<u64> {
    let mut bytes = 0;
    walk_file(&open(pid)?, range, Wanted::of(PAGE_IS_HUGE, 0), &mut |found| bytes += found.len())?;
    Ok(bytes)
}

/// Returns the same as [`huge_bytes`] for a `range` of whole huge pages, also before Linux 6.7. There it is
/// a lower bound: too low if whole huge pages of the same mapping beside `range` are present as small
/// pages.
///
/// # Errors
/// EACCES, ENOENT, ESRCH; `InvalidData` if smaps does not parse.
pub fn huge_bytes_at_least(pid: i32, range: Range) -> io::Result<u64> {
    huge_bytes(pid, range).or_else(|_| huge_bytes_by_smaps(pid, range))
}

/// Returns the huge bytes that smaps counts for the mappings of `range`, less the huge bytes that may lie beside
/// `range`: every huge page there whose base pages are all present.
fn huge_bytes_by_smaps(pid: i32, range: Range) -> io::Result<u64> {
    let smaps = Process::of(pid).path("smaps");
    let usages =
        parse_unchanged(&smaps, parse_smaps)?.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    // Pages of the pool are mappings of their own, so only transparent huge pages are beside `range`.
    let page = thp_page().unwrap_or(PageSize::MB2);
    let mut bytes = 0;
    for usage in usages.iter().filter(|u| u.huge() > 0) {
        let Some(inside) = usage.mapping.range.intersect(range) else { continue };
        let mut beside = 0;
        for other in usage.mapping.range.minus(range).into_iter().filter_map(|r| r.inner(page)) {
            for start in (other.start.0..other.end.0).step_by(page.bytes() as usize) {
                let one = Range::sized(Addr(start), page.bytes()).unwrap_or_default();
                beside += if present_bytes(pid, one)? == one.len() { one.len() } else { 0 };
            }
        }
        bytes += usage.huge().saturating_sub(beside).min(inside.len());
    }
    Ok(bytes)
}

/// Returns the bytes of `range`, which maps a file, that are no longer the file's: in memory, or in swap space.
///
/// # Errors
/// See [`huge_bytes`].
pub fn written_bytes(pid: i32, range: Range) -> io::Result<u64> {
    let own = Wanted { any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED, ..Wanted::without(PAGE_IS_FILE) };
    let mut bytes = 0;
    walk_file(&open(pid)?, range, own, &mut |found| bytes += found.len())?;
    Ok(bytes)
}

/// Returns whether any page of `range`, which maps a file, is no longer the file's ([`written_bytes`]), also before Linux 6.7.
///
/// # Errors
/// EACCES, ENOENT.
pub fn is_written(pid: i32, range: Range) -> io::Result<bool> {
    if let Ok(bytes) = written_bytes(pid, range) {
        return Ok(bytes > 0);
    }
    let page = base_page().bytes();
    let mut entries = vec![0; (range.len() / page * ENTRY) as usize];
    open(pid)?.read_exact_at(&mut entries, range.start.0 / page * ENTRY)?;
    let (entries, _) = entries.as_chunks();
    Ok(entries.iter().any(|entry| is_own_entry(*entry)))
}

/// Returns whether the page at `at`, in a mapping of a file, is no longer the file's
/// (`/proc/PID/pagemap`, for kernels without PAGEMAP_SCAN).
///
/// # Errors
/// EACCES, ENOENT.
pub fn is_own(pid: i32, at: Addr) -> io::Result<bool> {
    let mut entry = [0; ENTRY as usize];
    open(pid)?.read_exact_at(&mut entry, at.0 / base_page().bytes() * ENTRY)?;
    Ok(is_own_entry(entry))
}

/// Returns whether an entry describes a page that belongs to no file, in memory or in swap space.
fn is_own_entry(entry: [u8; ENTRY as usize]) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE_OR_SHARED: u64 = 1 << 61;
    let entry = u64::from_ne_bytes(entry);
    entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0
}

/// Returns whether all pages of `range` are resident, and no other process maps any of them.
///
/// # Errors
/// EACCES, ENOENT.
pub fn is_exclusive(pid: i32, range: Range) -> io::Result<bool> {
    const PRESENT_AND_EXCLUSIVE: u64 = 1 << 63 | 1 << 56;
    let all = entries(&open(pid)?, range)?;
    let is_whole = all.len() as u64 == range.len() / base_page().bytes();
    Ok(is_whole && all.iter().all(|entry| entry & PRESENT_AND_EXCLUSIVE == PRESENT_AND_EXCLUSIVE))
}

/// Returns the bytes of `range` in process `pid` that are present, zero pages included, which smaps does
/// not count.
///
/// # Errors
/// EACCES, ENOENT.
pub fn present_bytes(pid: i32, range: Range) -> io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    let page = base_page().bytes();
    let pagemap = File::open(Process::of(pid).path("pagemap"))?;
    let mut buffer = [0; 1 << 15];
    let mut present = 0;
    let (mut at, end) = (range.start.0 / page * ENTRY, range.end.0.div_ceil(page) * ENTRY);
    while at < end {
        let wanted = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let got = pagemap.read_at(&mut buffer[..wanted], at)?;
        let (entries, _) = buffer[..got].as_chunks::<{ ENTRY as usize }>();
        present += entries.iter().filter(|e| u64::from_ne_bytes(**e) & PRESENT != 0).count() as u64;
        if entries.is_empty() {
            break;
        }
        at += ENTRY * entries.len() as u64;
    }
    Ok(present * page)
}

/// Returns the stretches of `range` that huge pages map: pages with contents, or with `zero` the huge zero
/// page.
///
/// # Errors
/// See [`huge_bytes`].
pub fn huge_ranges(pid: i32, range: Range, zero: bool) -> io::Result<Vec<Range>> {
    let mut all = Vec::new();
    huge_stretches(&open(pid)?, range, zero, &mut |found| all.push(found))?;
    Ok(all)
}

/// Calls `found` with each stretch that [`huge_ranges`] would return.
///
/// # Errors
/// ENOTTY before Linux 6.7; ESRCH once the process has released its memory.
pub fn huge_stretches(
    pagemap: &File,
    range: Range,
    zero: bool,
    found: &mut dyn FnMut(Range),
) -> io::Result<()> {
    let inverted = if zero { 0 } else { PAGE_IS_PFNZERO };
    walk_file(pagemap, range, Wanted::of(PAGE_IS_HUGE | PAGE_IS_PFNZERO, inverted), found)
}

/// Reads the entries of `range`, one for each base page; fewer once the process has released its memory.
///
/// # Errors
/// pread(2)
pub fn entries(pagemap: &File, range: Range) -> io::Result<Vec<u64>> {
    let page = base_page().bytes();
    let mut bytes = vec![0; usize::try_from(range.len() / page * ENTRY).unwrap_or(0)];
    let got = pagemap.read_at(&mut bytes, range.start.0 / page * ENTRY)?;
    let (entries, _) = bytes[..got].as_chunks();
    Ok(entries.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
}

/// Opens the pagemap of process `pid`. It shows the memory that the process has now, which is released at its
/// next execve(2).
///
/// # Errors
/// EACCES, ENOENT.
pub fn open(pid: i32) -> io::Result<File> {
    File::open(Process::of(pid).path("pagemap"))
}

/// Calls `found` with each stretch of `range` whose pages are present, zero pages included.
///
/// # Errors
/// See [`huge_stretches`].
pub fn present_stretches(pagemap: &File, range: Range, found: &mut dyn FnMut(Range)) -> io::Result<()> {
    walk_file(pagemap, range, Wanted::of(PAGE_IS_PRESENT, 0), found)
}

/// Returns the first page of `range` that the process has in its page tables.
///
/// # Errors
/// See [`huge_bytes`].
pub fn first_present(pagemap: &File, range: Range) -> io::Result<Option<Addr>> {
    let mut region = Region::default();
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start.0,
        end: range.end.0,
        vec: &raw mut region as u64,
        vec_len: 1,
        max_pages: 1,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..ScanArg::default()
    };
    // SAFETY: ioctl(2) PAGEMAP_SCAN reads and writes `arg` and writes at most one region to
    // `region`; both live through the call.
    match unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) } {
        0 => Ok(None),
        1.. => Ok(Some(Addr(region.start))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which pages are wanted, by their categories (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy)]
struct Wanted {
    /// The categories that matter.
    mask: u64,
    /// The categories of `mask` that a page must not have. It must have the others of `mask`.
    inverted: u64,
    /// A page must have one of these categories, if any are named.
    any: u64,
}

impl Wanted {
    /// Wants pages that lack the categories `inverted`, and have all other categories of `mask`.
    fn of(mask: u64, inverted: u64) -> Wanted {
        Wanted { mask, inverted, any: 0 }
    }

    /// Wants pages that lack these categories.
    fn without(categories: u64) -> Wanted {
        Wanted::of(categories, categories)
    }
}

/// Calls `found` with each stretch of the `wanted` pages of `range`.
fn walk_file(pagemap: &File, range: Range, wanted: Wanted, found: &mut dyn FnMut(Range)) -> io::Result<()> {
    let mut regions = [Region::default(); REGIONS];
    let mut start = range.start.0;
    while start < range.end.0 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: range.end.0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: wanted.mask,
            category_inverted: wanted.inverted,
            category_anyof_mask: wanted.any,
            return_mask: wanted.mask,
            ..ScanArg::default()
        };
        // SAFETY: ioctl(2) PAGEMAP_SCAN reads and writes `arg` and writes at most vec_len
        // regions to `regions`; both live through the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for region in &regions[..count.min(REGIONS)] {
            Range::new(Addr(region.start), Addr(region.end)).map(&mut *found);
        }
        if arg.walk_end <= start {
            break;
        }
        start = arg.walk_end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::probe;
    use std::num::NonZeroUsize;

    #[test]
    fn the_first_present_page() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let page = base_page().bytes();
        let len = NonZeroUsize::new(16 * page as usize).unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping of our own; the page written is inside.
        let start = unsafe {
            let start =
                mmap_anonymous(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags).unwrap();
            start.byte_add(5 * page as usize).cast::<u8>().write(1);
            start
        };
        let whole = Range::sized(Addr(start.as_ptr() as u64), 16 * page).unwrap();
        let own = open(std::process::id().cast_signed()).unwrap();
        let fifth = Addr(whole.start.0 + 5 * page);
        match first_present(&own, whole) {
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOTTY), "before Linux 6.7"),
            found => {
                assert_eq!(found.unwrap(), Some(fifth));
                let behind = Range::new(Addr(fifth.0 + page), whole.end).unwrap();
                assert_eq!(first_present(&own, behind).unwrap(), None);
            }
        }
        // SAFETY: what was mapped above.
        unsafe { munmap(start, len.get()).unwrap() };
    }

    /// Counts in each part of a mapping that huge pages map in part. The kernel may split a huge page of zeros at any
    /// moment, between two counts too.
    #[test]
    fn huge_pages_are_counted_by_both_ways() {
        let wanted = thp_page().filter(|p| p.bytes() <= 32 << 20 && probe(None).thp_off.is_none());
        let Some(page) = wanted else { return println!("SKIP: no transparent huge pages of 32 MB or less") };
        let differences: Vec<String> = (0..5).map_while(|_| counts_differ(page)).collect();
        assert!(differences.len() < 5, "{differences:?}");
    }

    /// Makes huge pages, and returns what the counts do not agree on.
    fn counts_differ(page: PageSize) -> Option<String> {
        use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
        let (own, bytes) = (std::process::id().cast_signed(), page.bytes());
        let len = NonZeroUsize::new(6 * bytes as usize).unwrap();
        let (prot, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        // SAFETY: a new mapping of our own.
        let map = unsafe { mmap_anonymous(None, len, prot, flags).unwrap() };
        // SAFETY: advice about that mapping.
        unsafe { madvise(map, len.get(), MmapAdvise::MADV_HUGEPAGE).unwrap() };
        let whole = Range::sized(Addr(map.as_ptr().addr() as u64), len.get() as u64).unwrap();
        let inner = whole.inner(page).unwrap();
        let nth = |n: u64| Range::sized(Addr(inner.start.0 + n * bytes), bytes).unwrap();
        for n in [1, 3] {
            let at = (nth(n).start.0 - whole.start.0) as usize;
            // SAFETY: inside the mapping.
            unsafe { map.byte_add(at).cast::<u8>().write(1) };
        }
        let (mut sum, mut differences) = (0, Vec::new());
        for n in 0..4 {
            // One byte was written, so the whole page is present only if the kernel found a huge one for it.
            let is_huge = present_bytes(own, nth(n)).unwrap() == bytes;
            assert!(!is_huge || n % 2 == 1, "page {n}");
            let expected = if is_huge { bytes } else { 0 };
            let counted = huge_bytes_by_smaps(own, nth(n)).unwrap();
            let exact = match huge_bytes(own, nth(n)) {
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOTTY), "before Linux 6.7");
                    counted
                }
                Ok(exact) => exact,
            };
            if [counted, exact] != [expected; 2] {
                differences.push(format!("page {n}: {expected} bytes, smaps {counted}, exact {exact}"));
            }
            sum += counted;
        }
        let all = huge_bytes_by_smaps(own, whole).unwrap();
        if all != sum {
            differences.push(format!("the whole: {all} bytes, the pages {sum}"));
        }
        // SAFETY: munmap(2) of the mapping made above.
        unsafe { munmap(map, len.get()).unwrap() };
        (!differences.is_empty()).then(|| differences.join("; "))
    }
}
