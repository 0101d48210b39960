// SPDX-License-Identifier: Apache-2.0
//! Chooses the spans and gives each its candidates, extent by extent.

use super::candidate::{Candidate, candidates};
use super::outer::{Edge, Surroundings};
use super::refusal::Refusals;
use super::size::usual_page;
use super::span::{Attempt, Plan, Span};
use super::steps::{Job, shared_steps, steps, steps_in_place};
use super::supply::Supply;
use crate::addr::{Addr, PageSize, Range, without};
use crate::policy::{Backing, Copies, Policy};
use crate::skip::{Reason, Skip};
use crate::snapshot::{Extent, Part, Snapshot};

/// Does the work of [`super::plan`].
pub(super) fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    let extents = cut(joined(snapshot.extents()), policy);
    let mut planner = Planner::new(snapshot, policy);
    for extent in &extents {
        planner.consider(*extent);
    }
    planner.round_out(&extents);
    planner.grant_fallbacks();
    planner.plan.spans.sort_by_key(|s| (s.object, s.range));
    planner.plan.skips.sort_by_key(|s| (s.object, s.range));
    planner.plan
}

/// Does the work of [`super::shareable`].
pub(super) fn shareable(snapshot: &Snapshot, policy: &Policy) -> Vec<(usize, Part, Range)> {
    let Some(page) = usual_page(&snapshot.machine, Backing::Shared) else { return Vec::new() };
    let extents = cut(joined(snapshot.extents()), policy).into_iter();
    let refusals = Refusals::new(snapshot, policy);
    let wanted = extents.filter(|e| !e.part.is_writable() && refusals.of(e).is_none());
    wanted.filter_map(|extent| Some((extent.object, extent.part, extent.range.inner(page)?))).collect()
}

/// Joins adjacent extents of one object, part and protection.
fn joined(extents: Vec<Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents {
        match out.last_mut() {
            Some(last)
                if (last.object, last.part, last.prot) == (extent.object, extent.part, extent.prot)
                    && last.range.end == extent.range.start =>
            {
                last.range.end = extent.range.end;
                last.file_backed &= extent.file_backed;
            }
            _ => out.push(extent),
        }
    }
    out
}

/// Cuts extents in two where the wanted addresses begin and end, and where code in use does.
fn cut(mut extents: Vec<Extent>, policy: &Policy) -> Vec<Extent> {
    let hot = match &policy.copies {
        Copies::Hot(hot) => hot.ranges(),
        Copies::All | Copies::Later => &[],
    };
    for range in policy.within.iter().chain(hot) {
        extents = extents.into_iter().flat_map(|extent| cut_at(extent, *range)).collect();
    }
    extents
}

/// Cuts an extent where `range` begins and ends.
fn cut_at(extent: Extent, range: Range) -> impl Iterator<Item = Extent> {
    let inside = extent.range.intersect(range);
    let mut ranges = inside.map_or(vec![extent.range], |inside| extent.range.minus(inside));
    ranges.extend(inside);
    ranges.sort();
    ranges.into_iter().map(move |range| Extent { range, ..extent })
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    refusals: Refusals<'a>,
    supply: Supply<'a>,
    /// The stretches that no whole huge page inside an extent covers.
    edges: Vec<Edge>,
    plan: Plan,
}

/// What decides the reasons for the pieces of an extent that no span holds.
struct Unlifted<'a> {
    extent: &'a Extent,
    /// The page size that a piece is measured by.
    page: PageSize,
    candidates: &'a [Candidate],
    /// Whether spans of the extent are shared by all processes.
    shared: bool,
}

