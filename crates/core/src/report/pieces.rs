// SPDX-License-Identifier: Apache-2.0
//! Finds what the plan does with each piece of a stretch, and why the rest is not huge.

use super::fragments::Fragment;
use crate::addr::Range;
use crate::apply::Outcome;
use crate::by_address::ByAddress;
use crate::plan::Plan;
use crate::skip::{Reason, Skip};
use crate::snapshot::Part;
use crate::target::Fault;

/// A piece of a stretch that the plan treats in one way.
pub(super) struct Piece<'a> {
    pub(super) range: Range,
    fate: Fate<'a>,
    pub(super) huge: u64,
    /// Bytes that become huge when they are touched.
    advised: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Fate<'a> {
    /// Lifted: index of the span.
    Span(usize),
    /// Left as it is.
    Skip(&'a Reason),
    /// The plan does not mention it.
    Unknown,
}

/// A plan whose spans and skips are found by their addresses.
pub(super) struct Planned<'a> {
    pub(super) plan: &'a Plan,
    spans: ByAddress<usize>,
    skips: ByAddress<&'a Skip>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(plan: &'a Plan) -> Planned<'a> {
        let spans = plan.spans.iter().enumerate().map(|(i, span)| (span.range, i)).collect();
        let skips = plan.skips.iter().map(|skip| (skip.range, skip)).collect();
        Planned { plan, spans, skips }
    }

    /// Returns what of `range` spans hold.
    pub(super) fn spans_over(&self, range: Range) -> impl Iterator<Item = Range> {
        self.spans.over(range).filter_map(move |(span, _)| span.intersect(range))
    }
}

/// Cuts `range` where the plan's spans and skips begin and end, without gap or overlap.
pub(super) fn pieces<'a>(object: usize, part: Part, range: Range, planned: &Planned<'a>) -> Vec<Piece<'a>> {
    // An outer span may hold several parts.
    let spans = planned.spans.over(range).map(|(r, i)| (*r, Fate::Span(*i)));
    let own = planned.skips.over(range).filter(|(_, s)| (s.object, s.part) == (object, part));
    let skips = own.map(|(r, skip)| (*r, Fate::Skip(&skip.reason)));
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

/// Assigns the huge bytes of `fragment` to the pieces inside it: to spans first, because no huge page
/// fits an edge.
pub(super) fn settle(pieces: &mut [Piece], fragment: &Fragment) {
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
    /// Returns why the rest of this piece is not huge.
    pub(super) fn reason(&self, plan: &Plan, outcome: Option<&Outcome>) -> Reason {
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
        let attempt = span.succeeded(&plan.spans[index]);
        if let Some(attempt) = attempt.filter(|attempt| attempt.is_unseen()) {
            return Reason::SmallerPages(attempt.page);
        }
        match (span.lifted, span.failures.last()) {
            // Every call succeeded, but smaps does not show huge pages.
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
