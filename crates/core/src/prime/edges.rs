// SPDX-License-Identifier: Apache-2.0
//! What of a file lies outside of its whole huge pages. No page table entry of a huge page can map it, but its folios can still
//! be larger than base pages:
//!
//! ```text
//!   file       |=== huge page ===|=== huge page ===|=======|
//!   read-only          |----------------------------------|
//!   whole                        |=================|
//!   edges              |---------|                 |------|
//! ```
//!
//! The kernel reads such a stretch into folios as large as fit. Page table entries of base pages map them, which some CPUs hold
//! in fewer TLB entries if they lie side by side in memory.

use super::candidate::Candidate;
use crate::addr::{Addr, PageSize};
use serde::Serialize;

/// Folios of at least so many bytes count as large: what AArch64 maps by one contiguous block of 4 kB pages.
pub const LARGE: u64 = 64 << 10;

/// How large the folios of a file's edges are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Edges {
    /// Bytes of its read-only segments, or of its data, outside of whole huge pages.
    pub bytes: u64,
    /// How many of them are in memory, in folios of [`LARGE`] bytes or more.
    pub large_bytes: u64,
}

/// A stretch within one huge page of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Offset in the file of the huge page that it lies in.
    pub page: u64,
    /// Its offset within that page.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Returns the edges of a file with these candidates, ascending by the candidates' order.
pub fn edges(candidates: &[Candidate], huge: PageSize) -> Vec<Edge> {
    let mut all = Vec::new();
    for candidate in candidates {
        let end = candidate.offset.saturating_add(candidate.bytes);
        let whole = match candidate.first {
            Some(first) => (first, first.saturating_add(candidate.whole)),
            None => (end, end),
        };
        add(&mut all, candidate.offset, whole.0.min(end), huge);
        add(&mut all, whole.1.max(candidate.offset), end, huge);
    }
    all
}

/// Adds a stretch, cut at the bounds of huge pages.
fn add(all: &mut Vec<Edge>, start: u64, end: u64, huge: PageSize) {
    let mut at = start;
    while at < end {
        let page = Addr(at).align_down(huge).0;
        let next = page.saturating_add(huge.bytes()).min(end);
        all.push(Edge { page, start: at - page, bytes: next - at });
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Part;

    const MB: u64 = 1 << 20;

    fn of(offset: u64, bytes: u64, whole: Option<(u64, u64)>) -> Vec<(u64, u64, u64)> {
        let (first, whole) = (whole.map(|w| w.0), whole.map_or(0, |w| w.1));
        let candidate = Candidate { part: Part::Text, offset, bytes, whole, first };
        edges(&[candidate], PageSize::MB2).into_iter().map(|e| (e.page, e.start, e.bytes)).collect()
    }

    #[test]
    fn issue_32_5_edges_are_what_is_in_no_whole_huge_page() {
        assert_eq!(of(MB, 4 * MB, Some((2 * MB, 2 * MB))), [(0, MB, MB), (4 * MB, 0, MB)]);
        assert_eq!(of(4096, MB, None), [(0, 4096, MB)]);
        // Across the bound of a huge page, without a whole one.
        assert_eq!(of(MB, 2 * MB, None), [(0, MB, MB), (2 * MB, 0, MB)]);
        assert_eq!(of(2 * MB, 4 * MB, Some((2 * MB, 4 * MB))), []);
        // The first whole page begins before the segment, which shares a base page with the one before it.
        assert_eq!(of(2 * MB + 0x123, 2 * MB, Some((2 * MB, 2 * MB))), [(4 * MB, 0, 0x123)]);
        assert_eq!(of(0, 0, None), []);
    }

    #[test]
    fn any_candidate_ends() {
        use proptest::prelude::*;
        let number = prop_oneof![0..64 * MB, Just(u64::MAX - MB)];
        proptest!(|(offset in number.clone(), bytes in 0..64 * MB, first in number, whole in 0..64 * MB)| {
            let found = of(offset, bytes, Some((first, whole)));
            prop_assert!(found.iter().map(|e| e.2).sum::<u64>() <= 2 * bytes);
            prop_assert!(found.iter().all(|e| e.1 + e.2 <= 2 * MB));
        });
    }
}
