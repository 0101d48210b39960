// SPDX-License-Identifier: Apache-2.0
//! The report on one stretch of a part.

use super::data::{PartReport, SkipReport, Stretch};
use super::fragments::Fragment;
use super::pieces::{Planned, pieces, settle};
use super::wants::{Wants, adds_up};
use crate::addr::{PageSize, Range};
use crate::apply::Outcome;
use crate::policy::Backing;
use crate::skip::Reason;
use crate::snapshot::Extent;
use std::collections::BTreeMap;

/// Reports on `run`, the adjacent extents of one part, of which `fragments` are huge.
pub(super) fn part_report(
    run: &[Extent],
    fragments: Vec<Fragment>,
    page: PageSize,
    planned: &Planned,
    outcome: Option<&Outcome>,
    wants: &mut Wants,
) -> PartReport {
    let (first, last) = (run[0], run[run.len() - 1]);
    let range = Range { start: first.range.start, end: last.range.end };
    let mut pieces = pieces(first.object, first.part, range, planned);
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
            let reason = piece.reason(planned.plan, outcome);
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
        liftable_bytes: same_protection(run).into_iter().map(|r| liftable(r, page, planned)).sum(),
        huge_bytes: pieces.iter().map(|p| p.huge).sum(),
        backing: by_backing.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(backing, _)| backing),
        skips: skips
            .into_iter()
            .map(|(reason, bytes)| SkipReport {
                reason: reason.key(),
                bytes,
                hint: None, // Report::new sets it from the sums over all parts
                detail: reason.to_string(),
                why: reason,
            })
            .collect(),
        end: range.end.0,
        fragments,
        stretches,
    }
}

/// Returns the bytes of `range` that huge pages could map: whole pages inside it, and outer spans.
fn liftable(range: Range, page: PageSize, planned: &Planned) -> u64 {
    let inner = range.inner(page).unwrap_or_default();
    inner.len() + planned.spans_over(range).flat_map(|r| r.minus(inner)).map(Range::len).sum::<u64>()
}

/// Cuts `run` where its protection changes: no huge page reaches across.
fn same_protection(run: &[Extent]) -> Vec<Range> {
    run.chunk_by(|a, b| a.prot == b.prot)
        .map(|same| Range { start: same[0].range.start, end: same[same.len() - 1].range.end })
        .collect()
}
