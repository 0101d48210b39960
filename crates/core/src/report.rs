// SPDX-License-Identifier: Apache-2.0
//! What is huge, what could be, and for the rest the reason: as data, and so as JSON.
//! The crate `report` makes the table and the bars of it.
//!
//! ```text
//!   mapping (smaps: 4 MB huge)  |-----------------------------|
//!   plan                        |··|=========span=========|···|
//!   report                       edge: skip   huge: 4 MB   edge: skip
//!                                             rest: skip
//! ```
//!
//! Every byte of a part is counted once: as huge, because smaps says so, or in exactly
//! one skip. What was asked for, or what a call returned, is never reported as huge.

mod entries;

use crate::addr::{PageSize, Range};
use crate::apply::Outcome;
use crate::plan::{Plan, liftable_bytes, plan};
use crate::policy::{Backing, Policy, SpanChoice};
use crate::printable::Untrusted;
use crate::skip::Reason;
use crate::smaps::Usage;
use crate::snapshot::{Extent, Part, Snapshot};
use crate::target::Fault;
pub use entries::Entries;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What is on huge pages, object by object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The objects, the executable first.
    pub objects: Vec<ObjectReport>,
    /// Sums over all objects, for every part that occurs.
    pub totals: BTreeMap<Part, Total>,
    /// The process; none for a program that does not run.
    pub pid: Option<u32>,
    /// The program does not run: its addresses are made up, as loading it might choose them.
    pub assumed_addresses: bool,
    /// Size of the huge pages that `liftable_bytes` counts, in bytes.
    pub page_size: u64,
    /// What each way to choose spans would lift, where somebody has asked: see [`gains`].
    pub spans: BTreeMap<SpanChoice, Gain>,
    /// How many entries of the TLB text and read-only data take.
    pub tlb_entries: Entries,
}

/// What a lift would put on huge pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Gain {
    /// Bytes of parts.
    pub bytes: u64,
    /// The huge pages for them.
    pub page_bytes: u64,
}

/// What `policy` would lift of `snapshot` with each way to choose spans.
pub fn gains(snapshot: &Snapshot, policy: &Policy) -> BTreeMap<SpanChoice, Gain> {
    let gain = |span: SpanChoice| {
        let spans = plan(snapshot, &Policy { span, ..policy.clone() }).spans;
        let bytes = spans.iter().flat_map(|s| &s.held).map(|held| held.len()).sum();
        (span, Gain { bytes, page_bytes: spans.iter().map(|s| s.range.len()).sum() })
    };
    [SpanChoice::Inner, SpanChoice::Outer, SpanChoice::Auto].map(gain).into()
}

/// One object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ObjectReport {
    /// As in `/proc/PID/maps`.
    pub path: Untrusted,
    /// GNU build-id in hexadecimal.
    pub build_id: Option<String>,
    /// Its parts, by address.
    pub parts: Vec<PartReport>,
    /// The program itself, as against a shared object or the loader.
    pub executable: bool,
    /// Bytes of its text and read-only data that are on huge pages in the page cache now: for a
    /// program that does not run, where somebody has looked.
    pub page_cache_bytes: Option<u64>,
}

/// One uninterrupted stretch of one part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartReport {
    /// What it holds.
    pub part: Part,
    /// Address of its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Whole huge pages in it, and what more of it outer spans take.
    pub liftable_bytes: u64,
    /// Bytes that huge pages map now, by smaps.
    pub huge_bytes: u64,
    /// Where most of those come from.
    pub backing: Option<Backing>,
    /// The bytes that are not huge, by reason.
    pub skips: Vec<SkipReport>,
    /// Address behind its last byte.
    pub end: u64,
    /// Where the huge bytes are, as far as smaps tells: mapping by mapping.
    #[serde(skip)]
    pub fragments: Vec<Fragment>,
    /// Where the skips are: stretches without gap or overlap, by address.
    #[serde(skip)]
    pub stretches: Vec<Stretch>,
}

