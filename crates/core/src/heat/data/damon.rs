// SPDX-License-Identifier: Apache-2.0
//! What DAMON says in sysfs (Documentation/admin-guide/mm/damon/usage.rst in Linux), and what follows from it.
//!
//! DAMON checks one page of each region at the end of each sampling interval: whether it was accessed since the interval
//! began. After an aggregation interval it tells of each region how often that was so.

use super::areas::Piece;
use super::count::Seen;
use crate::addr::{Addr, Range};
use crate::maps::decimal;

/// A region that DAMON has found accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where it lies.
    pub range: Range,
    /// In how many sampling intervals the page that was checked had been accessed.
    pub accesses: u64,
}

impl Region {
    /// Parses the files `start`, `end` and `nr_accesses` of a region.
    pub fn parse(start: &[u8], end: &[u8], accesses: &[u8]) -> Option<Region> {
        let range = Range::new(Addr(number(start)?), Addr(number(end)?)).filter(|range| !range.is_empty())?;
        Some(Region { range, accesses: number(accesses)? })
    }
}

/// Parses a file that holds one number.
pub fn number(text: &[u8]) -> Option<u64> {
    decimal(text.trim_ascii()).filter(|_| !text.trim_ascii().is_empty())
}

/// Returns whether a file that lists words, as `avail_operations` does, holds this one.
pub fn has_word(text: &[u8], word: &str) -> bool {
    text.split(u8::is_ascii_whitespace).any(|one| one == word.as_bytes())
}

/// What DAMON has said of each piece so far.
#[derive(Clone, Debug)]
pub struct Checks {
    pieces: Vec<Piece>,
    /// Accesses of each piece.
    accesses: Vec<u64>,
    /// How often each piece was checked.
    checks: u64,
}

impl Checks {
    /// Begins with no checks. The pieces are sorted by address.
    pub fn new(pieces: Vec<Piece>) -> Checks {
        Checks { accesses: vec![0; pieces.len()], pieces, checks: 0 }
    }

    /// Adds what was found in an aggregation interval, in which each region was checked `checks` times.
    pub fn add(&mut self, regions: &[Region], checks: u64) {
        self.checks += checks;
        // A piece whose halves are two regions was checked twice as often: the mean of both counts.
        let mut found = vec![0_u128; self.pieces.len()];
        for region in regions {
            let first = self.pieces.partition_point(|piece| piece.range.end <= region.range.start);
            let over = self.pieces[first..].iter().take_while(|piece| piece.range.start < region.range.end);
            for (piece, found) in over.zip(&mut found[first..]) {
                let common = piece.range.intersect(region.range).map_or(0, Range::len);
                *found += u128::from(common) * u128::from(region.accesses.min(checks));
            }
        }
        for ((piece, found), accesses) in self.pieces.iter().zip(found).zip(&mut self.accesses) {
            let mean = found.div_ceil(u128::from(piece.range.len().max(1)));
            *accesses += u64::try_from(mean).unwrap_or(u64::MAX).min(checks);
        }
    }

    /// Returns how often each piece was checked.
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// Returns what follows for each piece: of its pages the share is in use that was found accessed. `resident` tells
    /// how much of a piece is in memory.
    pub fn seen(&self, resident: impl Fn(&Piece) -> u64) -> impl Iterator<Item = (&Piece, Seen)> {
        self.pieces.iter().zip(&self.accesses).map(move |(piece, accesses)| {
            let resident = resident(piece).min(piece.range.len());
            let watched = if self.checks > 0 { resident } else { 0 };
            let share = u128::from(piece.range.len()) * u128::from(*accesses);
            let touched = share.div_ceil(u128::from(self.checks.max(1)));
            (
                piece,
                Seen {
                    resident,
                    watched,
                    touched: u64::try_from(touched).unwrap_or(u64::MAX).min(watched),
                    samples: None,
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;

    fn range(start: u64, end: u64) -> Range {
        Range { start: Addr(start), end: Addr(end) }
    }

    fn pieces(count: u64) -> Vec<Piece> {
        (0..count).map(|i| Piece { range: range(i * 2 * MB, (i + 1) * 2 * MB), place: 0 }).collect()
    }

    #[test]
    fn issue_31_2_files_of_a_region() {
        let want = Region { range: range(4096, 8192), accesses: 3 };
        assert_eq!(Region::parse(b"4096\n", b"8192\n", b"3\n"), Some(want));
        for (start, end, accesses) in [
            ("", "8192", "3"),
            ("8192", "4096", "3"),
            ("4096", "4096", "3"),
            ("0x10", "32", "1"),
            ("1", "2", "-1"),
        ] {
            assert_eq!(Region::parse(start.as_bytes(), end.as_bytes(), accesses.as_bytes()), None, "{start}");
        }
        assert_eq!(number(b"99999999999999999999999"), None);
        assert!(has_word(b"vaddr\nfvaddr\npaddr\n", "fvaddr") && !has_word(b"fvaddrs\npaddr", "fvaddr"));
    }

    #[test]
    fn issue_31_2_the_share_that_was_accessed_is_in_use() {
        let mut checks = Checks::new(pieces(4));
        // The second is in use wholly, of the third one half.
        let found = [
            Region { range: range(2 * MB, 4 * MB), accesses: 10 },
            Region { range: range(4 * MB, 5 * MB), accesses: 9 },
        ];
        checks.add(&found, 10);
        checks.add(&found[..1], 10);
        let seen: Vec<u64> = checks.seen(|piece| piece.range.len()).map(|(_, seen)| seen.touched).collect();
        assert_eq!((seen[0], seen[1], seen[3]), (0, 2 * MB, 0));
        assert!(seen[2] > 0 && seen[2] < MB, "{seen:?}");
        let none = Checks::new(pieces(2));
        assert!(none.seen(|_| MB).all(|(_, seen)| seen.watched == 0 && seen.resident == MB));
    }

    proptest! {
        /// No region, however wrong, makes more than there is.
        #[test]
        fn issue_31_2_no_region_is_too_much(
            given in prop::collection::vec((0u64..40 * MB, 0u64..10 * MB, any::<u64>()), 0..30), checks in 0u64..100,
        ) {
            let mut sum = Checks::new(pieces(8));
            let regions: Vec<Region> = given.iter().map(|(start, len, accesses)| Region { range: range(*start, start + len), accesses: *accesses }).collect();
            sum.add(&regions, checks);
            for (piece, seen) in sum.seen(|_| MB) {
                prop_assert!(seen.touched <= seen.watched && seen.watched <= seen.resident);
                let is_over = regions.iter().any(|region| region.range.intersect(piece.range).is_some() && region.accesses > 0);
                prop_assert!(seen.touched == 0 || is_over);
            }
        }
    }
}
