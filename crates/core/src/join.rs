// SPDX-License-Identifier: Apache-2.0
//! Decides which split huge pages are joined again, and when samples are taken to find them.
//!
//! ```text
//!   samples    1       2            3              4           5
//!   block    huge    huge  fork   split, shared  split, own   huge
//!                            child |=============|
//!                                                joined here ^
//! ```
//!
//! After fork(2) the first write to a shared huge page splits the writer's mapping of it. A block is
//! joined only if a sample has shown it huge, all of its base pages are present, and no other process
//! maps one of them. Joining a block that a child still maps would copy it. Joining a block that has lost
//! pages would bring these back as zeros. So the process never has more memory than it had huge
//! before.

use crate::addr::{Addr, PageSize, Range};
use crate::collapse::Pages;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shortest time between two samples.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two samples that cost little.
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// Samples take at most 1/200 of the time.
const SAMPLES_SHARE: u32 = 200;
/// Joining takes at most 1/10 of the time.
const JOINS_SHARE: u32 = 10;
/// A block that the kernel has refused to join this many times is given up.
const MAX_REFUSALS: u32 = 6;

/// What one sample of a process shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Its private, writable, anonymous mappings, by address.
    pub mappings: Vec<Range>,
    /// Stretches of them that huge pages with contents map, by address.
    pub huge: Vec<Range>,
}

/// The blocks of a process that have been huge, each with the size and alignment of a huge page.
#[derive(Clone, Debug)]
pub struct Blocks {
    page: PageSize,
    /// By start.
    known: BTreeMap<Addr, Block>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    huge: bool,
    /// How many times the kernel has refused to join it since it was huge.
    refusals: u32,
    /// For how many more samples it is left alone.
    rests: u32,
}

impl Blocks {
    /// Returns an empty set of blocks of the size of `page`.
    pub fn new(page: PageSize) -> Blocks {
        Blocks { page, known: BTreeMap::new() }
    }

    /// Takes in a sample, and forgets blocks that no longer lie in one mapping. Returns whether anything
    /// has changed since the last sample.
    pub fn take(&mut self, sample: &Sample) -> bool {
        let mut now: BTreeMap<Addr, Block> = BTreeMap::new();
        for inner in sample.mappings.iter().filter_map(|mapping| mapping.inner(self.page)) {
            let split = |block: Block| Block { huge: false, rests: block.rests.saturating_sub(1), ..block };
            now.extend(self.known.range(inner.start..inner.end).map(|(at, block)| (*at, split(*block))));
            let from = sample.huge.partition_point(|huge| huge.end <= inner.start);
            let near = sample.huge[from..].iter().take_while(|huge| huge.start < inner.end);
            let huge = near.filter_map(|huge| huge.intersect(inner)?.inner(self.page));
            let starts = huge.flat_map(|r| (r.start.0..r.end.0).step_by(self.page.bytes() as usize));
            now.extend(starts.map(|at| (Addr(at), Block { huge: true, ..Block::default() })));
        }
        let is_same = |a: &Block, b: &Block| a.huge == b.huge;
        let changed = now.len() != self.known.len()
            || !now.iter().zip(&self.known).all(|(a, b)| a.0 == b.0 && is_same(a.1, b.1));
        self.known = now;
        changed
    }

    /// Returns the blocks that were huge and are not, by address, without those that rest.
    pub fn split(&self) -> Vec<Range> {
        let split = self.known.iter().filter(|(_, block)| !block.huge && block.rests == 0);
        split.filter_map(|(at, _)| Range::sized(*at, self.page.bytes())).collect()
    }

    /// Records that the kernel refused to join the block at `start`. The block rests, one sample longer
    /// each time, and is given up at last.
    pub fn refuse(&mut self, start: Addr) {
        let Some(block) = self.known.get_mut(&start) else { return };
        block.refusals += 1;
        block.rests = block.refusals;
        if block.refusals >= MAX_REFUSALS {
            self.known.remove(&start);
        }
    }
}

/// Returns whether all base pages of a block are present, anonymous, and mapped once, by their
/// `entries` in `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
pub fn is_whole_and_own(entries: &[u64]) -> bool {
    let pages = Pages::of(entries);
    pages.all > 0 && pages.own == pages.all
}

/// Returns the pause after a join that took `took`: joining takes a tenth of the time while it goes on.
pub fn pause(took: Duration) -> Duration {
    took.saturating_mul(JOINS_SHARE - 1)
}

/// The times of samples: every second, less often while nothing changes, and never so often that they
/// take more than half a percent of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm(Duration);

impl Default for Rhythm {
    fn default() -> Rhythm {
        Rhythm(MIN_PAUSE)
    }
}

impl Rhythm {
    /// The time until the first sample. A program that ends earlier is not sampled.
    pub const FIRST: Duration = MIN_PAUSE;