/// A stretch of a part that the plan treats in one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Where.
    pub range: Range,
    /// Bytes of it that are huge.
    pub huge: u64,
    /// Why the others are not: index into [`PartReport::skips`]. None if there are no others.
    pub skip: Option<usize>,
}

/// Bytes that are not huge, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SkipReport {
    /// [`Reason::key`].
    pub reason: &'static str,
    /// How many.
    pub bytes: u64,
    /// What would change it.
    pub hint: Option<String>,
    /// The reason in words, with the values seen.
    pub detail: String,
    /// The reason itself.
    #[serde(skip)]
    pub why: Reason,
}

/// Sums of one part over all objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Total {
    /// Length.
    pub bytes: u64,
    /// Whole huge pages.
    pub liftable_bytes: u64,
    /// On huge pages.
    pub huge_bytes: u64,
}

/// The piece of a part that one mapping of smaps shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Where.
    pub range: Range,
    /// How much of it is huge; smaps does not say which bytes.
    pub huge: u64,
    /// Where the huge pages come from.
    pub backing: Option<Backing>,
    /// More will come as it is touched.
    pub advised: bool,
}

impl Report {
    /// Reports on `snapshot` what `usage` (smaps, read last) shows to be huge, and for all
    /// other bytes the reason that `plan` or, for what was tried, `outcome` gives.
    ///
    /// The snapshot may be older than `usage`: a lift splits mappings, but no part moves.
    pub fn new(
        snapshot: &Snapshot,
        usage: Option<&[Usage]>,
        plan: &Plan,
        outcome: Option<&Outcome>,
    ) -> Report {
        let page = page_size(snapshot, plan);
        let extents = snapshot.extents();
        let fragments = fragments(&extents, usage.unwrap_or_default(), page);
        // Without smaps nothing is known of a span, least of all that its lift failed.
        let outcome = outcome.filter(|_| usage.is_some());
        let mut objects: Vec<ObjectReport> = snapshot
            .objects
            .iter()
            .map(|object| ObjectReport {
                path: object.path.clone().into(),
                build_id: object.build_id.clone(),
                parts: Vec::new(),
                executable: object.executable,
                page_cache_bytes: None,
            })
            .collect();
        let mut totals: BTreeMap<Part, Total> = BTreeMap::new();
        let mut wants = Wants::default();
        let mut rest = extents.iter().zip(fragments).peekable();
        while let Some((first, fragments)) = rest.next() {
            // What follows without a gap is the same stretch, though it be another mapping.
            let mut run = vec![*first];
            let mut found = fragments;
            while let Some((next, more)) = rest.next_if(|(next, _)| follows(&run, next)) {
                run.push(*next);
                found.extend(more);
            }
            let part = part_report(&run, found, page, plan, outcome, &mut wants);
            let total = totals.entry(part.part).or_default();
            total.bytes += part.bytes;
            total.liftable_bytes += part.liftable_bytes;
            total.huge_bytes += part.huge_bytes;
            objects[first.object].parts.push(part);
        }
        for object in &mut objects {
            object.parts.sort_by_key(|p| p.start);
            for skip in object.parts.iter_mut().flat_map(|p| &mut p.skips) {
                skip.hint = wants.hint(&skip.why);
            }
        }
        let tlb_entries = Entries::of(&totals, snapshot.machine.base_page, page);
        let mut report = Report {
            version: VERSION,
            objects,
            totals,
            pid: None,
            assumed_addresses: false,
            page_size: page.bytes(),
            spans: BTreeMap::new(),
            tlb_entries,
        };
        report.advise::<&str>(&[], |_| false);
        report
    }
}

impl Report {
    /// The bytes of `part` that are not huge for `reason`, over all objects.
    pub fn bytes(&self, part: Part, reason: &Reason) -> u64 {
        let parts = self.objects.iter().flat_map(|o| &o.parts).filter(|p| p.part == part);
        parts.flat_map(|p| &p.skips).filter(|s| s.why == *reason).map(|s| s.bytes).sum()
    }

