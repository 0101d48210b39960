// SPDX-License-Identifier: Apache-2.0
//! Which spans, and what from: hands out pool pages and memory to the extents in turn.

use super::outer::{Edge, Surroundings, margin};
use super::steps::{Job, scratch_for, scratch_for_stored, shared_steps, steps, steps_in_place};
use super::{Attempt, Plan, Span, is_nearly_all, usual_page};
use crate::addr::{Addr, PageSize, Range};
use crate::attribute::Attribute;
use crate::budget::{Budget, Cost};
use crate::maps::{Mapping, Prot};
use crate::policy::{Backing, Copies, PageChoice, Policy};
use crate::skip::{Reason, Skip};
use crate::snapshot::{Extent, Part, Pool, Snapshot, ThpOff, overlapping};

/// [`super::plan`].
pub(super) fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    let extents = joined(snapshot.extents());
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

/// [`super::shareable`].
pub(super) fn shareable(snapshot: &Snapshot, policy: &Policy) -> Vec<(usize, Part, Range)> {
    let planner = Planner::new(snapshot, policy);
    let Some(page) = usual_page(&snapshot.machine, Backing::Shared) else { return Vec::new() };
    let extents = joined(snapshot.extents()).into_iter();
    let wanted = extents.filter(|e| !e.part.is_writable() && planner.refusal(e).is_none());
    wanted.filter_map(|extent| Some((extent.object, extent.part, extent.range.inner(page)?))).collect()
}

/// Extents of one object and part that follow on each other become one.
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

/// A way that is open to a span, before its steps are known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) backing: Backing,
    pub(super) page: PageSize,
    /// Without a copy: the memory is advised where it is.
    pub(super) in_place: bool,
}

impl Candidate {
    /// The same backing and page, copied or not.
    pub(super) fn is_like(&self, other: &Candidate) -> bool {
        (self.backing, self.page) == (other.backing, other.page)
    }

