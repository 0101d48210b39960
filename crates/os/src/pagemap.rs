// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst): which pages of a range are
//! there; by `PAGEMAP_SCAN` (Linux 6.7), which of them huge entries map, without the walk over the
//! whole process that smaps costs.

use hugelift_core::addr::{Addr, Range};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Regions asked for at a time; neighbours of the same kind come as one.
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

/// Bytes of `range` in process `pid` that huge pages map.
///
/// # Errors
/// ENOTTY before Linux 6.7; EACCES, ENOENT.
pub fn huge_bytes(pid: i32, range: Range) -> io::Result<u64> {
    scan(pid, range, PAGE_IS_HUGE, 0)
}

/// Bytes of `range`, which maps a file, that are resident and no longer the file's.
///
/// # Errors
/// As [`huge_bytes`].
pub fn written_bytes(pid: i32, range: Range) -> io::Result<u64> {
    scan(pid, range, PAGE_IS_PRESENT | PAGE_IS_FILE, PAGE_IS_FILE)
}

/// Bytes of `range` in process `pid` that are mapped to memory, zero pages with them, of which
/// smaps knows nothing.
///
/// # Errors
/// EACCES, ENOENT.
pub fn present_bytes(pid: i32, range: Range) -> io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    const ENTRY: u64 = 8;
    let page = crate::machine::base_page().bytes();
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
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

/// The stretches of `range` that huge pages map: those with contents, or the huge zero page.
///
/// # Errors
/// As [`huge_bytes`].
pub fn huge_ranges(pid: i32, range: Range, zero: bool) -> io::Result<Vec<Range>> {
    let mut all = Vec::new();
    let inverted = if zero { 0 } else { PAGE_IS_PFNZERO };
    walk(pid, range, PAGE_IS_HUGE | PAGE_IS_PFNZERO, inverted, &mut |found| all.push(found))?;
    Ok(all)
}

/// Bytes of the pages that are of all `categories`, those in `inverted` negated.
fn scan(pid: i32, range: Range, categories: u64, inverted: u64) -> io::Result<u64> {
    let mut bytes = 0;
    walk(pid, range, categories, inverted, &mut |found| bytes += found.len())?;
    Ok(bytes)
}

/// Calls `found` with each stretch of such pages.
fn walk(
    pid: i32,
    range: Range,
    categories: u64,
    inverted: u64,
    found: &mut dyn FnMut(Range),
) -> io::Result<()> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut regions = [Region::default(); REGIONS];
    let mut start = range.start.0;
    while start < range.end.0 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: range.end.0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: categories,
            category_inverted: inverted,
            return_mask: categories,
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