    /// The bytes of `part` that were copied for pages that smaps does not tell of.
    pub fn unseen_bytes(&self, part: Part) -> u64 {
        let parts = self.objects.iter().flat_map(|o| &o.parts).filter(|p| p.part == part);
        let skips = parts.flat_map(|p| &p.skips);
        skips.filter(|s| matches!(s.why, Reason::SmallerPages(_))).map(|s| s.bytes).sum()
    }
}

fn follows(run: &[Extent], next: &Extent) -> bool {
    run.last().is_some_and(|last| {
        (last.object, last.part) == (next.object, next.part) && last.range.end == next.range.start
    })
}

/// The page size that the plan works with, or would.
fn page_size(snapshot: &Snapshot, plan: &Plan) -> PageSize {
    let mut planned = plan.spans.iter().filter_map(|s| s.attempts.first()).map(|a| a.page);
    // Where sizes are mixed, the usual one counts.
    let usual = snapshot.machine.thp_page.filter(|usual| planned.clone().any(|page| page == *usual));
    let planned = usual.or_else(|| planned.next());
    let smallest = || snapshot.machine.pools.iter().map(|p| p.page).min();
    planned.or(snapshot.machine.thp_page).or_else(smallest).unwrap_or(PageSize::MB2)
}

/// For each extent, the mappings of `usage` that it lies in, with its share of their huge
/// bytes. A mapping inside one extent gives all it has; one that several share, or that
/// is larger than they are, is apportioned by the whole huge pages in each.
fn fragments(extents: &[Extent], usage: &[Usage], page: PageSize) -> Vec<Vec<Fragment>> {
    let mut found: Vec<Vec<Fragment>> = vec![Vec::new(); extents.len()];
    for used in usage {
        let whole = used.mapping.range;
        let here: Vec<(usize, Range)> =
            extents.iter().enumerate().filter_map(|(i, e)| Some((i, e.range.intersect(whole)?))).collect();
        let (backing, huge) = (backing_of(used), used.huge());
        let ranges: Vec<Range> = here.iter().map(|(_, range)| *range).collect();
        for ((i, range), huge) in here.iter().zip(apportion(huge, whole, &ranges, page)) {
            let (backing, advised) = (backing.filter(|_| huge > 0), used.advised);
            found[*i].push(Fragment { range: *range, huge, backing, advised });
        }
    }
    found
}

/// Where most of a mapping's huge bytes come from.
fn backing_of(usage: &Usage) -> Option<Backing> {
    let counters = [
        (usage.hugetlb(), Backing::Hugetlb),
        (usage.anon_huge, Backing::Thp),
        (usage.shmem_huge, Backing::Shared),
        (usage.file_huge, Backing::Pagecache),
    ];
    counters.into_iter().filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes).map(|(_, b)| b)
}

/// Deals `huge` bytes of the mapping `whole` out to `ranges` inside it: in whole pages
/// where that is possible, never more to one than it holds.
fn apportion(huge: u64, whole: Range, ranges: &[Range], page: PageSize) -> Vec<u64> {
    if huge == whole.len() {
        return ranges.iter().map(|r| r.len()).collect();
    }
    let pages = |r: &Range| liftable_bytes(*r, page);
    let by_pages: Vec<u64> = ranges.iter().map(pages).collect();
    // Huge pages of another size than we count with fit nowhere: then by length.
    let (weights, all, unit) = if huge <= pages(&whole) {
        (by_pages, pages(&whole), page.bytes())
    } else {
        (ranges.iter().map(|r| r.len()).collect(), whole.len(), 1)
    };
    let all = weights.iter().sum::<u64>().max(all);
    // Each gets what the running sum grows by, so that roundings do not add up.
    let (mut weight_sum, mut dealt) = (0u64, 0u64);
    weights
        .iter()
        .map(|weight| {
            weight_sum += weight;
            let exact = u128::from(huge) * u128::from(weight_sum) / u128::from(all.max(1));
            let upto = u64::try_from(exact).unwrap_or(u64::MAX);
            let upto = if weight_sum == all { upto } else { upto - upto % unit };
            let share = upto.saturating_sub(dealt).min(*weight);
            dealt += share;
            share
        })
        .collect()
}