    /// Returns the time until the next sample. The last one took `took`, and `changed` says whether it
    /// differed from the one before.
    pub fn next(&mut self, changed: bool, took: Duration) -> Duration {
        self.0 = if changed { MIN_PAUSE } else { (2 * self.0).min(MAX_PAUSE) };
        self.0.max(took.saturating_mul(SAMPLES_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: PageSize = PageSize::MB2;

    /// Returns a range, given in units of half a block.
    fn r(start: u64, end: u64) -> Range {
        Range::new(Addr(start << 20), Addr(end << 20)).unwrap()
    }

    fn sample(mappings: &[Range], huge: &[Range]) -> Sample {
        Sample { mappings: mappings.to_vec(), huge: huge.to_vec() }
    }

    #[test]
    fn what_was_huge_and_is_not_is_split() {
        let mut blocks = Blocks::new(PAGE);
        assert!(blocks.take(&sample(&[r(1, 20)], &[r(2, 8), r(12, 14)])));
        assert_eq!(blocks.split(), []);
        assert!(!blocks.take(&sample(&[r(1, 21)], &[r(2, 8), r(12, 14)])), "it has only grown");
        assert!(blocks.take(&sample(&[r(1, 20)], &[r(4, 6)])));
        assert_eq!(blocks.split(), [r(2, 4), r(6, 8), r(12, 14)]);
        // The block at 2 was joined, by whatever process.
        assert!(blocks.take(&sample(&[r(1, 20)], &[r(2, 6), r(12, 14)])));
        assert_eq!(blocks.split(), [r(6, 8)]);
    }

    #[test]
    fn what_is_no_longer_in_one_mapping_is_forgotten() {
        let mut blocks = Blocks::new(PAGE);
        blocks.take(&sample(&[r(0, 10)], &[r(0, 10)]));
        // The block at 8 is unmapped, the block at 4 cut in two.
        blocks.take(&sample(&[r(0, 5), r(5, 8)], &[]));
        assert_eq!(blocks.split(), [r(0, 2), r(2, 4), r(6, 8)], "the block at 4 is in two mappings");
        blocks.take(&sample(&[r(0, 10)], &[]));
        assert_eq!(blocks.split(), [r(0, 2), r(2, 4), r(6, 8)], "memory that is mapped again was not huge");
        blocks.take(&Sample::default());
        blocks.take(&sample(&[r(0, 10)], &[]));
        assert_eq!(blocks.split(), []);
    }

    #[test]
    fn what_is_refused_rests_and_is_given_up() {
        let mut blocks = Blocks::new(PAGE);
        blocks.take(&sample(&[r(0, 4)], &[r(0, 4)]));
        let split = sample(&[r(0, 4)], &[]);
        let mut tries = 0;
        for _ in 0..1000 {
            blocks.take(&split);
            if blocks.split().contains(&r(0, 2)) {
                tries += 1;
                blocks.refuse(Addr(0));
                assert_eq!(blocks.split(), [r(2, 4)]);
            }
        }
        assert_eq!(tries, MAX_REFUSALS);
        // Being huge again resets the count.
        blocks.take(&sample(&[r(0, 4)], &[r(0, 4)]));
        blocks.take(&split);
        assert_eq!(blocks.split(), [r(0, 2), r(2, 4)]);
        blocks.refuse(Addr(9));
    }

    #[test]
    fn all_pages_must_be_present_and_mapped_once() {
        const OWN: u64 = 1 << 63 | 1 << 56;
        assert!(is_whole_and_own(&[OWN | 7, OWN | 1 << 55]));
        for bad in [0, 1 << 63, 1 << 56, OWN | 1 << 61, 1 << 62 | 1 << 56] {
            assert!(!is_whole_and_own(&[OWN, bad]), "{bad:#x}");
        }
        assert!(!is_whole_and_own(&[]));
    }

    #[test]
    fn samples_become_rare_and_cost_little() {
        let (mut rhythm, cheap) = (Rhythm::default(), Duration::from_micros(50));
        let seconds: Vec<u64> = (0..4).map(|_| rhythm.next(false, cheap).as_secs()).collect();
        assert_eq!(seconds, [2, 4, 4, 4]);
        assert_eq!(rhythm.next(true, cheap), MIN_PAUSE);
        assert_eq!(rhythm.next(true, Duration::from_millis(100)), Duration::from_secs(20));
        assert_eq!(pause(Duration::from_millis(2)), Duration::from_millis(18));
    }

    fn ranges() -> impl Strategy<Value = Vec<Range>> {
        // Gaps and lengths, so that they are in order and do not overlap.
        prop::collection::vec((0u64..6, 1u64..12), 0..6).prop_map(|steps| {
            let mut at = 0;
            let mut next = |(gap, len): (u64, u64)| {
                let start = at + gap;
                at = start + len;
                r(start, at)
            };
            steps.into_iter().map(&mut next).collect()
        })
    }

    proptest! {
        /// Only whole blocks that a sample has shown huge, and that lie in one mapping, are joined.
        #[test]
        fn never_more_than_was_huge(samples in prop::collection::vec((ranges(), ranges()), 1..8)) {
            let mut blocks = Blocks::new(PAGE);
            let mut ever: Vec<Range> = Vec::new();
            for (mappings, huge) in samples {
                let sample = Sample { mappings, huge };
                blocks.take(&sample);
                for block in blocks.split() {
                    prop_assert!(block.start.is_aligned(PAGE) && block.len() == PAGE.bytes());
                    prop_assert!(sample.mappings.iter().any(|m| m.covers(block)));
                    prop_assert!(!sample.huge.iter().any(|h| h.covers(block)));
                    prop_assert!(ever.iter().any(|h| h.covers(block)));
                }
                ever.extend(&sample.huge);
                prop_assert!(!blocks.clone().take(&sample), "the same sample changes nothing");
            }
        }
    }
}
