// SPDX-License-Identifier: Apache-2.0
//! The huge pages that a file's read-only segments have or could have.

use super::obstacle::Obstacle;
use crate::addr::{Addr, PageSize, Range};
use crate::elf::{Headers, Segment};
use crate::snapshot::Part;

/// A read-only segment and its whole huge pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Text or read-only data.
    pub part: Part,
    /// Offset of the segment in the file.
    pub offset: u64,
    /// Its length there, in bytes.
    pub bytes: u64,
    /// Bytes of whole huge pages that it has, or would have if it were congruent.
    pub whole: u64,
    /// Offset of the first of them; `None` if it has none, or is not congruent.
    pub first: Option<u64>,
}

impl Candidate {
    /// Returns the offsets in the file of the whole huge pages.
    pub fn pages(&self, huge: PageSize) -> impl Iterator<Item = u64> + use<> {
        let count = if self.first.is_some() { self.whole / huge.bytes() } else { 0 };
        let first = self.first.unwrap_or(0);
        (0..count).map(move |i| first + i * huge.bytes())
    }

    /// Returns the obstacle that the headers show, if any.
    pub fn obstacle(&self, huge: PageSize) -> Option<Obstacle> {
        match (self.whole, self.first) {
            (0, _) => Some(Obstacle::TooSmall(huge)),
            (_, None) => Some(Obstacle::NotCongruent(huge)),
            _ => None,
        }
    }
}

/// Returns the read-only segments of an object that is loaded with `bias` (of which only the remainder
/// modulo `huge` matters), as the kernel maps them in base pages of `base`. `file_len` is the length of
/// the file in bytes, whatever its headers state.
pub fn candidates(
    headers: &Headers,
    bias: u64,
    file_len: u64,
    base: PageSize,
    huge: PageSize,
) -> Vec<Candidate> {
    let bias = bias % huge.bytes();
    let segments = &headers.segments;
    let candidate = |i: usize, segment: &Segment| {
        let part = if segment.prot.exec { Part::Text } else { Part::Rodata };
        let bytes = segment.filesz.min(file_len.saturating_sub(segment.offset));
        // A later segment that begins in the last page of this one is mapped over it.
        let loaded = |vaddr: u64| vaddr.saturating_add(bias);
        let next = segments.get(i + 1).map_or(u64::MAX, |s| Addr(loaded(s.vaddr)).align_down(base).0);
        let start = segment.vaddr.checked_add(bias)?;
        let end = start.checked_add(bytes).and_then(|end| Addr(end).align_up(base));
        let range = Range::new(Addr(start).align_down(base), end?.min(Addr(next)))?;
        let inner = range.inner(huge);
        let congruent = start % huge.bytes() == segment.offset % huge.bytes();
        let first = inner.filter(|_| congruent).map(|inner| {
            // It may be below the segment's own offset, as the start was rounded down to a base page.
            segment.offset.wrapping_add(inner.start.0.wrapping_sub(start))
        });
        let whole = inner.map_or(0, Range::len);
        Some(Candidate { part, offset: segment.offset, bytes, whole, first })
    };
    let read_only = segments.iter().enumerate().filter(|(_, s)| s.prot.read && !s.prot.write && s.filesz > 0);
    read_only.filter_map(|(i, segment)| candidate(i, segment)).collect()
}

