// SPDX-License-Identifier: Apache-2.0
//! Where the data of a process lies: the parts of its objects without their code, its anonymous memory, and what else it
//! has mapped.

use super::Kind;
use crate::addr::{Addr, PageSize, Range, without};
use crate::by_address::ByAddress;
use crate::maps::Mapping;
use crate::printable::Untrusted;
use crate::smaps::Usage;
use crate::snapshot::Snapshot;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

/// What is counted together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// What it is.
    pub kind: Kind,
    /// The file; `None` for anonymous memory.
    pub path: Option<Untrusted>,
}

/// A stretch of one place, within one span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it lies.
    pub range: Range,
    /// Index into [`Areas::places`].
    pub place: usize,
}

/// The data of a process.
#[derive(Clone, Debug)]
pub struct Areas {
    places: Vec<Place>,
    /// By address, with the index of the place. None overlaps another.
    all: Vec<(Range, usize)>,
    /// What of it has anything in memory.
    resident: Vec<(Range, usize)>,
    by_address: ByAddress<usize>,
}

impl Areas {
    /// Finds the data in a snapshot. `usage` says which mappings have anything in memory.
    pub fn new(snapshot: &Snapshot, usage: &[Usage]) -> Areas {
        let extents = snapshot.extents();
        let anonymous = snapshot.anonymous(&extents);
        let mut found: Vec<(Range, Place)> = Vec::new();
        let mut claimed: Vec<Range> = Vec::new();
        for extent in extents.iter().chain(&anonymous) {
            claimed.push(extent.range);
            if let Some(kind) = Kind::of_part(extent.part) {
                let is_anonymous = matches!(kind, Kind::Heap | Kind::Stack | Kind::Anon);
                let path = snapshot.objects.get(extent.object).map(|object| object.path.clone().into());
                found.push((extent.range, Place { kind, path: path.filter(|_| !is_anonymous) }));
            }
        }
        let claimed: ByAddress<()> = claimed.into_iter().map(|range| (range, ())).collect();
        for mapping in snapshot.mappings.iter().filter(|mapping| is_data(mapping)) {
            let taken = claimed.over(mapping.range).map(|(range, ())| *range);
            let rest = without(vec![mapping.range], taken);
            found.extend(rest.into_iter().map(|range| (range, place(mapping))));
        }
        found.retain(|(range, _)| !range.is_empty());
        found.sort_by_key(|(range, _)| range.start);
        Areas::of(found, usage)
    }

    fn of(found: Vec<(Range, Place)>, usage: &[Usage]) -> Areas {
        let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
        let mut places = Vec::new();
        let mut all: Vec<(Range, usize)> = Vec::new();
        for (range, place) in found {
            let number = *numbers.entry(place).or_insert_with_key(|place| {
                places.push(place.clone());
                places.len() - 1
            });
            // Objects that contradict each other may claim one byte twice: it stays with the first.
            let start = all.last().map_or(range.start, |(last, _)| last.end.max(range.start));
            if let Some(range) = Range::new(start, range.end).filter(|range| !range.is_empty()) {
                all.push((range, number));
            }
        }
        let used = usage.iter().filter(|usage| usage.rss > 0 || usage.hugetlb() > 0);
        let used: ByAddress<()> = used.map(|usage| (usage.mapping.range, ())).collect();
        let resident = all.iter().flat_map(|(range, place)| {
            let over = used.over(*range).filter_map(|(used, ())| used.intersect(*range));
            over.map(|range| (range, *place)).collect::<Vec<_>>()
        });
        let resident = resident.collect();
        Areas { places, by_address: all.iter().copied().collect(), all, resident }
    }

    /// Returns what is counted together.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the bytes that are mapped of each place.
    pub fn mapped(&self) -> Vec<u64> {
        let mut bytes = vec![0_u64; self.places.len()];
        for (range, place) in &self.all {
            bytes[*place] = bytes[*place].saturating_add(range.len());
        }
        bytes
    }

    /// Returns the place that most of `range` belongs to.
    pub fn place_of(&self, range: Range) -> Option<usize> {
        let mut bytes: BTreeMap<usize, u64> = BTreeMap::new();
        for (area, place) in self.by_address.over(range) {
            *bytes.entry(*place).or_default() += area.intersect(range).map_or(0, Range::len);
        }
        // Of two with as many bytes the first one is taken.
        bytes
            .into_iter()
            .max_by_key(|(place, bytes)| (*bytes, std::cmp::Reverse(*place)))
            .map(|(place, _)| place)
    }

    /// Cuts what has anything in memory at multiples of `span`, and visits at most `budget` bytes of it.
    pub fn pieces(&self, span: PageSize, budget: u64) -> impl Iterator<Item = Piece> {
        let mut left = budget;
        let whole = self.resident.iter().flat_map(move |(range, place)| {
            let (mut at, end, place) = (range.start, range.end, *place);
            std::iter::from_fn(move || {
                let next = Addr(at.align_down(span).0.saturating_add(span.bytes())).min(end);
                let range = Range::new(at, next).filter(|range| !range.is_empty())?;
                at = next;
                Some(Piece { range, place })
            })
        });
        whole.take_while(move |piece| {
            let is_in = piece.range.len() <= left;
            left = left.saturating_sub(piece.range.len());
            is_in
        })
    }
}