/// A piece of a stretch that the plan treats in one way.
struct Piece<'a> {
    range: Range,
    fate: Fate<'a>,
    huge: u64,
    /// Bytes that huge pages come to as they are touched.
    advised: u64,
}

#[derive(Clone, Copy)]
enum Fate<'a> {
    /// To be lifted: index of the span.
    Span(usize),
    /// To be left.
    Skip(&'a Reason),
    /// The plan does not know it.
    Unknown,
}

fn part_report(
    run: &[Extent],
    fragments: Vec<Fragment>,
    page: PageSize,
    plan: &Plan,
    outcome: Option<&Outcome>,
    wants: &mut Wants,
) -> PartReport {
    let (first, last) = (run[0], run[run.len() - 1]);
    let range = Range { start: first.range.start, end: last.range.end };
    let mut pieces = pieces(first.object, first.part, range, plan);
    let mut by_backing: BTreeMap<Backing, u64> = BTreeMap::new();
    for fragment in &fragments {
        if let Some(backing) = fragment.backing {
            *by_backing.entry(backing).or_default() += fragment.huge;
        }
        settle(&mut pieces, fragment);
    }
    let mut skips: Vec<(Reason, u64)> = Vec::new();
    let mut stretches = Vec::new();
    for piece in &pieces {
        let bytes = piece.range.len() - piece.huge;
        let mut stretch = Stretch { range: piece.range, huge: piece.huge, skip: None };
        if bytes > 0 {
            let reason = piece.reason(plan, outcome);
            wants.add(&reason);
            let known = skips.iter().position(|(r, _)| *r == reason || adds_up(r, &reason));
            match known {
                Some(at) => skips[at] = (skips[at].0.and(&reason), skips[at].1 + bytes),
                None => skips.push((reason, bytes)),
            }
            stretch.skip = known.or(Some(skips.len() - 1));
        }
        stretches.push(stretch);
    }
    PartReport {
        part: first.part,
        start: range.start.0,
        bytes: range.len(),
        liftable_bytes: same_protection(run).into_iter().map(|r| liftable(r, page, plan)).sum(),
        huge_bytes: pieces.iter().map(|p| p.huge).sum(),
        backing: by_backing.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(backing, _)| backing),
        skips: skips
            .into_iter()
            .map(|(reason, bytes)| SkipReport {
                reason: reason.key(),
                bytes,
                hint: None, // known when all parts are
                detail: reason.to_string(),
                why: reason,
            })
            .collect(),
        end: range.end.0,
        fragments,
        stretches,
    }
}

/// What is lacking, summed over the whole report: the command that a hint names is to
/// help all of it, not one part.
#[derive(Default)]
struct Wants(Vec<Reason>);

impl Wants {
    fn add(&mut self, reason: &Reason) {
        match self.0.iter_mut().find(|known| adds_up(known, reason)) {
            Some(known) => *known = known.and(reason),
            None if adds_up(reason, reason) => self.0.push(reason.clone()),
            None => {}
        }
    }

    fn hint(&self, reason: &Reason) -> Option<String> {
        self.0.iter().find(|known| adds_up(known, reason)).unwrap_or(reason).hint()
    }
}

/// Whether two lacks are of the same thing, so that what is needed adds up.
fn adds_up(a: &Reason, b: &Reason) -> bool {
    match (a, b) {
        (Reason::PoolShort { page, .. }, Reason::PoolShort { page: other, .. }) => page == other,
        (Reason::MemoryLimit { .. }, Reason::MemoryLimit { .. })
        | (Reason::GroupLimit { .. }, Reason::GroupLimit { .. }) => true,
        _ => false,
    }
}