/// Returns the stretches of a data file of `file_len` bytes, each widened to the whole huge pages that have data.
/// Stretches in one huge page are joined. `data` are the offsets at which the data between holes start and end, ascending.
pub fn stretches(data: &[(u64, u64)], file_len: u64, huge: PageSize) -> Vec<Candidate> {
    let whole_end = Addr(file_len).align_down(huge).0;
    let mut all: Vec<(u64, u64)> = Vec::new();
    for &(start, end) in data {
        let start = Addr(start).align_down(huge).0;
        let end = Addr(end).align_up(huge).map_or(file_len, |end| end.0).min(file_len);
        match all.last_mut().filter(|last| last.1 >= start) {
            Some(last) => last.1 = last.1.max(end),
            None => all.push((start, end)),
        }
    }
    let candidate = |(start, end): (u64, u64)| {
        let whole = end.min(whole_end).saturating_sub(start);
        let first = (whole > 0).then_some(start);
        Candidate { part: Part::Data, offset: start, bytes: end - start, whole, first }
    };
    all.into_iter().map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Machine;
    use crate::maps::Prot;

    const MB: u64 = 1 << 20;

    fn object(segments: &[(Prot, u64, u64, u64)]) -> Headers {
        let segments = segments.iter().map(|&(prot, offset, vaddr, bytes)| Segment {
            prot,
            vaddr,
            memsz: bytes,
            filesz: bytes,
            offset,
            align: 4096,
        });
        Headers {
            machine: Machine::X86_64,
            relocatable: true,
            entry: 0,
            segments: segments.collect(),
            relro: None,
            interp: None,
            dynamic: None,
            notes: Vec::new(),
        }
    }

    fn of(segments: &[(Prot, u64, u64, u64)]) -> Vec<Candidate> {
        candidates(&object(segments), 0, 64 * MB, PageSize::SMALL, PageSize::MB2)
    }

    #[test]
    fn whole_pages_where_offset_and_address_agree() {
        let got = of(&[
            (Prot::R, 0, 0, MB),
            (Prot::RX, MB, MB, 8 * MB),
            (Prot::R, 9 * MB + 4096, 9 * MB + 8192, 4 * MB),
            (Prot::RW, 14 * MB, 14 * MB, 8 * MB),
        ]);
        assert_eq!(got.len(), 3, "writable segments are no candidates: {got:?}");
        assert_eq!(got[0].obstacle(PageSize::MB2), Some(Obstacle::TooSmall(PageSize::MB2)));
        assert_eq!((got[1].part, got[1].first, got[1].whole), (Part::Text, Some(2 * MB), 6 * MB));
        assert_eq!(got[1].pages(PageSize::MB2).collect::<Vec<_>>(), [2 * MB, 4 * MB, 6 * MB]);
        assert_eq!(got[1].obstacle(PageSize::MB2), None);
        assert_eq!((got[2].first, got[2].whole), (None, 2 * MB));
        assert_eq!(got[2].obstacle(PageSize::MB2), Some(Obstacle::NotCongruent(PageSize::MB2)));
        assert_eq!(got[2].pages(PageSize::MB2).count(), 0);
    }

    #[test]
    fn a_bias_makes_another_segment_congruent() {
        // As lld lays them out: text lies a page further in memory than in the file.
        let lld = object(&[(Prot::R, 0, 0, 4 * MB), (Prot::RX, 4 * MB, 4 * MB + 0x1000, 4 * MB)]);
        let first = |bias: u64| {
            let got = candidates(&lld, bias, 64 * MB, PageSize::SMALL, PageSize::MB2);
            got.iter().map(|c| (c.first, c.whole)).collect::<Vec<_>>()
        };
        assert_eq!(first(0), [(Some(0), 4 * MB), (None, 2 * MB)]);
        assert_eq!(first(6 * MB - 0x1000), [(None, 2 * MB), (Some(4 * MB), 4 * MB)]);
    }

    #[test]
    fn a_start_inside_a_base_page_counts_from_the_page() {
        let got = of(&[(Prot::RX, 2 * MB + 0x123, 4 * MB + 0x123, 2 * MB)]);
        assert_eq!((got[0].first, got[0].whole), (Some(2 * MB), 2 * MB));
    }

    #[test]
    fn the_next_segment_takes_the_page_that_they_share() {
        let text = (Prot::RX, 0, 0, 4 * MB - 0x100);
        assert_eq!(of(&[text])[0].whole, 4 * MB);
        assert_eq!(of(&[text, (Prot::R, 4 * MB - 0x80, 4 * MB - 0x80, 0x80)])[0].whole, 2 * MB);
    }

    #[test]
    fn a_file_that_is_cut_off_has_no_pages_behind_its_end() {
        let headers = object(&[(Prot::RX, 0, 0, 8 * MB), (Prot::R, 8 * MB, 8 * MB, 8 * MB)]);
        let got = candidates(&headers, 0, 5 * MB, PageSize::SMALL, PageSize::MB2);
        assert_eq!((got[0].whole, got[1].whole), (4 * MB, 0));
    }

    #[test]
    fn any_headers_are_taken() {
        use proptest::prelude::*;
        let number = prop_oneof![any::<u64>(), 0..64 * MB, Just(u64::MAX)];
        let segment = (number.clone(), number.clone(), number.clone());
        proptest!(|(all in prop::collection::vec(segment, 0..4), bias in any::<u64>(), len in number)| {
            let all: Vec<_> = all.into_iter().map(|(o, v, b)| (Prot::RX, o, v, b)).collect();
            for candidate in candidates(&object(&all), bias, len, PageSize::SMALL, PageSize::MB2) {
                for page in candidate.pages(PageSize::MB2).take(3) {
                    prop_assert!(page.is_multiple_of(2 * MB));
                    prop_assert!(page + 2 * MB <= len.div_ceil(4096) * 4096);
                }
            }
        });
    }

    #[test]
    fn issue_32_1_a_data_file_is_one_stretch_unless_it_has_holes() {
        let huge = PageSize::MB2;
        let one = stretches(&[(0, 7 * MB)], 7 * MB, huge);
        assert_eq!(
            one,
            [Candidate { part: Part::Data, offset: 0, bytes: 7 * MB, whole: 6 * MB, first: Some(0) }]
        );
        assert_eq!(one[0].pages(huge).collect::<Vec<_>>(), [0, 2 * MB, 4 * MB]);
        // Two pages with data in one huge page, and one at the end that is no whole huge page.
        let holes =
            stretches(&[(4 * MB, 4 * MB + 4096), (5 * MB, 6 * MB), (20 * MB, 21 * MB)], 21 * MB, huge);
        let pages: Vec<Vec<u64>> = holes.iter().map(|one| one.pages(huge).collect()).collect();
        assert_eq!(pages, [vec![4 * MB], vec![]]);
        assert!(stretches(&[], 64 * MB, huge).is_empty());
        assert_eq!(stretches(&[(0, 4096)], 4096, huge)[0].whole, 0);
    }
}