/// Whether a mapping may be data that is in no part of an object.
fn is_data(mapping: &Mapping) -> bool {
    let of_the_kernel = mapping.is_kernel_code() || mapping.is_named("[heap]") || mapping.is_named("[stack]");
    (mapping.prot.read || mapping.prot.write)
        && !mapping.prot.exec
        && !of_the_kernel
        && (mapping.shared || mapping.is_file())
}

fn place(mapping: &Mapping) -> Place {
    let name = mapping.path.as_os_str().as_bytes();
    let of_memory: [&[u8]; 5] = [b"/dev/zero", b"/SYSV", b"/memfd:", b"/dev/shm/", b"[anon_shmem"];
    let is_memory =
        mapping.shared && (name.is_empty() || of_memory.iter().any(|start| name.starts_with(start)));
    let kind = if is_memory { Kind::Shared } else { Kind::File };
    Place { kind, path: (!name.is_empty()).then(|| mapping.path.clone().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::parse_maps;
    use crate::plan::tests::program;
    use crate::smaps::parse_smaps;
    use proptest::prelude::*;

    const MAPS: &[u8] = b"7f0000000000-7f0000021000 rw-p 00000000 00:00 0 \n\
        7f0000100000-7f0000121000 rw-s 00000000 00:01 9 /memfd:x (deleted)\n\
        7f0000200000-7f0000600000 r--s 00000000 00:03 9 /data/records\n\
        7f0000700000-7f0000800000 ---p 00000000 00:00 0 \n\
        7fff00000000-7fff00021000 rw-p 00000000 00:00 0 [stack]\n\
        7fff10000000-7fff10002000 r-xp 00000000 00:00 0 [vdso]\n";

    fn example() -> Areas {
        let mut snapshot = program(Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) });
        snapshot.mappings.extend(parse_maps(MAPS).expect("mappings"));
        let smaps: Vec<u8> =
            MAPS.split(|b| *b == b'\n').flat_map(|line| [line, b"\nRss: 8 kB\n"].concat()).collect();
        let end = smaps.len() - b"\nRss: 8 kB\n".len();
        Areas::new(&snapshot, &parse_smaps(&smaps[..end]).expect("smaps"))
    }

    #[test]
    fn issue_31_2_data_has_its_kind() {
        let areas = example();
        let kinds: Vec<(Kind, bool)> =
            areas.places().iter().map(|place| (place.kind, place.path.is_some())).collect();
        for want in [(Kind::Anon, false), (Kind::Shared, true), (Kind::File, true), (Kind::Stack, false)] {
            assert!(kinds.contains(&want), "{want:?} {kinds:?}");
        }
        let file = areas.place_of(Range { start: Addr(0x7f00_0020_0000), end: Addr(0x7f00_0020_1000) });
        assert_eq!(areas.places()[file.expect("a place")].kind, Kind::File);
        assert_eq!(
            areas.place_of(Range { start: Addr(0x7f00_0070_0000), end: Addr(0x7f00_0080_0000) }),
            None
        );
        assert_eq!(areas.mapped()[file.expect("a place")], 4 << 20);
    }

    #[test]
    fn issue_31_2_pieces_end_at_spans() {
        let areas = example();
        let pieces: Vec<Piece> = areas.pieces(PageSize::MB2, u64::MAX).collect();
        assert!(pieces.iter().all(|piece| {
            piece.range.start.align_down(PageSize::MB2)
                == Addr(piece.range.end.0 - 1).align_down(PageSize::MB2)
        }));
        let bytes = |pieces: &[Piece]| pieces.iter().map(|piece| piece.range.len()).sum::<u64>();
        assert_eq!(bytes(&pieces), (0x21_000 * 3) + (4 << 20));
        let few: Vec<Piece> = areas.pieces(PageSize::MB2, 3 << 20).collect();
        assert!(bytes(&few) <= 3 << 20 && !few.is_empty());
    }

    proptest! {
        #[test]
        fn issue_31_2_pieces_are_all_of_it(
            given in prop::collection::vec((0u64..300, 1u64..90), 0..20), shift in 12u32..22,
        ) {
            let mut at = 0x1000;
            let (mut found, mut smaps) = (Vec::new(), String::new());
            for (i, (gap, pages)) in given.iter().enumerate() {
                let start = at + gap * 4096;
                at = start + pages * 4096;
                smaps += &format!("{start:x}-{at:x} rw-p 0 0:0 0\nRss: 4 kB\n");
                let kind = if i % 2 == 0 { Kind::Anon } else { Kind::Heap };
                found.push((Range { start: Addr(start), end: Addr(at) }, Place { kind, path: None }));
            }
            let usage = parse_smaps(smaps.as_bytes()).expect("smaps");
            let areas = Areas::of(found.clone(), &usage);
            let span = PageSize::new(1 << shift).expect("a size");
            let pieces: Vec<Piece> = areas.pieces(span, u64::MAX).collect();
            prop_assert!(pieces.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
            let all: u64 = found.iter().map(|(range, _)| range.len()).sum();
            prop_assert_eq!(pieces.iter().map(|piece| piece.range.len()).sum::<u64>(), all);
            prop_assert_eq!(areas.mapped().iter().sum::<u64>(), all);
            for piece in pieces {
                prop_assert_eq!(areas.place_of(piece.range), Some(piece.place));
                prop_assert_eq!(piece.range.start.0 >> shift, (piece.range.end.0 - 1) >> shift);
            }
        }
    }
}