impl<'a> Planner<'a> {
    fn new(snapshot: &'a Snapshot, policy: &'a Policy) -> Planner<'a> {
        let supply = Supply::new(snapshot, policy);
        let refusals = Refusals::new(snapshot, policy);
        Planner { snapshot, policy, refusals, supply, edges: Vec::new(), plan: Plan::default() }
    }

    fn skip(&mut self, extent: &Extent, range: Range, reason: Reason) {
        if !range.is_empty() {
            self.plan.skips.push(Skip { object: extent.object, part: extent.part, range, reason });
        }
    }

    /// Makes spans of the whole huge pages inside `extent`, and skips or edges of the rest.
    fn consider(&mut self, extent: Extent) {
        if let Some(reason) = self.refusals.of(&extent) {
            return self.skip(&extent, extent.range, reason);
        }
        // Each backing has its own page size, and so its own inner span. What the best one leaves
        // (edges, and pages that it cannot supply) is offered to the next.
        let (candidates, refusals) = candidates(self.snapshot, self.policy, &extent);
        let mut left = vec![extent.range];
        let mut lack = None;
        let mut uncached = None;
        let mut shared = false;
        for (i, candidate) in candidates.iter().enumerate() {
            if candidate.backing == Backing::Pagecache {
                match self.refusals.cached(&extent, candidate.page) {
                    // A candidate before this one has taken a part of the extent.
                    Ok(_) if left != [extent.range] => {}
                    Ok(spans) => return self.take_cached(&extent, &spans, &candidates[i..]),
                    Err(reason) => uncached = Some(reason),
                }
                continue;
            }
            let pieces = std::mem::take(&mut left).into_iter();
            for piece in pieces.flat_map(|piece| self.supply.cut(*candidate, piece)).collect::<Vec<_>>() {
                let Some(inner) = self.allowed_within(&extent, *candidate, piece) else {
                    left.push(piece);
                    continue;
                };
                let (pages, reason) = self.supply.take(*candidate, extent.part, inner);
                lack = reason.or(lack);
                let end = Addr(inner.start.0 + pages * candidate.page.bytes());
                let span = Range { start: inner.start, end };
                if span.is_empty() {
                    left.push(piece);
                    continue;
                }
                shared |= candidate.backing == Backing::Shared;
                self.emit(&extent, span, vec![span], &candidates[i..]);
                left.extend(piece.minus(span));
            }
        }
        // Pieces are measured by the smallest page that was tried, or would have been.
        let usual = self.snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
        let page = candidates.iter().map(|c| c.page).min().or(self.policy.page.named()).unwrap_or(usual);
        let reason = lack.or(refusals.into_iter().next()).or(uncached).unwrap_or(Reason::NotLifted);
        self.explain_left(
            &Unlifted { extent: &extent, page, candidates: &candidates, shared },
            left,
            &reason,
        );
    }

    /// Explains the pieces `left` of an extent by `reason`, or by the user's choice to copy them later.
    fn explain_left(&mut self, unlifted: &Unlifted, left: Vec<Range>, reason: &Reason) {
        let is_later = !self.copies_all_of(unlifted.extent) && self.may_copy(unlifted.candidates);
        let reason = match self.policy.copies {
            Copies::Hot(_) if is_later => &Reason::Cold,
            _ if is_later => &Reason::CopiedLater,
            _ => reason,
        };
        for piece in left {
            self.explain(unlifted, piece, reason);
        }
    }

    /// Returns whether a backing would copy, if the policy let it: the store, or anonymous memory.
    fn may_copy(&self, candidates: &[Candidate]) -> bool {
        let stores = self.policy.backings.contains(&Backing::Shared)
            && usual_page(&self.snapshot.machine, Backing::Shared).is_some();
        stores || candidates.iter().any(Candidate::copies)
    }

    /// Returns the whole pages of `piece` that `candidate` may back: all of them, unless it copies and
    /// the policy restricts copies.
    fn allowed_within(&self, extent: &Extent, candidate: Candidate, piece: Range) -> Option<Range> {
        let is_allowed = !candidate.copies() || self.copies_all_of(extent);
        piece.inner(candidate.page).filter(|_| is_allowed)
    }

    /// Returns whether the policy lets every page of `extent` be copied.
    fn copies_all_of(&self, extent: &Extent) -> bool {
        extent.part.is_writable() || self.policy.copies.allow(extent.range)
    }

    /// Makes `spans` of pages that the page cache holds. The first of `candidates` is the page cache. The others are to be
    /// tried if its pages turn out not to be huge.
    fn take_cached(&mut self, extent: &Extent, spans: &[Range], candidates: &[Candidate]) {
        let Some(page) = candidates.first().map(|c| c.page) else { return };
        let mut left = vec![extent.range];
        for span in spans {
            self.emit(extent, *span, vec![*span], candidates);
            left = without(left, [*span]);
        }
        for piece in left {
            let unlifted = Unlifted { extent, page, candidates, shared: true };
            self.explain(&unlifted, piece, &Reason::SmallFolios);
        }
    }

    /// Skips the whole pages of `piece` for `reason` and keeps the rest as edges.
    fn explain(&mut self, unlifted: &Unlifted, piece: Range, reason: &Reason) {
        let Unlifted { extent, page, candidates, shared } = *unlifted;
        let edges = match piece.inner(page) {
            Some(inner) => {
                self.skip(extent, inner, reason.clone());
                piece.minus(inner)
            }
            None => vec![piece],
        };
        // Where the policy restricts copies, edges are not copied either.
        let candidates = if self.copies_all_of(extent) { candidates } else { &[] };
        self.edges.extend(edges.into_iter().flat_map(|e| Edge::all(extent, e, page, candidates, shared)));
    }

    /// Makes outer spans of the huge pages that hold nothing but edges and free space, as far as the
    /// policy wants them, and explains the other edges. `extents` are all extents of the snapshot.
    fn round_out(&mut self, extents: &[Extent]) {
        let mut edges = std::mem::take(&mut self.edges);
        edges.sort_by_key(|e| (e.page, e.range));
        let pages = || edges.chunk_by(|a, b| (a.page, a.whole()) == (b.page, b.whole()));
        let around = Surroundings::new(self.snapshot, self.policy, &self.refusals, extents);
        let found: Vec<_> = pages().map(|edges| around.candidates(edges)).collect();
        for (edges, found) in pages().zip(found) {
            let Err(reason) = found.and_then(|candidates| self.take_outer(edges, &candidates)) else {
                continue;
            };
            for edge in edges {
                let is_small = edge.extent.range.len() < edge.page.bytes();
                let reason = if is_small { Reason::TooSmall(edge.page) } else { reason.clone() };
                self.skip(&edge.extent, edge.range, reason);
            }
        }
    }

    /// Makes a span of the huge page that holds `edges`.
    fn take_outer(&mut self, edges: &[Edge], candidates: &[Candidate]) -> Result<(), Reason> {
        let Some(most) = edges.iter().max_by_key(|e| e.range.len()) else { return Ok(()) };
        let mut lack = Reason::NotAligned(most.page);
        for (i, candidate) in candidates.iter().enumerate() {
            match self.supply.take(*candidate, most.extent.part, most.whole()).1 {
                None => {
                    let held = edges.iter().map(|e| e.range).collect();
                    self.emit(&most.extent, most.whole(), joined_ranges(held), &candidates[i..]);
                    return Ok(());
                }
                Some(reason) => lack = reason,
            }
        }
        Err(lack)
    }

    /// Adds the span `range`, of which `held` is mapped, with an attempt for each of `candidates` that
    /// fits.
    fn emit(&mut self, extent: &Extent, range: Range, held: Vec<Range>, candidates: &[Candidate]) {
        let first = candidates.first().copied();
        let fits = |candidate: &&Candidate| range.inner(candidate.page) == Some(range);
        // Only spans that were made of the page cache are known to be in it.
        let known =
            |candidate: &&Candidate| candidate.backing != Backing::Pagecache || Some(**candidate) == first;
        // A fallback does not copy either what the policy would not have copied.
        let allowed = |candidate: &&Candidate| self.allowed_within(extent, **candidate, range) == Some(range);
        let attempts = candidates.iter().filter(fits).filter(known).filter(allowed);
        let attempts = attempts.filter_map(|c| self.attempt(extent, range, &held, *c)).collect();
        let Extent { object, part, prot, .. } = *extent;
        let span = Span { object, part, range, held, prot, attempts };
        self.plan.spans.push(span);
    }

    /// Returns the attempt to lift `range` by `candidate`; `None` if there is no place for a copy.
    fn attempt(
        &self,
        extent: &Extent,
        range: Range,
        held: &[Range],
        candidate: Candidate,
    ) -> Option<Attempt> {
        let Candidate { backing, page, in_place } = candidate;
        let (prot, placement) = (extent.prot, self.policy.placement);
        let steps = match backing {
            _ if in_place => steps_in_place(range, placement),
            Backing::Shared => {
                let copy = self.supply.copy_of(range)?;
                shared_steps(copy, prot, self.supply.scratch(candidate, range)?)
            }
            Backing::Pagecache | Backing::Hugetlb | Backing::Thp => {
                let scratch = match backing {
                    Backing::Pagecache => Range::default(),
                    _ => self.supply.scratch(candidate, range)?,
                };
                let job = Job { span: range, held, prot, scratch, placement };
                steps(&self.snapshot.machine, backing, page, &job)
            }
        };
        Some(Attempt { backing, page, in_place, steps })
    }

    /// Keeps the fallbacks of each span for which enough is left after all first choices, so that
    /// falling back exceeds no limit either.
    fn grant_fallbacks(&mut self) {
        for mut span in std::mem::take(&mut self.plan.spans) {
            let mut is_first = true;
            span.attempts.retain(|attempt| {
                std::mem::take(&mut is_first) || self.supply.grant(attempt, span.part, span.range)
            });
            self.plan.spans.push(span);
        }
    }
}

/// Joins adjacent ranges; `ranges` is sorted by address.
fn joined_ranges(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.dedup_by(|next, last| {
        let follows = last.end == next.start;
        if follows {
            last.end = next.end;
        }
        follows
    });
    ranges
}
