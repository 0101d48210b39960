// SPDX-License-Identifier: Apache-2.0
//! The memory that hugelift has mapped in a program and that is its own still.
//!
//! A running program maps memory at any time. Where a copy was before it moved over what it replaces, a moment later
//! there may be memory of the program:
//!
//! ```text
//!   mapped       [ copy ][ copy ][ copy ][ copy ]
//!   two moved    [ free         ][ copy ][ copy ]
//!   soon after   [ theirs ][free][ copy ][ copy ]      only the last two may be unmapped
//! ```
//!
//! So it is not enough to know what was mapped once. Each [`Target`](crate::target::Target) keeps this list, and unmaps
//! nothing else.

use crate::addr::{Addr, Range};

/// Ranges that neither overlap nor touch, by address.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Scratch(Vec<Range>);

impl Scratch {
    /// Adds memory that was just mapped, where nothing was.
    pub fn add(&mut self, range: Range) {
        let touches = |r: &Range| r.start <= range.end && range.start <= r.end;
        let (touched, mut rest): (Vec<Range>, Vec<Range>) = self.0.iter().partition(|r| touches(r));
        let joined = touched
            .iter()
            .fold(range, |all, r| Range { start: all.start.min(r.start), end: all.end.max(r.end) });
        rest.extend(Some(joined).filter(|r| !r.is_empty()));
        rest.sort_by_key(|r| r.start);
        self.0 = rest;
    }

    /// Takes out memory that has moved away or was unmapped: from now on it may be the program's.
    pub fn give_up(&mut self, range: Range) {
        self.0 = self.0.iter().flat_map(|r| r.minus(range)).collect();
    }

    /// Returns what of `range` is in it, by address.
    pub fn within(&self, range: Range) -> Vec<Range> {
        self.0.iter().filter_map(|r| r.intersect(range)).collect()
    }

    /// Returns all of it, by address.
    pub fn all(&self) -> &[Range] {
        &self.0
    }
}

/// Returns where the bytes of `part`, which lies in `whole`, are when `whole` is at `to`.
pub fn moved(part: Range, whole: Range, to: Addr) -> Option<Range> {
    Range::sized(to.checked_add(part.start.0.checked_sub(whole.start.0)?)?, part.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(start: u64, end: u64) -> Range {
        Range { start: Addr(start), end: Addr(end) }
    }

    #[test]
    fn what_was_given_up_is_no_longer_in_it() {
        let mut scratch = Scratch::default();
        scratch.add(r(10, 50));
        scratch.give_up(r(10, 20));
        assert_eq!(scratch.within(r(0, 100)), [r(20, 50)]);
        scratch.give_up(r(30, 40));
        assert_eq!(scratch.within(r(10, 50)), [r(20, 30), r(40, 50)]);
        assert_eq!(scratch.within(r(25, 45)), [r(25, 30), r(40, 45)]);
        assert!(scratch.within(r(30, 40)).is_empty() && scratch.within(r(0, 20)).is_empty());
        scratch.give_up(r(0, 100));
        assert!(scratch.all().is_empty());
    }

    #[test]
    fn neighbours_are_one_range() {
        let mut scratch = Scratch::default();
        for range in [r(30, 40), r(10, 20), r(20, 30), r(60, 70), r(5, 5)] {
            scratch.add(range);
        }
        assert_eq!(scratch.all(), [r(10, 40), r(60, 70)]);
        scratch.add(r(35, 65));
        assert_eq!(scratch.all(), [r(10, 70)]);
    }

    #[test]
    fn a_part_moves_with_the_whole() {
        assert_eq!(moved(r(20, 30), r(10, 50), Addr(100)), Some(r(110, 120)));
        assert_eq!(moved(r(5, 30), r(10, 50), Addr(100)), None);
    }
}
