// SPDX-License-Identifier: Apache-2.0
//! The mappings that loading an object makes, worked out from its program headers.

use crate::addr::{Addr, PageSize, Range};
use crate::elf::{Headers, Segment};
use crate::maps::{FileId, Mapping, Prot};
use std::path::{Path, PathBuf};

/// Returns the mappings of the object with these `headers`, loaded with `bias`, as they are after the
/// loader has protected RELRO, sorted by address; `None` if the object does not fit into the address
/// space.
pub fn mappings(
    headers: &Headers,
    bias: u64,
    base: PageSize,
    file: FileId,
    path: &Path,
) -> Option<Vec<Mapping>> {
    let mut all = Vec::new();
    for (i, segment) in headers.segments.iter().enumerate() {
        let next = headers.segments.get(i + 1);
        map(&mut all, segment, next, bias, base, (file, path))?;
    }
    let all = protect_relro(all, headers, bias, base);
    Some(all)
}

/// Returns a private mapping without a file.
pub fn anonymous(range: Range, prot: Prot, name: impl Into<PathBuf>) -> Mapping {
    let path = name.into();
    Mapping { range, prot, shared: false, offset: 0, file: FileId::default(), path, deleted: false }
}

/// Adds the mappings of one segment: its pages of the file, then the zeros behind them.
fn map(
    all: &mut Vec<Mapping>,
    segment: &Segment,
    next: Option<&Segment>,
    bias: u64,
    base: PageSize,
    (file, path): (FileId, &Path),
) -> Option<()> {
    let at = |vaddr: u64| Addr(vaddr.wrapping_add(bias));
    let start = at(segment.vaddr).align_down(base);
    // A later segment that begins in the last page of this one is mapped over it.
    let limit = next.map_or(Addr(u64::MAX), |next| at(next.vaddr).align_down(base));
    let file_end = match segment.filesz {
        0 => start,
        bytes => at(segment.vaddr.checked_add(bytes)?).align_up(base)?.min(limit),
    };
    let end = at(segment.vaddr.checked_add(segment.memsz)?).align_up(base)?.min(limit);
    if let Some(range) = Range::new(start, file_end).filter(|r| !r.is_empty()) {
        let offset = Addr(segment.offset).align_down(base).0;
        let path = path.to_owned();
        all.push(Mapping { range, prot: segment.prot, shared: false, offset, file, path, deleted: false });
    }
    if let Some(range) = Range::new(file_end, end).filter(|r| !r.is_empty()) {
        all.push(anonymous(range, segment.prot, ""));
    }
    Some(())
}

/// Removes write permission from the range that the loader protects after relocation.
fn protect_relro(all: Vec<Mapping>, headers: &Headers, bias: u64, base: PageSize) -> Vec<Mapping> {
    let stated = headers.relro.and_then(|relro| {
        let start = Addr(relro.vaddr.wrapping_add(bias)).align_down(base);
        let end = Addr(relro.vaddr.wrapping_add(relro.size).wrapping_add(bias)).align_down(base);
        Range::new(start, end)
    });
    let Some(relro) = stated else { return all };
    let mut out = Vec::with_capacity(all.len() + 2);
    for mapping in all {
        let Some(inside) = mapping.range.intersect(relro) else {
            out.push(mapping);
            continue;
        };
        let protected = (inside, Prot { write: false, ..mapping.prot });
        let others = mapping.range.minus(relro).into_iter().map(|range| (range, mapping.prot));
        for (range, prot) in others.chain([protected]) {
            let offset = match mapping.is_file() {
                true => mapping.offset + (range.start.0 - mapping.range.start.0),
                false => 0,
            };
            out.push(Mapping { range, prot, offset, ..mapping.clone() });
        }
    }
    out.sort_by_key(|m| m.range.start);
    out
}
