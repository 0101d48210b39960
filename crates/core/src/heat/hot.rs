// SPDX-License-Identifier: Apache-2.0
//! The huge pages of code that are worth a copy: those that hold nearly all samples of a process.

use crate::addr::{Addr, PageSize, Range};
use std::sync::Arc;

/// The share of the samples that hot huge pages hold at least, in percent.
pub const HOT_PERCENT: u64 = 99;

/// Huge pages of code that a process was seen to use: ranges, sorted by address, none beside another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotCode {
    ranges: Arc<[Range]>,
}

impl HotCode {
    /// Chooses the fewest huge pages of size `page` that hold [`HOT_PERCENT`] of the samples, the hottest first, and no
    /// more than `budget` bytes of them. `spans` holds the first byte and the samples of each.
    pub fn choose(spans: impl IntoIterator<Item = (u64, u64)>, page: PageSize, budget: u64) -> HotCode {
        let mut spans: Vec<(u64, u64)> = spans.into_iter().collect();
        // Of two with the same number of samples the lower one comes first, so that the choice is always the same.
        spans.sort_unstable_by_key(|(start, samples)| (std::cmp::Reverse(*samples), *start));
        let all: u128 = spans.iter().map(|(_, samples)| u128::from(*samples)).sum();
        let most = usize::try_from(budget / page.bytes()).unwrap_or(usize::MAX);
        let mut held = 0;
        let is_short = |(_, samples): &(u64, u64)| {
            let is_short = held * 100 < all * u128::from(HOT_PERCENT);
            held += u128::from(*samples);
            is_short
        };
        let mut starts: Vec<u64> =
            spans.into_iter().take_while(is_short).take(most).map(|(start, _)| start).collect();
        starts.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for range in starts.into_iter().filter_map(|start| Range::sized(Addr(start), page.bytes())) {
            match ranges.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        HotCode { ranges: ranges.into() }
    }

    /// Returns the ranges.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns whether all of `range` was chosen.
    pub fn covers(&self, range: Range) -> bool {
        self.ranges.iter().any(|hot| hot.covers(range))
    }

    /// Returns how many bytes were chosen.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB2: u64 = 2 << 20;

    fn chosen(spans: &[(u64, u64)], budget: u64) -> Vec<(u64, u64)> {
        let hot =
            HotCode::choose(spans.iter().map(|(n, samples)| (n * MB2, *samples)), PageSize::MB2, budget);
        hot.ranges().iter().map(|range| (range.start.0 / MB2, range.end.0 / MB2)).collect()
    }

    #[test]
    fn issue_31_4_the_hottest_come_first() {
        let spans = [(3, 10), (4, 500), (5, 480), (9, 4), (12, 6)];
        // 990 of 1,000 samples are in three of them.
        assert_eq!(chosen(&spans, u64::MAX), [(3, 6)]);
        assert_eq!(chosen(&spans, 2 * MB2), [(4, 6)]);
        assert_eq!(chosen(&spans, MB2 + 1), [(4, 5)]);
        assert_eq!(chosen(&spans, MB2 - 1), []);
        assert_eq!(chosen(&[], u64::MAX), []);
        assert_eq!(chosen(&[(1, 0), (2, 7)], u64::MAX), [(2, 3)]);
    }

    proptest! {
        /// What is chosen holds the share that it must, unless the budget cuts it; and no page of it is needless.
        #[test]
        fn issue_31_4_the_choice_is_enough_and_no_more(
            spans in prop::collection::btree_map(1u64..200, 0u64..100, 0..40), most in 0u64..40,
        ) {
            let all: u64 = spans.values().sum();
            let spans: Vec<(u64, u64)> = spans.into_iter().collect();
            let ranges = chosen(&spans, most * MB2);
            let is_in = |n: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&n));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
            let held: Vec<u64> = spans.iter().filter(|(n, _)| is_in(*n)).map(|(_, samples)| *samples).collect();
            prop_assert_eq!(ranges.iter().map(|(start, end)| end - start).sum::<u64>(), held.len() as u64);
            let sum: u64 = held.iter().sum();
            prop_assert!(held.len() as u64 == most || sum * 100 >= all * HOT_PERCENT);
            if let Some(least) = held.iter().min() {
                prop_assert!((sum - least) * 100 < all * HOT_PERCENT);
                prop_assert!(spans.iter().all(|(n, samples)| is_in(*n) || samples <= least));
            }
        }
    }
}
