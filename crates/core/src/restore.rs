// SPDX-License-Identifier: Apache-2.0
//! Finds the copies of a process's code and read-only data, and the part of a file that each copy replaced.

use crate::addr::Range;
use crate::maps::{Mapping, Prot};
use crate::snapshot::{Extent, Object, Part, Snapshot};
use serde::{Deserialize, Serialize};

/// A copy that lies where a program's file was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// Index into [`Snapshot::objects`].
    pub object: usize,
    /// What it holds.
    pub part: Part,
    /// Where it lies.
    pub range: Range,
    /// The protection that it has.
    pub prot: Prot,
    /// The offset in the object's file of the bytes that were mapped here.
    pub offset: u64,
}

/// What of the copies of a process became pages of their files again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Restored {
    /// Bytes of text and read-only data that were copies.
    pub copied_bytes: u64,
    /// Bytes of these that are pages of their files again.
    pub restored_bytes: u64,
    /// Bytes of these that stay because the copy differs from its file, as a breakpoint makes it.
    pub differing_bytes: u64,
}

impl Replaced {
    /// Returns the part of this copy that lies in `range`, if any does.
    pub fn within(&self, range: Range) -> Option<Replaced> {
        let range = self.range.intersect(range)?;
        let offset = self.offset.checked_add(range.start.0 - self.range.start.0)?;
        Some(Replaced { range, offset, ..*self })
    }
}

/// Returns the copies of text and read-only data, by object and address, mapping by mapping.
pub fn replaced(snapshot: &Snapshot) -> Vec<Replaced> {
    let mut all: Vec<Replaced> = Vec::new();
    for extent in snapshot.extents() {
        let is_copy = !extent.file_backed && !extent.part.is_writable() && !extent.prot.write;
        let Some(object) = snapshot.objects.get(extent.object).filter(|_| is_copy) else { continue };
        let Some(offset) = offset_of(object, extent.range, snapshot.machine.base_page.bytes()) else {
            continue;
        };
        let Extent { object, part, range, prot, .. } = extent;
        all.push(Replaced { object, part, range, prot, offset });
    }
    all
}

/// Returns the process as it would be without these copies: its files' own pages are mapped there, and the pages of the
/// copies are free.
pub fn without(snapshot: &Snapshot, copies: &[Replaced]) -> Snapshot {
    let mut bare = snapshot.clone();
    for copy in copies {
        let Some(index) = bare.mappings.iter().position(|m| m.range.covers(copy.range)) else { continue };
        let Some(object) = bare.objects.get(copy.object) else { continue };
        let whole = bare.mappings[index].clone();
        if whole.is_copy_on_pool()
            && let Some(pool) = bare.machine.pools.iter_mut().find(|p| Some(p.page) == bare.machine.thp_page)
        {
            pool.free += copy.range.len() / pool.page.bytes();
        } else if !whole.is_file() {
            bare.machine.memory_left = bare.machine.memory_left.saturating_add(copy.range.len());
        }
        let of_file = Mapping {
            range: copy.range,
            offset: copy.offset,
            file: object.file,
            path: object.path.clone(),
            deleted: false,
            ..whole.clone()
        };
        let beside = whole.range.minus(copy.range).into_iter().filter(|range| !range.is_empty());
        let mut pieces: Vec<Mapping> = beside
            .map(|range| {
                let offset = whole.offset + (range.start.0 - whole.range.start.0);
                Mapping { range, offset, ..whole.clone() }
            })
            .collect();
        pieces.push(of_file);
        pieces.sort_by_key(|piece| piece.range.start);
        bare.mappings.splice(index..=index, pieces);
    }
    bare
}

/// Returns the offset in the object's file of what it maps at `range`; `None` if no segment without write
/// access holds it, or if address and offset differ within a page of `page` bytes.
fn offset_of(object: &Object, range: Range, page: u64) -> Option<u64> {
    let stated = range.start.0.wrapping_sub(object.bias);
    // Two segments may share a page: the later one is mapped over the earlier.
    let mut segments = object.headers.segments.iter().rev();
    let segment = segments.find(|s| s.vaddr & !(page - 1) <= stated)?;
    let offset = (stated.wrapping_sub(segment.vaddr)).wrapping_add(segment.offset);
    (!segment.prot.write && offset % page == 0).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::maps::FileId;
    use crate::plan::tests::program;

    #[test]
    fn a_copy_is_found_with_the_offset_of_its_bytes() {
        let whole = Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) };
        let mut snapshot = program(whole);
        assert_eq!(replaced(&snapshot), []);

        let text = snapshot.extents().into_iter().find(|e| e.part == Part::Text).unwrap();
        let (middle, after) = (Addr(text.range.start.0 + (2 << 20)), Addr(text.range.start.0 + (4 << 20)));
        let index = snapshot.mappings.iter().position(|m| m.range.covers(text.range)).unwrap();
        let file = snapshot.mappings[index].clone();
        let piece = |start: Addr, end: Addr| {
            let offset = file.offset + (start.0 - file.range.start.0);
            crate::maps::Mapping { range: Range { start, end }, offset, ..file.clone() }
        };
        let mut copy = piece(middle, after);
        (copy.file, copy.offset, copy.path) = (FileId::default(), 0, Default::default());
        let pieces = [piece(file.range.start, middle), copy, piece(after, file.range.end)];
        snapshot.mappings.splice(index..=index, pieces);

        let found = replaced(&snapshot);
        let offset = file.offset + (middle.0 - file.range.start.0);
        let range = Range { start: middle, end: after };
        assert_eq!(
            found,
            [Replaced { object: text.object, part: Part::Text, range, prot: Prot::RX, offset }]
        );

        let part = Range { start: Addr(middle.0 + 0x1000), end: Addr(after.0 + 0x1000) };
        let within = Range { start: part.start, end: after };
        assert_eq!(
            found[0].within(part),
            Some(Replaced { range: within, offset: offset + 0x1000, ..found[0] })
        );
        assert_eq!(found[0].within(Range { start: after, end: part.end }), None);

        let bare = without(&snapshot, &found);
        assert_eq!(replaced(&bare), []);
        assert_eq!(bare.machine.memory_left, snapshot.machine.memory_left + (2 << 20));
        let here = bare.mapping_at(middle).unwrap();
        assert_eq!((here.range, here.offset, &here.path), (range, offset, &file.path));
    }
}
