// SPDX-License-Identifier: Apache-2.0
//! Rounding out: the huge pages that parts fill only partly.
//!
//! ```text
//!   huge page   |             |             |
//!   mapped       ....[= data =][=== bss ==]..   both RW: data and bss together fill it
//!                                          ^^
//!                                          unmapped: becomes zeros, if it is free to be taken
//! ```
//!
//! One huge page has one protection. So all that is mapped in it must have the same, now and
//! later, and be of parts that are to be lifted. What is unmapped may be somebody's by not being
//! mapped: room that the heap or a stack grows into, the guard beside a stack, the first page of
//! the address space. Such space stays unmapped.

use super::planner::Candidate;
use super::{gaps, usual_page};
use crate::addr::{Addr, PageSize, Range};
use crate::attribute::Attribute;
use crate::maps::Mapping;
use crate::policy::{Backing, Policy, SpanChoice};
use crate::skip::Reason;
use crate::snapshot::{Extent, Part, Snapshot, overlapping};

/// Base pages that stay unmapped beside memory that may be a stack: what the kernel keeps free
/// below one that grows (`stack_guard_gap`).
const GUARD: u64 = 256;

/// A stretch of an extent that lies in a huge page which the extent does not fill.
pub(super) struct Edge {
    /// The extent.
    pub(super) extent: Extent,
    /// The stretch, within one huge page.
    pub(super) range: Range,
    /// That page's size.
    pub(super) page: PageSize,
    /// The candidates that are open to the extent.
    pub(super) candidates: Vec<Candidate>,
    /// The rest of the extent is shared by all processes.
    pub(super) shared: bool,
}

impl Edge {
    /// The edge in each huge page of `page` that `piece` of `extent` touches.
    pub(super) fn all(
        extent: &Extent,
        piece: Range,
        page: PageSize,
        candidates: &[Candidate],
        shared: bool,
    ) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut rest = piece;
        while !rest.is_empty() {
            // The last huge page below 2^64 has no end.
            let range = whole(rest.start, page).and_then(|whole| whole.intersect(rest)).unwrap_or(rest);
            edges.push(Edge { extent: *extent, range, page, candidates: candidates.to_vec(), shared });
            rest.start = range.end;
        }
        edges
    }

    /// The huge page that it lies in.
    pub(super) fn whole(&self) -> Range {
        whole(self.range.start, self.page).unwrap_or(self.range)
    }

    fn is_of_a_large_part(&self) -> bool {
        self.extent.range.len() >= self.page.bytes()
    }
}

fn whole(at: Addr, page: PageSize) -> Option<Range> {
    Range::sized(at.align_down(page), page.bytes())
}

/// What is known of a process that tells which huge pages may be taken.
pub(super) struct Surroundings<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) policy: &'a Policy,
    /// All of the snapshot's.
    pub(super) extents: &'a [Extent],
}