    /// It takes a copy of the process's own.
    fn copies(&self) -> bool {
        !self.in_place && matches!(self.backing, Backing::Thp | Backing::Hugetlb)
    }
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    /// What is left of each pool after the spans planned so far.
    pools: Vec<Pool>,
    budget: Budget,
    /// What no whole huge page inside an extent covers.
    edges: Vec<Edge>,
    /// See [`margin`].
    margin: u64,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(snapshot: &'a Snapshot, policy: &'a Policy) -> Planner<'a> {
        Planner {
            snapshot,
            policy,
            pools: snapshot.machine.pools.clone(),
            budget: Budget::new(&snapshot.machine, policy.spare),
            edges: Vec::new(),
            margin: margin(snapshot, policy),
            plan: Plan::default(),
        }
    }

    fn scratch(&self, bytes: u64, page: PageSize) -> Option<Range> {
        scratch_for(self.snapshot, bytes, page, self.margin)
    }

    fn skip(&mut self, extent: &Extent, range: Range, reason: Reason) {
        if !range.is_empty() {
            self.plan.skips.push(Skip { object: extent.object, part: extent.part, range, reason });
        }
    }

    fn consider(&mut self, extent: Extent) {
        if let Some(reason) = self.refusal(&extent) {
            return self.skip(&extent, extent.range, reason);
        }
        // Each backing has its own page size, hence its own inner span. What the best one
        // leaves (edges, and what it has no pages for) is offered to the next.
        let (candidates, refusals) = self.candidates(&extent);
        let mut left = vec![extent.range];
        let mut lack = None;
        let mut uncached = None;
        let mut shared = false;
        for (i, candidate) in candidates.iter().enumerate() {
            if candidate.backing == Backing::Pagecache {
                match self.cached(&extent, candidate.page) {
                    // In another order of candidates, another may have begun.
                    Ok(_) if left != [extent.range] => {}
                    Ok(spans) => return self.take_cached(&extent, &spans, &candidates[i..]),
                    Err(reason) => uncached = Some(reason),
                }
                continue;
            }
            for piece in std::mem::take(&mut left) {
                let mut rest = vec![piece];
                for inner in piece
                    .inner(candidate.page)
                    .map_or(vec![], |inner| self.wanted(&extent, *candidate, inner))
                {
                    let (pages, reason) = self.supply(*candidate, extent.part, inner);
                    lack = reason.or(lack);
                    let end = Addr(inner.start.0 + pages * candidate.page.bytes());
                    let span = Range { start: inner.start, end };
                    if !span.is_empty() {
                        shared |= candidate.backing == Backing::Shared;
                        self.emit(&extent, span, vec![span], &candidates[i..]);
                        rest = rest.into_iter().flat_map(|piece| piece.minus(span)).collect();
                    }
                }
                left.extend(rest);
            }
        }
        // Sizes are told by the smallest page that was tried, or would have been.
        let usual = self.snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
        let page = candidates.iter().map(|w| w.page).min().or(self.policy.page.named()).unwrap_or(usual);
        let reason = lack.or(refusals.into_iter().next()).or(uncached).unwrap_or(Reason::NotLifted);
        let unwanted = match &self.policy.copies {
            _ if self.copies_all_of(&extent) || !candidates.iter().any(Candidate::copies) => None,
            Copies::All => None, // as said
            Copies::Seen(_) => Some(Reason::NotTouched),
            Copies::NotWorth(weighed) => Some(Reason::NotWorth(*weighed)),
        };
        for piece in left {
            let Some(unwanted) = &unwanted else {
                self.explain(&extent, piece, page, &reason, &candidates, shared);
                continue;
            };
            let mut others = vec![piece];
            for wanted in piece.inner(page).map_or(vec![], |inner| self.policy.copies.within(inner, page)) {
                self.explain(&extent, wanted, page, &reason, &candidates, shared);
                others = others.into_iter().flat_map(|piece| piece.minus(wanted)).collect();
            }
            for other in others {
                self.explain(&extent, other, page, unwanted, &candidates, shared);
            }
        }
    }

    /// The pieces of `inner` that may be had in this candidate: all of it, unless that takes a copy.
    fn wanted(&self, extent: &Extent, candidate: Candidate, inner: Range) -> Vec<Range> {
        if !candidate.copies() || self.copies_all_of(extent) {
            return vec![inner];
        }
        self.policy.copies.within(inner, candidate.page)
    }

    /// No page of `extent` is left out for not being worth a copy.
    fn copies_all_of(&self, extent: &Extent) -> bool {
        extent.part.is_writable() || self.policy.copies == Copies::All
    }

    /// The stretches of `extent` that huge entries can map as the page cache has them, if they are
    /// nearly all of it: for a part with holes each hole would have to be copied.
    fn cached(&self, extent: &Extent, page: PageSize) -> Result<Vec<Range>, Reason> {
        let Some(inner) = extent.range.inner(page) else { return Err(Reason::TooSmall(page)) };
        if !extent.file_backed {
            return Err(Reason::NotPrimed);
        }
        let congruent = |m: &Mapping| m.range.start.0.wrapping_sub(m.offset).is_multiple_of(page.bytes());
        if !overlapping(&self.snapshot.mappings, inner).iter().all(congruent) {
            // An executable would have been moved, had there been anything to gain.
            let object = &self.snapshot.objects[extent.object];
            let mut ranges = object.headers.segments.iter().filter_map(|s| object.loaded(s.vaddr, s.memsz));
            let is_cached = |r: Range| self.snapshot.cached.iter().any(|c| c.intersect(r).is_some());
            let stays = object.executable && object.headers.relocatable && !ranges.any(is_cached);
            return Err(if stays { Reason::NotPrimed } else { Reason::NotCongruent(page) });
        }
        let held = self.snapshot.cached.iter().filter_map(|c| c.intersect(inner)?.inner(page));
        let spans: Vec<Range> = held.collect();
        let bytes: u64 = spans.iter().map(|r| r.len()).sum();
        if is_nearly_all(bytes, inner.len()) { Ok(spans) } else { Err(Reason::NotPrimed) }
    }

    /// `candidates` are the first, the page cache, and what else to do if it turns out not to be so.
    fn take_cached(&mut self, extent: &Extent, spans: &[Range], candidates: &[Candidate]) {
        let Some(page) = candidates.first().map(|w| w.page) else { return };
        let mut left = vec![extent.range];
        for span in spans {
            self.emit(extent, *span, vec![*span], candidates);
            left = left.into_iter().flat_map(|piece| piece.minus(*span)).collect();
        }
        for piece in left {
            self.explain(extent, piece, page, &Reason::SmallFolios, candidates, true);
        }
    }

    /// Skips the whole pages of `piece` for `reason`; the rest depends on where it lies.
    fn explain(
        &mut self,
        extent: &Extent,
        piece: Range,
        page: PageSize,
        reason: &Reason,
        candidates: &[Candidate],
        shared: bool,
    ) {
        let edges = match piece.inner(page) {
            Some(inner) => {
                self.skip(extent, inner, reason.clone());
                piece.minus(inner)
            }
            None => vec![piece],
        };
        // Nor are edges worth a copy where not all whole pages are.
        let candidates = if self.copies_all_of(extent) { candidates } else { &[] };
        self.edges.extend(edges.into_iter().flat_map(|e| Edge::all(extent, e, page, candidates, shared)));
    }

    /// Takes the huge pages that hold nothing but edges and free space, as far as is wanted, and
    /// explains the other edges. `extents` are all there are.
    fn round_out(&mut self, extents: &[Extent]) {
        let mut edges = std::mem::take(&mut self.edges);
        edges.sort_by_key(|e| (e.page, e.range));
        let around = Surroundings { snapshot: self.snapshot, policy: self.policy, extents };
        for edges in edges.chunk_by(|a, b| (a.page, a.whole()) == (b.page, b.whole())) {
            let Err(reason) =
                around.candidates(edges).and_then(|candidates| self.take_outer(edges, &candidates))
            else {
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
            match self.supply(*candidate, most.extent.part, most.whole()).1 {
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

    /// Why this extent is not to be touched at all.
    fn refusal(&self, extent: &Extent) -> Option<Reason> {
        let object = &self.snapshot.objects[extent.object];
        if !self.policy.objects.takes(object) {
            return Some(Reason::Excluded);
        }
        if !self.policy.parts.contains(&extent.part) {
            return Some(Reason::PartNotAsked(extent.part));
        }
        // A segment that states both will be both again, page by page, which hugetlb refuses.
        let stated_wx =
            object.headers.segments.iter().filter(|s| s.prot.is_wx()).any(|s| {
                object.loaded(s.vaddr, s.memsz).is_some_and(|r| r.intersect(extent.range).is_some())
            });
        if extent.prot.is_wx() || stated_wx {
            return Some(Reason::WritableCode);
        }
        // What stays in place keeps all its attributes.
        let in_place = stays(extent);
        let special = self.snapshot.special.iter().filter(|(r, _)| r.intersect(extent.range).is_some());
        let undone = |a: Attribute| {
            !in_place || a.forbids_huge() || a == Attribute::Placed && self.policy.placement.is_some()
        };
        if let Some((_, attribute)) = special.into_iter().find(|(_, a)| undone(*a)) {
            return Some(Reason::Special(*attribute));
        }
        match extent.part {
            Part::Text if object.textrel => Some(Reason::TextRelocations),
            // A uprobe's breakpoint that the kernel finds in anonymous memory kills the program.
            Part::Text if self.snapshot.patched.iter().any(|r| r.intersect(extent.range).is_some()) => {
                Some(Reason::Patched)
            }
            Part::Text if (Prot { bti: false, ..extent.prot }) == Prot::RX => None,
            Part::Rodata if extent.prot == Prot::R => None,
            // Before the loader has relocated it, it is writable still.
            Part::Relro if [Prot::R, Prot::RW].contains(&extent.prot) => None,
            Part::Data | Part::Bss | Part::Heap | Part::Stack if extent.prot == Prot::RW => None,
            _ => Some(Reason::Protection),
        }
    }

    /// The candidates that are open to `extent` on this machine, best first, and why the others are not.
    fn candidates(&self, extent: &Extent) -> (Vec<Candidate>, Vec<Reason>) {
        let writable = extent.part.is_writable();
        let backings = if writable { &self.policy.data_backings } else { &self.policy.backings };
        let in_place = stays(extent);
        let (mut candidates, mut refusals) = (Vec::new(), Vec::new());
        for (backing, page) in backings.iter().flat_map(|b| self.sizes(*b).into_iter().map(|page| (*b, page)))
        {
            let verdict = match backing {
                // RELRO is yet to be protected, page by page; the heap and the stack grow; and
                // the kernel forgets a heap whose mapping is replaced.
                Backing::Hugetlb if matches!(extent.part, Part::Relro | Part::Heap | Part::Stack) => {
                    Err(Reason::NotFor(backing, extent.part))
                }
                _ => self.offered(backing, page),
            };
            match verdict.map(|page| Candidate {
                backing,
                page,
                in_place: in_place && backing == Backing::Thp,
            }) {
                Ok(candidate) if candidates.contains(&candidate) => {}
                Ok(candidate) => candidates.push(candidate),
                // Nobody misses it where others are open, or would be.
                Err(_) if backing == Backing::Pagecache && self.policy.backings.len() > 1 => {}
                Err(reason) => refusals.push(reason),
            }
        }
        (candidates, refusals)
    }

    /// The sizes that the user wants of a backing, best first; `None` is one that it does not have.
    fn sizes(&self, backing: Backing) -> Vec<Option<PageSize>> {
        let machine = &self.snapshot.machine;
        let usual = usual_page(machine, backing);
        let mixed = match (self.policy.page, backing) {
            (PageChoice::Usual, _) => return vec![usual],
            (PageChoice::Only(page), _) => return vec![Some(page)],
            // A pool without pages has nothing to mix in; but for the usual one, which is missed.
            (PageChoice::Mixed, Backing::Hugetlb) => {
                let stocked = machine.pools.iter().filter(|p| p.available() > 0 || Some(p.page) == usual);
                stocked.map(|p| Some(p.page)).collect()
            }
            (PageChoice::Mixed, Backing::Thp) => {
                usual.into_iter().chain(machine.folios.iter().copied()).map(Some).collect()
            }
            (PageChoice::Mixed, Backing::Pagecache | Backing::Shared) => vec![usual],
        };
        if mixed.is_empty() { vec![usual] } else { mixed }
    }

    /// Whether the machine has pages of this size for a backing: the size, or why not.
    fn offered(&self, backing: Backing, page: Option<PageSize>) -> Result<PageSize, Reason> {
        let machine = &self.snapshot.machine;
        if backing == Backing::Hugetlb {
            let page = page.or(machine.thp_page).unwrap_or(PageSize::MB2);
            let offered = machine.pools.iter().any(|p| p.page == page);
            return if offered { Ok(page) } else { Err(Reason::NoPool(page)) };
        }
        let usual = usual_page(machine, backing).ok_or(Reason::NoThp)?;
        let page = page.unwrap_or(usual);
        if page != usual && !(backing == Backing::Thp && machine.folios.contains(&page)) {
            return Err(Reason::NoSuchPage(backing, page));
        }
        match machine.thp_off {
            // The switch in /sys is about new folios, not about mapping those that are there.
            Some(ThpOff::Never) if backing != Backing::Thp => Ok(page),
            // Smaller folios have switches of their own.
            Some(ThpOff::Never) if page != usual => Ok(page),
            Some(off) => Err(Reason::ThpOff(off)),
            None => Ok(page),
        }
    }

    /// Spends pool pages or memory on `span`, which is of `part`. Returns how many pages of it can
    /// be had from its start on, and what is lacking for the others.
    fn supply(&mut self, candidate: Candidate, part: Part, span: Range) -> (u64, Option<Reason>) {
        let need = span.len() / candidate.page.bytes();
        // Half a span on the last bytes of memory is no service: all or nothing.
        let all_or_nothing = |taken: Result<(), Reason>| match taken {
            Ok(()) => (need, None),
            Err(reason) => (0, Some(reason)),
        };
        if candidate.in_place {
            // It costs nothing now. Huge pages are charged when the program touches them.
            return all_or_nothing(self.budget.take(Cost { machine: 0, charged: span.len() }));
        }
        if self.scratch(span.len(), candidate.page).is_none() {
            return (0, Some(Reason::NoCodeCave(span.len())));
        }
        match candidate.backing {
            Backing::Hugetlb => {
                let Some(pool) = self.pools.iter_mut().find(|p| p.page == candidate.page) else {
                    return (0, Some(Reason::NoPool(candidate.page)));
                };
                // A child of fork(2) gets a copy of what is written, which is charged to its group.
                let charged = part.is_writable() || self.budget.counts_pools();
                let charge = |pages: u64| if charged { pages * candidate.page.bytes() } else { 0 };
                if let Some(reason) = self.budget.lack(Cost { machine: 0, charged: charge(need) }) {
                    return (0, Some(reason));
                }
                let (free, total) = (obtainable(pool, self.budget.machine()), pool.total);
                let taken = free.min(need);
                let short = Reason::PoolShort { page: candidate.page, free, need, total };
                let cost = Cost { machine: take(pool, taken), charged: charge(taken) };
                match self.budget.take(cost) {
                    Ok(()) => (taken, (taken < need).then_some(short)),
                    Err(reason) => (0, Some(reason)),
                }
            }
            Backing::Shared => match self.snapshot.stored.covering(span) {
                Some(_) if scratch_for_stored(self.snapshot, span, candidate.page, self.margin).is_none() => {
                    (0, Some(Reason::NoCodeCave(span.len())))
                }
                // It is there already, for everybody.
                Some(_) => (need, None),
                None => (0, self.snapshot.stored.lack(span).cloned().map(Reason::NotStored)),
            },
            Backing::Thp | Backing::Pagecache => all_or_nothing(self.budget.take(Cost::copy(span.len()))),
        }
    }

    /// `held` is what of `range` is mapped.
    fn emit(&mut self, extent: &Extent, range: Range, held: Vec<Range>, candidates: &[Candidate]) {
        let first = candidates.first().copied();
        let fits = |candidate: &&Candidate| range.inner(candidate.page) == Some(range);
        // What the page cache has is known of the spans that were made of it.
        let known =
            |candidate: &&Candidate| candidate.backing != Backing::Pagecache || Some(**candidate) == first;
        // Nor does a second choice copy what should not be.
        let wanted = |candidate: &&Candidate| self.wanted(extent, **candidate, range) == [range];
        let placement = self.policy.placement;
        let job = |scratch| Job { span: range, held: &held, prot: extent.prot, scratch, placement };
        let attempts = candidates.iter().filter(fits).filter(known).filter(wanted).filter_map(|candidate| {
            let scratch = match candidate.backing {
                Backing::Pagecache => Range::default(),
                _ if candidate.in_place => Range::default(),
                Backing::Shared => scratch_for_stored(self.snapshot, range, candidate.page, self.margin)?,
                _ => self.scratch(range.len(), candidate.page)?,
            };
            let steps = match candidate.backing {
                _ if candidate.in_place => steps_in_place(range, self.policy.placement),
                Backing::Shared => shared_steps(self.snapshot.stored.covering(range)?, extent.prot, scratch),
                _ => {
                    let machine = &self.snapshot.machine;
                    steps(machine, candidate.backing, candidate.page, &job(scratch))
                }
            };
            Some(Attempt {
                backing: candidate.backing,
                page: candidate.page,
                in_place: candidate.in_place,
                steps,
            })
        });
        let attempts = attempts.collect();
        let Extent { object, part, prot, .. } = *extent;
        let span = Span { object, part, range, held, prot, attempts };
        self.plan.spans.push(span);
    }

    /// Grants each span its second choices from what the first choices of all have left, so
    /// that falling back runs into no limit either.
    fn grant_fallbacks(&mut self) {
        for mut span in std::mem::take(&mut self.plan.spans) {
            let mut granted = 0;
            span.attempts.retain(|attempt| {
                granted += 1;
                granted == 1 || self.grant(attempt, span.part, span.range)
            });
            self.plan.spans.push(span);
        }
    }

    fn grant(&mut self, attempt: &Attempt, part: Part, range: Range) -> bool {
        let candidate =
            Candidate { backing: attempt.backing, page: attempt.page, in_place: attempt.in_place };
        let short = match self
            .pools
            .iter()
            .find(|p| p.page == candidate.page && candidate.backing == Backing::Hugetlb)
        {
            Some(pool) => obtainable(pool, self.budget.machine()) < range.len() / candidate.page.bytes(),
            None => false,
        };
        !short && self.supply(candidate, part, range).1.is_none()
    }
}

/// Ranges, by address, that follow on each other become one.
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

/// Anonymous memory that the program writes to needs no copy to be huge.
fn stays(extent: &Extent) -> bool {
    matches!(extent.part, Part::Bss | Part::Heap | Part::Stack) && !extent.file_backed
}

/// Pages of `pool` that a span could get: surplus ones are made of the memory that is left.
fn obtainable(pool: &Pool, memory_left: u64) -> u64 {
    let made = pool.available() - pool.unpromised();
    pool.unpromised() + made.min(memory_left / pool.page.bytes())
}

/// Takes `pages` pages out of what [`obtainable`] counts, free ones first; returns the bytes
/// of memory that the others cost.
fn take(pool: &mut Pool, pages: u64) -> u64 {
    let from_free = pages.min(pool.unpromised());
    let made = pages - from_free;
    pool.reserved += from_free;
    pool.surplus += made;
    made * pool.page.bytes()
}