/// The bytes of `range` that huge pages could have: those inside it, and outer spans.
fn liftable(range: Range, page: PageSize, plan: &Plan) -> u64 {
    let inner = range.inner(page).unwrap_or_default();
    let beyond = plan.spans.iter().filter_map(|s| s.range.intersect(range));
    inner.len() + beyond.flat_map(|r| r.minus(inner)).map(Range::len).sum::<u64>()
}

/// A run cut where its protection changes: no huge page reaches across.
fn same_protection(run: &[Extent]) -> Vec<Range> {
    run.chunk_by(|a, b| a.prot == b.prot)
        .map(|same| Range { start: same[0].range.start, end: same[same.len() - 1].range.end })
        .collect()
}

/// Cuts `range` as the plan does; the pieces cover it without gap or overlap.
fn pieces(object: usize, part: Part, range: Range, plan: &Plan) -> Vec<Piece<'_>> {
    // An outer span may hold several parts.
    let spans = plan.spans.iter().enumerate().map(|(i, s)| (s.range, Fate::Span(i)));
    let skips = plan
        .skips
        .iter()
        .filter(|s| (s.object, s.part) == (object, part))
        .map(|s| (s.range, Fate::Skip(&s.reason)));
    let mut known: Vec<(Range, Fate)> =
        spans.chain(skips).filter_map(|(r, fate)| Some((r.intersect(range)?, fate))).collect();
    known.sort_by_key(|(r, _)| r.start);

    let mut out = Vec::new();
    let mut at = range.start;
    let mut cut = |end, fate| {
        if at < end {
            out.push(Piece { range: Range { start: at, end }, fate, huge: 0, advised: 0 });
            at = end;
        }
    };
    for (known, fate) in known {
        cut(known.start, Fate::Unknown);
        cut(known.end, fate);
    }
    cut(range.end, Fate::Unknown);
    out
}

/// Books the huge bytes of `fragment` on the pieces inside it: on the spans first, as
/// the edges are where no huge page fits.
fn settle(pieces: &mut [Piece], fragment: &Fragment) {
    for piece in pieces.iter_mut().filter(|_| fragment.advised) {
        piece.advised += piece.range.intersect(fragment.range).map_or(0, Range::len);
    }
    let mut left = fragment.huge;
    for spans in [true, false] {
        for piece in pieces.iter_mut().filter(|p| matches!(p.fate, Fate::Span(_)) == spans) {
            let room = piece.range.intersect(fragment.range).map_or(0, Range::len);
            let take = left.min(room).min(piece.range.len() - piece.huge);
            piece.huge += take;
            left -= take;
        }
    }
}

impl Piece<'_> {
    /// Why what is not huge of this piece is not.
    fn reason(&self, plan: &Plan, outcome: Option<&Outcome>) -> Reason {
        let index = match self.fate {
            Fate::Skip(reason) => return reason.clone(),
            Fate::Unknown => return Reason::NotLifted,
            Fate::Span(index) => index,
        };
        let in_place = plan.spans[index].attempts.iter().any(|a| a.in_place);
        if in_place && self.advised == self.range.len() {
            return Reason::OnTouch;
        }
        let Some(outcome) = outcome else { return Reason::NotLifted };
        let lost = || {
            let fault = Fault::Lost(outcome.lost.clone()?);
            Some(Reason::Failed(plan.spans[index].attempts.first()?.backing, fault))
        };
        let Some(span) = outcome.spans.get(index) else { return lost().unwrap_or(Reason::NotLifted) };
        let way = span.way(&plan.spans[index]);
        if let Some(way) = way.filter(|way| way.is_unseen()) {
            return Reason::SmallerPages(way.page);
        }
        match (span.lifted, span.failures.last()) {
            // Every call succeeded, and yet smaps does not show it.
            (Some(backing), _) => {
                let fault = Fault::NotHuge { got: self.huge, want: self.range.len() };
                Reason::Failed(backing, fault)
            }
            (None, Some((backing, fault))) if outcome.lost.is_none() => {
                Reason::Failed(*backing, fault.clone())
            }
            (None, _) => lost().unwrap_or(Reason::NotLifted),
        }
    }
}
