// SPDX-License-Identifier: Apache-2.0
//! The reference for a lift that copies: one thread maps the same ranges of the same files as the program,
//! and copies their whole huge pages to new huge pages. No lift can be faster than this, and none should be
//! much slower.

use anyhow::{Context as _, Result};
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::elf::{HEAD_BYTES, Headers};
use hugelift_core::maps::Mapping;
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::host;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// A read-only mapping of a file with at least one whole huge page.
pub struct Piece {
    file: File,
    mapping: Mapping,
    inner: Range,
}

/// The measurements of one run of the reference.
pub struct Cost {
    /// Time in seconds.
    pub seconds: f64,
    /// Bytes that were on huge pages after the copy.
    pub huge: u64,
}

/// Returns text and read-only data of all objects of a bare program.
///
/// # Errors
/// One of its files cannot be read.
pub fn pieces(memory: &[Usage]) -> Result<Vec<Piece>> {
    let page = page();
    let mut headers: HashMap<&Path, Option<Headers>> = HashMap::new();
    let mut pieces = Vec::new();
    for mapping in memory.iter().map(|usage| &usage.mapping) {
        let Some(inner) = mapping.range.inner(page) else { continue };
        if !mapping.is_file() || mapping.prot.write || !mapping.prot.read {
            continue;
        }
        let path = mapping.path.as_path();
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let headers = headers.entry(path).or_insert_with(|| read_headers(&file));
        if headers.as_ref().is_some_and(|headers| is_read_only(headers, mapping)) {
            pieces.push(Piece { file, mapping: mapping.clone(), inner });
        }
    }
    Ok(pieces)
}

/// Returns the bytes in whole huge pages of all pieces.
pub fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.inner.len()).sum()
}

/// Maps and copies all pieces once.
///
/// # Errors
/// The kernel refuses a mapping, or, with `hugetlb`, the pool is too small.
pub fn copy(pieces: &[Piece], hugetlb: bool) -> Result<Cost> {
    let mut total = Cost { seconds: 0.0, huge: 0 };
    for piece in pieces {
        let (time, huge) = copy_piece(piece, hugetlb)?;
        total.seconds += time.as_secs_f64();
        total.huge += huge;
    }
    Ok(total)
}

fn copy_piece(piece: &Piece, hugetlb: bool) -> Result<(Duration, u64)> {
    let page = page();
    let huge = page.bytes() as usize;
    // The source has the same address modulo the huge page size as in the program: this decides whether the
    // page cache can be mapped by huge entries.
    let lead = (piece.mapping.range.start.0 % page.bytes()) as usize;
    let bytes = piece.inner.len() as usize;

    let start = Instant::now();
    let area = Area::reserve(lead + piece.mapping.range.len() as usize + huge)?;
    let source = area.place(huge, lead);
    let mut prot = ProtFlags::PROT_READ;
    prot.set(ProtFlags::PROT_EXEC, piece.mapping.prot.exec);
    let length = nonzero(piece.mapping.range.len() as usize)?;
    let offset = piece.mapping.offset as libc::off_t;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // SAFETY: mmap(2) with MAP_FIXED: the range lies inside `area`, to which no reference exists.
    unsafe { mmap(Some(nonzero(source)?), length, prot, flags, &piece.file, offset) }
        .with_context(|| format!("mmap of {}", piece.mapping.path.display()))?;
    let from = source + (piece.inner.start.0 - piece.mapping.range.start.0) as usize;

    let target = if hugetlb { Area::hugetlb(bytes)? } else { Area::reserve_writable(bytes + huge)? };
    let to = target.place(huge, 0);
    if !hugetlb {
        let at = NonNull::new(to as *mut c_void).context("null mapping")?;
        // SAFETY: madvise(2) with MADV_HUGEPAGE changes no byte; the range lies inside `target`.
        unsafe { madvise(at, bytes, MmapAdvise::MADV_HUGEPAGE) }.context("madvise(MADV_HUGEPAGE)")?;
    }
    // SAFETY: both ranges are mapped. The source is readable and wholly inside its file (a text or read-only
    // segment); the target is writable and does not overlap the source.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    drop(area);
    let time = start.elapsed();

    let got = huge_bytes_at(to as u64, bytes as u64)?;
    let start = Instant::now();
    drop(target);
    Ok((time + start.elapsed(), got))
}

/// A mapping of this process. It is unmapped when the value is dropped.
struct Area {
    start: NonNull<c_void>,
    bytes: usize,
}

impl Area {
    fn reserve(bytes: usize) -> Result<Area> {
        Area::anonymous(bytes, ProtFlags::PROT_NONE, MapFlags::empty())
    }

    fn reserve_writable(bytes: usize) -> Result<Area> {
        Area::anonymous(bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::empty())
    }

    fn hugetlb(bytes: usize) -> Result<Area> {
        let size = MapFlags::from_bits_retain((page().log2() as i32) << libc::MAP_HUGE_SHIFT);
        Area::anonymous(bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_HUGETLB | size)
    }

    fn anonymous(bytes: usize, prot: ProtFlags, flags: MapFlags) -> Result<Area> {
        let length = nonzero(bytes)?;
        // SAFETY: mmap(2) at an address of the kernel's choice touches no other mapping.
        let start = unsafe { mmap_anonymous(None, length, prot, MapFlags::MAP_PRIVATE | flags) };
        Ok(Area { start: start.with_context(|| format!("mmap of {bytes} bytes"))?, bytes })
    }

    /// Returns the first address in the mapping that is `lead` bytes above a multiple of `align`.
    fn place(&self, align: usize, lead: usize) -> usize {
        (self.start.as_ptr() as usize).next_multiple_of(align) + lead
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of what this value mapped; no reference to it exists.
        let done = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(done.is_ok(), "munmap: {done:?}");
    }
}

fn huge_bytes_at(start: u64, bytes: u64) -> Result<u64> {
    let usages = Process::OWN.smaps()?;
    let inside = |usage: &&Usage| {
        let range = usage.mapping.range;
        range.start.0 < start + bytes && start < range.end.0
    };
    Ok(usages.iter().filter(inside).map(Usage::huge).sum::<u64>().min(bytes))
}

fn read_headers(file: &File) -> Option<Headers> {
    let mut head = vec![0; HEAD_BYTES];
    let read = file.read_at(&mut head, 0).ok()?;
    Headers::parse(&head[..read]).ok()
}

/// Whether the mapping belongs to a segment that is not writable. RELRO, which is read-only after relocation,
/// does not count.
fn is_read_only(headers: &Headers, mapping: &Mapping) -> bool {
    let first_page = |offset: u64| offset & !(PageSize::SMALL.bytes() - 1);
    headers.segments.iter().any(|segment| {
        !segment.prot.write && segment.prot == mapping.prot && first_page(segment.offset) == mapping.offset
    })
}

fn page() -> PageSize {
    PageSize::new(host::huge_page_bytes()).unwrap_or(PageSize::MB2)
}

fn nonzero(bytes: usize) -> Result<NonZeroUsize> {
    NonZeroUsize::new(bytes).context("an empty mapping")
}
