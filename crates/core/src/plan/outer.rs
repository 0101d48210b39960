// SPDX-License-Identifier: Apache-2.0
//! Rounding out: the huge pages that parts fill only partly.
//!
//! ```text
//!   huge page   |             |             |
//!   mapped       ....[= data =][=== bss ==]..   both RW: data and bss together fill it
//!                                          ^^
//!                                          unmapped: becomes zeros, if nothing needs it unmapped
//! ```
//!
//! One huge page has one protection. So all mappings in it must have the same protection, now and
//! later, and belong to parts that are to be lifted. Some space serves a purpose only while it is
//! unmapped: the room that the heap or a stack grows into, the guard beside a stack, the first page
//! of the address space. Such space stays unmapped.

use super::candidate::Candidate;
use super::refusal::Refusals;
use super::size::usual_page;
use super::span::gaps;
use crate::addr::{Addr, PageSize, Range};
use crate::attribute::Attribute;
use crate::by_address::ByAddress;
use crate::maps::Mapping;
use crate::policy::{Backing, Policy, SpanChoice};
use crate::skip::Reason;
use crate::snapshot::{Extent, Part, Snapshot, overlapping};

/// Base pages that stay unmapped beside memory that may be a stack: as many as the kernel keeps free
/// below a growing stack (`stack_guard_gap`).
const GUARD: u64 = 256;

/// A stretch of an extent in a huge page that the extent does not fill.
pub(super) struct Edge {
    /// The extent.
    pub(super) extent: Extent,
    /// The stretch, within one huge page.
    pub(super) range: Range,
    /// That page's size.
    pub(super) page: PageSize,
    /// The candidates for the extent.
    pub(super) candidates: Vec<Candidate>,
    /// Whether spans of the extent are shared by all processes.
    pub(super) shared: bool,
}

impl Edge {
    /// Returns the edges of `piece` of `extent`: one for each huge page of `page` that it touches.
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
            // The end of the last huge page below 2^64 does not fit an address.
            let range = whole(rest.start, page).and_then(|whole| whole.intersect(rest)).unwrap_or(rest);
            edges.push(Edge { extent: *extent, range, page, candidates: candidates.to_vec(), shared });
            rest.start = range.end;
        }
        edges
    }

    /// Returns the huge page that it lies in.
    pub(super) fn whole(&self) -> Range {
        whole(self.range.start, self.page).unwrap_or(self.range)
    }

    fn is_of_a_large_part(&self) -> bool {
        self.extent.range.len() >= self.page.bytes()
    }
}

/// Returns the huge page of size `page` that holds `at`.
fn whole(at: Addr, page: PageSize) -> Option<Range> {
    Range::sized(at.align_down(page), page.bytes())
}

/// What decides which huge pages of a process may be taken.
pub(super) struct Surroundings<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    refusals: &'a Refusals<'a>,
    /// All extents of the snapshot.
    extents: ByAddress<&'a Extent>,
}

impl<'a> Surroundings<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        policy: &'a Policy,
        refusals: &'a Refusals<'a>,
        extents: &'a [Extent],
    ) -> Surroundings<'a> {
        let extents = extents.iter().map(|extent| (extent.range, extent)).collect();
        Surroundings { snapshot, policy, refusals, extents }
    }

    /// Returns the candidates for the huge page that holds `edges`, which are all edges in it.
    ///
    /// # Errors
    /// Returns why the page stays as it is.
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
        // The loader makes it read-only later.
        if edges.iter().any(|e| e.extent.part == Part::Relro && e.extent.prot.write) {
            return Err(Reason::Neighbour(page));
        }
        let held: u64 = mapped.iter().filter_map(|m| m.range.intersect(whole)).map(Range::len).sum();
        let own: u64 = edges.iter().map(|e| e.range.len()).sum();
        // The heap and the stack grow, and the kernel would no longer know them if they were replaced.
        if held != own || edges.iter().any(|e| matches!(e.extent.part, Part::Heap | Part::Stack)) {
            return Err(Reason::Beside(page));
        }
        if let Some(attribute) = self.refusals.attributes(whole).next() {
            return Err(Reason::Special(attribute));
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
        let copies = |candidate: &&Candidate| candidate.backing.is_anonymous() && candidate.page == page;
        let mut candidates: Vec<Candidate> =
            first.candidates.iter().filter(copies).map(|c| Candidate { in_place: false, ..*c }).collect();
        candidates
            .retain(|candidate| edges.iter().all(|e| e.candidates.iter().any(|c| c.is_like(candidate))));
        if wanted && !candidates.is_empty() { Ok(candidates) } else { Err(Reason::NotAligned(page)) }
    }

    /// Returns whether nothing needs `gap`, an unmapped range in the huge page `whole`, to stay unmapped.
    fn is_free(&self, whole: Range, gap: Range) -> bool {
        let mappings = &self.snapshot.mappings;
        let i = mappings.partition_point(|m| m.range.end <= gap.start);
        let below = i.checked_sub(1).and_then(|i| mappings.get(i));
        // The address space may end above the last mapping.
        let Some(above) = mappings.get(i).filter(|m| m.range.start.0 < 1 << 63) else { return false };
        if self.grows_down(above) || self.is_for_the_heap(below, above, gap) {
            return false;
        }
        let guard = GUARD * self.snapshot.machine.base_page.bytes();
        let is_near = |m: &Mapping, distance: Option<u64>| {
            distance.is_some_and(|bytes| bytes < guard) && !self.is_of_a_file(m)
        };
        // A mapping inside this page belongs to a part that is to be lifted: the subtraction is `None`.
        !is_near(above, above.range.start.0.checked_sub(whole.end.0))
            && !below.is_some_and(|m| is_near(m, whole.start.0.checked_sub(m.range.end.0)))
    }

    /// Returns whether `mapping` is of an object or another file, and so cannot be a stack.
    fn is_of_a_file(&self, mapping: &Mapping) -> bool {
        let mut here = self.extents.over(mapping.range);
        mapping.is_file() || here.any(|(_, e)| !matches!(e.part, Part::Heap | Part::Stack))
    }

    fn grows_down(&self, mapping: &Mapping) -> bool {
        let mut attributes = self.refusals.attributes(mapping.range);
        mapping.is_named("[stack]") || attributes.any(|attribute| attribute == Attribute::GrowsDown)
    }

    /// Returns whether the heap grows into `gap`, which lies between `below` and `above`.
    fn is_for_the_heap(&self, below: Option<&Mapping>, above: &Mapping, gap: Range) -> bool {
        if below.is_some_and(|m| m.is_named("[heap]")) {
            return true;
        }
        let bottom = below.map_or(Addr(0), |m| m.range.end);
        match self.snapshot.brk {
            Some(brk) => bottom <= brk && brk < above.range.start && brk < gap.end,
            None => below.is_some_and(|m| {
                self.extents.over(m.range).any(|(_, e)| self.snapshot.objects[e.object].executable)
            }),
        }
    }
}

/// Returns how far scratch memory must stay from the ends of a gap, so that no outer span reaches it.
pub(super) fn margin(snapshot: &Snapshot, policy: &Policy) -> u64 {
    if policy.span == SpanChoice::Inner {
        return 0;
    }
    let usual = [Backing::Hugetlb, Backing::Thp].map(|backing| usual_page(&snapshot.machine, backing));
    usual.into_iter().flatten().chain(policy.page.named()).map(PageSize::bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
