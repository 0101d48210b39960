// SPDX-License-Identifier: Apache-2.0
//! Finds what smaps shows of an object's text and read-only data. Uses no code of hugelift's
//! planner, only the object's program headers and the kernel's list of mappings.

pub use super::file_maps::files;

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Headers;
use hugelift_core::maps::Mapping;
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One read-only segment of one object in a running process.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The object.
    pub object: PathBuf,
    /// Whether it holds code, not constants.
    pub text: bool,
    /// The segment's pages.
    pub range: Range,
    /// The bytes of the segment that come from the file, and their offset in the file.
    pub file: (Range, u64),
    /// The whole huge pages inside it, where there is one.
    pub inner: Option<Range>,
    /// Bytes of `inner` that are mapped huge.
    pub huge: u64,
    /// The part of `huge` that is on transparent huge pages in anonymous memory.
    pub thp: u64,
    /// The part of `huge` that is from the pool.
    pub hugetlb: u64,
}

/// Returns the mappings of a process with their counters.
pub fn smaps(pid: u32) -> Vec<Usage> {
    Process::new(pid).smaps().expect("its smaps")
}

/// Returns every read-only segment of each of `objects` in a process.
pub fn pieces(pid: u32, objects: &[PathBuf]) -> Vec<Piece> {
    let usage = smaps(pid);
    objects.iter().flat_map(|object| pieces_of(&usage, object)).collect()
}

/// Returns the huge bytes of the read-only segments of an object in a process; `None` if the process has ended.
pub fn huge_of(pid: u32, object: &Path) -> Option<u64> {
    let usage = Process::new(pid).smaps().ok()?;
    Some(pieces_of(&usage, object).iter().map(|piece| piece.huge).sum())
}

fn pieces_of(usage: &[Usage], object: &Path) -> Vec<Piece> {
    let headers = headers(object);
    let Some(bias) = bias(usage, object, &headers) else { return vec![] };
    let page = PageSize::MB2;
    let base = |a: u64| a & !4095;
    let constant = headers.segments.iter().filter(|s| !s.prot.write && s.prot.read);
    // Neighbours of the same protection are one piece: a huge page may lie across.
    let mut all: Vec<Piece> = Vec::new();
    for segment in constant {
        let start = segment.vaddr.wrapping_add(bias);
        let range = Range::new(Addr(base(start)), Addr(base(start + segment.memsz + 4095)))
            .expect("a segment's range");
        let bytes = Range::sized(Addr(start), segment.filesz).expect("a segment's bytes");
        let inner = range.inner(page);
        let (mut huge, mut thp, mut hugetlb) = (0, 0, 0);
        for one in usage {
            let Some(shared) = inner.and_then(|inner| inner.intersect(one.mapping.range)) else { continue };
            // Where a mapping reaches beyond `inner`, smaps does not show which of its bytes are
            // huge, unless all are.
            let whole = one.mapping.range == shared || one.huge() == one.mapping.range.len();
            if whole {
                huge += one.huge().min(shared.len());
                thp += one.anon_huge.min(shared.len());
                hugetlb += one.hugetlb().min(shared.len());
            }
        }
        let file = (bytes, segment.offset);
        all.push(Piece {
            object: object.to_owned(),
            text: segment.prot.exec,
            range,
            file,
            inner,
            huge,
            thp,
            hugetlb,
        });
    }
    all
}

fn headers(object: &Path) -> Headers {
    // Reads the whole file: a tool that has edited it (BOLT, patchelf) may have moved the headers
    // to its end.
    let file = std::fs::read(object).unwrap_or_else(|e| panic!("{}: {e}", object.display()));
    Headers::parse(&file).unwrap_or_else(|e| panic!("{}: {e}", object.display()))
}

/// Returns what loading added to the stated addresses: the value that most of the object's mappings
/// agree on, because one page of the file may be part of two segments.
fn bias(usage: &[Usage], object: &Path, headers: &Headers) -> Option<u64> {
    let mut votes: BTreeMap<u64, u32> = BTreeMap::new();
    for mapping in usage.iter().map(|u| &u.mapping).filter(|m| m.path == object) {
        for segment in &headers.segments {
            let skew = segment.vaddr.wrapping_sub(segment.offset);
            let inside = (segment.offset & !4095) <= mapping.offset
                && mapping.offset < segment.offset + segment.filesz;
            if inside && mapping.prot.exec == segment.prot.exec {
                *votes
                    .entry(mapping.range.start.0.wrapping_sub(mapping.offset.wrapping_add(skew)))
                    .or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, n)| *n).map(|(bias, _)| bias)
}

/// Asserts that every whole huge page of every piece is huge, by this backing. Returns how many
/// pieces have a whole huge page.
pub fn assert_lifted(pieces: &[Piece], backing: &str, what: &str) -> usize {
    let mut found = 0;
    for piece in pieces {
        let Some(inner) = piece.inner else { continue };
        found += 1;
        let by = if backing == "thp" { piece.thp } else { piece.hugetlb };
        assert!(
            piece.huge == inner.len() && by == inner.len(),
            "{what}: {} {} at {inner:?} has {} kB; {} kB of it are huge, {} kB by {backing}",
            piece.object.display(),
            if piece.text { "text" } else { "rodata" },
            inner.len() >> 10,
            piece.huge >> 10,
            by >> 10
        );
    }
    found
}

/// Asserts that the bytes of each piece are those of the object's file.
pub fn assert_unchanged(pid: u32, pieces: &[Piece]) {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("open mem");
    for piece in pieces {
        let file = File::open(&piece.object).expect("open the object");
        let (range, offset) = piece.file;
        let (mut here, mut there) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut done = 0;
        while done < range.len() {
            let n = (range.len() - done).min(1 << 20) as usize;
            memory.read_exact_at(&mut here[..n], range.start.0 + done).expect("read mem");
            file.read_exact_at(&mut there[..n], offset + done).expect("read the object");
            // A failure prints the place, not megabytes of data.
            let same = here[..n] == there[..n];
            assert!(same, "{} differs after {:#x}", piece.object.display(), range.start.0 + done);
            done += n as u64;
        }
    }
}

/// Asserts that no mapping within these pieces is writable and executable. (A JIT compiler may have
/// such a mapping elsewhere.)
pub fn assert_no_wx(pid: u32, pieces: &[Piece]) {
    let within = |range: Range| pieces.iter().any(|p| p.range.intersect(range).is_some());
    let all = smaps(pid).into_iter().map(|u| u.mapping);
    let bad: Vec<_> = all.filter(|m| m.prot.is_wx() && within(m.range)).collect();
    assert!(bad.is_empty(), "writable and executable: {bad:?}");
}
