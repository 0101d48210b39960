// SPDX-License-Identifier: Apache-2.0
//! The sizes of the folios in which the memory of a process lies: between a base page and a huge page the kernel has further
//! sizes (Documentation/admin-guide/mm/transhuge.rst), which page table entries of base pages map.
//!
//! ```text
//!   virtual    |-4k-|-4k-|-4k-|-4k-|-4k-|-4k-|
//!   physical    [   folio of 16 kB  ] [4k] [4k]     four side by side, aligned: some CPUs hold them in one TLB entry
//! ```

use crate::addr::PageSize;
use serde::Serialize;
use std::collections::BTreeMap;

/// Memory by the size of its folios, in bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Folios {
    /// The bytes in folios of each size.
    pub bytes: BTreeMap<u64, u64>,
    /// Bytes of base pages that lie side by side in memory too, in aligned groups as this CPU can hold in one TLB entry;
    /// `None` if it is not known to do that.
    pub joined_bytes: Option<u64>,
}

/// `/proc/kpageflags`: bits of a frame (linux/kernel-page-flags.h).
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// Returns for each frame how many frames its folio has, by the flags of the frames; 0 if the folio begins before the first
/// frame, as a large page of a pool may.
pub fn frames_of_folios(flags: &[u64]) -> Vec<u32> {
    let mut frames = vec![1; flags.len()];
    let mut at = 0;
    while at < flags.len() {
        let tails = flags[at + 1..].iter().take_while(|flags| **flags & TAIL != 0).count();
        let (len, frames_of_it) = match flags[at] {
            head if head & HEAD != 0 => (1 + tails, 1 + tails),
            tail if tail & TAIL != 0 => (1, 0),
            _ => (1, 1),
        };
        frames[at..at + len].fill(frames_of_it as u32);
        at += len;
    }
    frames
}

impl Folios {
    /// Adds the pages of a stretch by their `entries` in `/proc/PID/pagemap`, the first of which is page `first` of the address
    /// space. `frames` returns how many frames the folio of a frame has. The CPU can hold `group` pages in one TLB entry, if
    /// that is known.
    pub fn add(
        &mut self,
        first: u64,
        entries: &[u64],
        base: PageSize,
        group: Option<u64>,
        mut frames: impl FnMut(u64) -> u32,
    ) {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let frame_of = |entry: &u64| Some(entry & FRAME).filter(|frame| entry & PRESENT != 0 && *frame != 0);
        for frame in entries.iter().filter_map(frame_of) {
            // That of a page of a pool is not known.
            let size = u64::from(frames(frame)) * base.bytes();
            if size == 0 {
                continue;
            }
            *self.bytes.entry(size).or_default() += base.bytes();
        }
        let Some(group) = group else { return };
        let skip = usize::try_from(first.next_multiple_of(group) - first).unwrap_or(usize::MAX);
        let joined = entries.get(skip..).unwrap_or_default().chunks_exact(group as usize).filter(|pages| {
            let is_next =
                |(n, entry): (u64, &u64)| frame_of(entry) == frame_of(&pages[0]).map(|frame| frame + n);
            let is_aligned = frame_of(&pages[0]).is_some_and(|frame| frame.is_multiple_of(group));
            is_aligned && (0..).zip(pages.iter()).all(is_next)
        });
        *self.joined_bytes.get_or_insert(0) += joined.count() as u64 * group * base.bytes();
    }

    /// Adds what other memory has.
    pub fn merge(&mut self, other: &Folios) {
        for (size, bytes) in &other.bytes {
            *self.bytes.entry(*size).or_default() += bytes;
        }
        if let Some(joined) = other.joined_bytes {
            *self.joined_bytes.get_or_insert(0) += joined;
        }
    }

    /// Returns whether a size between those of a base page and of a huge page occurs.
    pub fn has_sizes_between(&self, base: u64, huge: u64) -> bool {
        self.bytes.keys().any(|size| *size > base && *size < huge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRESENT: u64 = 1 << 63;

    #[test]
    fn folios_are_measured_by_their_flags() {
        let flags = [0, HEAD, TAIL, TAIL, TAIL, 0, HEAD, TAIL, HEAD, 1 << 5];
        assert_eq!(frames_of_folios(&flags), [1, 4, 4, 4, 4, 1, 2, 2, 1, 1]);
        // What begins within a folio is not taken for one.
        assert_eq!(frames_of_folios(&[TAIL, TAIL, HEAD]), [0, 0, 1]);
        assert_eq!(frames_of_folios(&[]), [0; 0]);
    }

    #[test]
    fn pages_are_counted_by_the_size_of_their_folio() {
        let entries =
            [PRESENT | 8, PRESENT | 9, PRESENT | 10, PRESENT | 11, 0, PRESENT | 100, PRESENT, 1 << 62 | 9];
        let mut folios = Folios::default();
        folios.add(4, &entries, PageSize::SMALL, Some(4), |frame| if frame < 12 { 4 } else { 1 });
        assert_eq!(folios.bytes, BTreeMap::from([(4096, 4096), (16384, 16384)]));
        assert_eq!(folios.joined_bytes, Some(16384));
        assert!(folios.has_sizes_between(4096, 2 << 20));
        // At another address they are in two groups, and the frames of one begin in the middle.
        let mut apart = Folios::default();
        apart.add(6, &entries, PageSize::SMALL, Some(4), |_| 1);
        assert_eq!(apart.joined_bytes, Some(0));
        apart.merge(&folios);
        assert_eq!((apart.bytes[&4096], apart.joined_bytes), (6 * 4096, Some(16384)));
        let mut unknown = Folios::default();
        unknown.add(4, &entries, PageSize::SMALL, None, |_| 1);
        assert_eq!((unknown.joined_bytes, unknown.bytes[&4096]), (None, 5 * 4096));
        assert!(!unknown.has_sizes_between(4096, 2 << 20));
    }

    proptest! {
        /// Any flags and entries give sums that are no larger than what was given.
        #[test]
        fn sums_are_bounded(
            flags in prop::collection::vec(prop::sample::select(&[0, HEAD, TAIL][..]), 0..64),
            entries in prop::collection::vec(any::<u64>(), 0..64),
            first in 0..u64::MAX >> 12,
        ) {
            let frames = frames_of_folios(&flags);
            prop_assert_eq!(frames.len(), flags.len());
            prop_assert!(frames.iter().all(|n| *n as usize <= flags.len().max(1)));
            let mut folios = Folios::default();
            folios.add(first, &entries, PageSize::SMALL, Some(4), |frame| frames.get(frame as usize).copied().unwrap_or(1));
            let all: u64 = folios.bytes.values().sum();
            prop_assert!(all <= entries.len() as u64 * 4096 && folios.joined_bytes.unwrap() <= all);
        }
    }
}
