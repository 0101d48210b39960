// SPDX-License-Identifier: Apache-2.0
//! Values that belong to ranges of addresses, found by address. A file may state 1,170 segments: a list that is searched
//! from its beginning for each of them would cost more than a million steps.

use crate::addr::{Addr, Range};

/// Ranges with values, which may overlap.
#[derive(Clone, Debug)]
pub struct ByAddress<T> {
    /// The values, by the start of their range. Values whose ranges start at one address have the order in which they were given.
    all: Vec<(Range, T)>,
    /// For each, the largest end of it and those before it.
    reach: Vec<Addr>,
}

impl<T> FromIterator<(Range, T)> for ByAddress<T> {
    fn from_iter<I: IntoIterator<Item = (Range, T)>>(given: I) -> ByAddress<T> {
        let mut all: Vec<(Range, T)> = given.into_iter().collect();
        all.sort_by_key(|(range, _)| range.start);
        let mut last = Addr(0);
        let reach = all.iter().map(|(range, _)| {
            last = last.max(range.end);
            last
        });
        let reach = reach.collect();
        ByAddress { all, reach }
    }
}

impl<T> ByAddress<T> {
    /// Returns the ranges, with their values, that have a byte in common with `range`, by address.
    pub fn over(&self, range: Range) -> impl Iterator<Item = &(Range, T)> {
        let from = self.reach.partition_point(|reach| *reach <= range.start);
        let ahead = self.all.get(from..).unwrap_or_default();
        let to = ahead.partition_point(|(one, _)| one.start < range.end);
        ahead[..to].iter().filter(move |(one, _)| one.intersect(range).is_some())
    }

    /// Returns whether any has a byte in common with `range`.
    pub fn is_over(&self, range: Range) -> bool {
        self.over(range).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_that_overlap_are_found(
            given in prop::collection::vec((0u64..100, 0u64..30), 0..40),
            start in 0u64..100,
            len in 0u64..40,
        ) {
            let range = |(start, len): (u64, u64)| Range { start: Addr(start), end: Addr(start + len) };
            let all: Vec<(Range, usize)> = given.iter().map(|g| range(*g)).zip(0..).collect();
            let asked = range((start, len));
            let mut want: Vec<(Range, usize)> =
                all.iter().copied().filter(|(one, _)| one.intersect(asked).is_some()).collect();
            want.sort_by_key(|(one, _)| one.start);
            let index: ByAddress<usize> = all.into_iter().collect();
            prop_assert_eq!(index.over(asked).copied().collect::<Vec<_>>(), want);
            prop_assert_eq!(index.is_over(asked), index.over(asked).count() > 0);
        }
    }
}
