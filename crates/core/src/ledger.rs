// SPDX-License-Identifier: Apache-2.0
//! What of a process's memory is hugelift's, written down in the process itself: a hugelift that is killed in the middle of
//! its work cannot unmap it, and a later one finds it here.
//!
//! The record claims no memory that may be the program's. So memory is added after it was mapped, and taken out before it
//! is unmapped. What is about to move is named with its destination, which shows whether it has moved:
//!
//! ```text
//!   ours      [ copy ][ copy ][ copy ]        the first is about to move
//!   moving    [ copy ] ----> text             is there still the file? then it has not moved, and is ours
//! ```
//!
//! A child of fork(2) inherits the record, and perhaps not the memory. So the record names its process.

use crate::addr::{Addr, Range};

/// Bytes of a record.
pub const BYTES: usize = 256;

const MAGIC: &[u8; 16] = b"hugelift copies\0";
/// The words of a record behind the magic number.
const WORDS: usize = (BYTES - MAGIC.len()) / 8;
/// The words in front of the ranges: the process, and what moves.
const HEAD: usize = 5;
/// The most ranges that a record holds.
const RANGES: usize = (WORDS - HEAD) / 2;

/// A process: its id, and when it was started, in clock ticks since boot.
pub type Owner = (u32, u64);

/// What is written down.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Record {
    /// The process.
    pub owner: Owner,
    /// Memory that hugelift has mapped, and that is not the program's.
    pub ours: Vec<Range>,
    /// What of it is being moved, and where to.
    pub moving: Option<(Range, Addr)>,
}

impl Record {
    /// Returns it as bytes. If there are too many ranges, the largest are written down.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut ours = self.ours.clone();
        ours.sort_by_key(|range| std::cmp::Reverse(range.len()));
        ours.truncate(RANGES);
        let (moving, to) = self.moving.unwrap_or_default();
        let head = [u64::from(self.owner.0), self.owner.1, moving.start.0, moving.end.0, to.0];
        let words = head.into_iter().chain(ours.iter().flat_map(|range| [range.start.0, range.end.0]));
        let mut bytes = [0; BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        for (word, place) in words.zip(bytes[MAGIC.len()..].as_chunks_mut::<8>().0) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// Returns the record that these bytes hold; `None` if they hold none. Whoever can write to the memory of the process
    /// can also forge it: of another process it says nothing.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Option<Record> {
        let words =
            bytes.strip_prefix(MAGIC)?.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let words: Vec<u64> = words.collect();
        let (&[pid, start, from, end, to], rest) = words.split_first_chunk::<HEAD>()?;
        let moving = Range::new(Addr(from), Addr(end)).filter(|range| !range.is_empty());
        let ranges =
            rest.as_chunks::<2>().0.iter().filter_map(|[start, end]| Range::new(Addr(*start), Addr(*end)));
        Some(Record {
            owner: (u32::try_from(pid).ok()?, start),
            ours: ranges.filter(|range| !range.is_empty()).collect(),
            moving: moving.map(|range| (range, Addr(to))),
        })
    }

    /// Returns what is still hugelift's. `holds_file` tells whether the program's own file is mapped at an address: what
    /// moves replaces its pages.
    pub fn left(&self, holds_file: impl Fn(Addr) -> bool) -> Vec<Range> {
        let moved = self.moving.filter(|(_, to)| !holds_file(*to)).map(|(from, _)| from);
        let without = |range: &Range| moved.map_or(vec![*range], |moved| range.minus(moved));
        let mut left: Vec<Range> = self.ours.iter().flat_map(without).collect();
        left.sort();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(start: u64, end: u64) -> Range {
        Range { start: Addr(start), end: Addr(end) }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let moving = Some((r(0x20_0000, 0x40_0000), Addr(0x7f00_0000)));
        let record = Record { owner: (7, 8), ours: vec![r(0x20_0000, 0x80_0000), r(0x1000, 0x2000)], moving };
        for record in [Record::default(), Record { moving: None, ..record.clone() }, record] {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        assert_eq!(Record::from_bytes(&[0; BYTES]), None);
        let many: Vec<Range> = (1..40).map(|n| r(n << 32, (n << 32) + n)).collect();
        let read = Record::from_bytes(&Record { ours: many, ..Record::default() }.to_bytes()).unwrap();
        assert_eq!((read.ours.len(), read.ours[0]), (RANGES, r(39 << 32, (39 << 32) + 39)));
    }

    #[test]
    fn what_may_have_moved_is_not_claimed() {
        let moving = Some((r(10, 20), Addr(100)));
        let record = Record { ours: vec![r(50, 60), r(10, 40)], moving, ..Record::default() };
        assert_eq!(record.left(|at| at == Addr(100)), [r(10, 40), r(50, 60)]);
        assert_eq!(record.left(|_| false), [r(20, 40), r(50, 60)]);
    }
}