impl Surroundings<'_> {
    /// The candidates by which the huge page that holds `edges` (all that there are in it) can be taken.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) fn candidates(&self, edges: &[Edge]) -> Result<Vec<Candidate>, Reason> {
        let Some(first) = edges.first() else { return Ok(Vec::new()) };
        let (whole, page) = (first.whole(), first.page);
        if whole.len() != page.bytes() {
            return Err(Reason::KeptFree(page));
        }
        let mapped = overlapping(&self.snapshot.mappings, whole);
        if mapped.iter().any(|m| m.prot != first.extent.prot) {
            return Err(Reason::Neighbour(page));
        }
        // The loader takes write permission away from a part of it later.
        if edges.iter().any(|e| e.extent.part == Part::Relro && e.extent.prot.write) {
            return Err(Reason::Neighbour(page));
        }
        let held: u64 = mapped.iter().filter_map(|m| m.range.intersect(whole)).map(Range::len).sum();
        let own: u64 = edges.iter().map(|e| e.range.len()).sum();
        // What grows by itself is never replaced: the kernel would not know it any more.
        if held != own || edges.iter().any(|e| matches!(e.extent.part, Part::Heap | Part::Stack)) {
            return Err(Reason::Beside(page));
        }
        let special = &self.snapshot.special;
        if let Some((_, attribute)) = special.iter().find(|(r, _)| r.intersect(whole).is_some()) {
            return Err(Reason::Special(*attribute));
        }
        let unmapped = gaps(whole, mapped.iter().map(|m| m.range));
        if whole.start == Addr(0) || !unmapped.iter().all(|gap| self.is_free(whole, *gap)) {
            return Err(Reason::KeptFree(page));
        }
        let half_full = own >= page.bytes() / 2;
        let wanted = match self.policy.span {
            SpanChoice::Inner => false,
            SpanChoice::Outer => half_full || edges.iter().any(Edge::is_of_a_large_part),
            SpanChoice::Auto => half_full && !edges.iter().any(|e| e.shared),
        };
        let copies = |candidate: &&Candidate| {
            matches!(candidate.backing, Backing::Hugetlb | Backing::Thp) && candidate.page == page
        };
        let mut candidates: Vec<Candidate> =
            first.candidates.iter().filter(copies).map(|w| Candidate { in_place: false, ..*w }).collect();
        candidates
            .retain(|candidate| edges.iter().all(|e| e.candidates.iter().any(|w| w.is_like(candidate))));
        if wanted && !candidates.is_empty() { Ok(candidates) } else { Err(Reason::NotAligned(page)) }
    }

    /// Whether `gap`, the unmapped space at one place of the huge page `whole`, is nobody's.
    fn is_free(&self, whole: Range, gap: Range) -> bool {
        let mappings = &self.snapshot.mappings;
        let i = mappings.partition_point(|m| m.range.end <= gap.start);
        let below = i.checked_sub(1).and_then(|i| mappings.get(i));
        // Above the last mapping the address space may end.
        let Some(above) = mappings.get(i).filter(|m| m.range.start.0 < 1 << 63) else { return false };
        if self.grows_down(above) || self.is_for_the_heap(below, above, gap) {
            return false;
        }
        let guard = GUARD * self.snapshot.machine.base_page.bytes();
        let is_near = |m: &Mapping, distance: Option<u64>| {
            distance.is_some_and(|bytes| bytes < guard) && !self.is_of_a_file(m)
        };
        // Who lies in this page is of a part that is to be lifted: no distance to it.
        !is_near(above, above.range.start.0.checked_sub(whole.end.0))
            && !below.is_some_and(|m| is_near(m, whole.start.0.checked_sub(m.range.end.0)))
    }

    /// Objects and other files: nothing that could be a stack.
    fn is_of_a_file(&self, mapping: &Mapping) -> bool {
        let of = |e: &Extent| {
            !matches!(e.part, Part::Heap | Part::Stack) && e.range.intersect(mapping.range).is_some()
        };
        mapping.is_file() || self.extents.iter().any(of)
    }

    fn grows_down(&self, mapping: &Mapping) -> bool {
        let grows = |(range, attribute): &(Range, Attribute)| {
            *attribute == Attribute::GrowsDown && range.intersect(mapping.range).is_some()
        };
        mapping.is_named("[stack]") || self.snapshot.special.iter().any(grows)
    }

    /// Whether the heap grows into `gap`, which lies between `below` and `above`.
    fn is_for_the_heap(&self, below: Option<&Mapping>, above: &Mapping, gap: Range) -> bool {
        if below.is_some_and(|m| m.is_named("[heap]")) {
            return true;
        }
        let bottom = below.map_or(Addr(0), |m| m.range.end);
        match self.snapshot.brk {
            Some(brk) => bottom <= brk && brk < above.range.start && brk < gap.end,
            None => below.is_some_and(|m| {
                let own = |e: &Extent| self.snapshot.objects[e.object].executable;
                self.extents.iter().any(|e| own(e) && e.range.intersect(m.range).is_some())
            }),
        }
    }
}

/// How far from the ends of a gap scratch memory must stay, so that rounding out does not meet it.
pub(super) fn margin(snapshot: &Snapshot, policy: &Policy) -> u64 {
    if policy.span == SpanChoice::Inner {
        return 0;
    }
    let usual = [Backing::Hugetlb, Backing::Thp].map(|backing| usual_page(&snapshot.machine, backing));
    usual.into_iter().flatten().chain(policy.page.named()).map(PageSize::bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
