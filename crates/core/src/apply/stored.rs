// SPDX-License-Identifier: Apache-2.0
//! Lifts all spans that the store has at once: a round trip to a process takes longer than any of the
//! system calls.
//!
//! ```text
//!   map all copies -> check each -> move all over their spans
//!                        | not huge: unmap; next attempt
//! ```

use super::outcome::{Outcome, SpanOutcome};
use super::run::{Run, Undo};
use crate::addr::{Addr, Range};
use crate::plan::{Plan, Span, Step};
use crate::policy::Backing;
use crate::target::{Fault, MapStored, Target};
use std::collections::BTreeMap;

/// Lifts the spans of `plan` whose first attempt is a copy in the store. Returns the result of each, by
/// the span's index.
pub(super) fn lift<T: Target>(
    target: &mut T,
    plan: &Plan,
    outcome: &mut Outcome,
) -> BTreeMap<usize, SpanOutcome> {
    let spans = plan.spans.iter().enumerate();
    let wanted: Vec<(usize, &Span, MapStored)> =
        spans.filter_map(|(index, span)| Some((index, span, copy_of(span)?))).collect();
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let mut results = BTreeMap::new();
    let copies: Vec<MapStored> = wanted.iter().map(|(.., copy)| *copy).collect();
    let mut sound = Vec::new();
    for ((index, span, copy), mapped) in wanted.into_iter().zip(target.map_stored(&copies)) {
        let mut run = scratch(target, span, copy.range);
        match mapped.or_else(|fault| run.drop_copy(fault)).and_then(|()| run.check(copy.range)) {
            Ok(lacking) => sound.push((index, span, copy.range, lacking)),
            Err(fault) => outcome.record(results.entry(index).or_default(), Backing::Shared, Err(fault)),
        }
    }
    if outcome.lost.is_some() {
        return results;
    }
    let moves: Vec<(Range, Addr)> =
        sound.iter().map(|(_, span, copy, _)| (*copy, span.range.start)).collect();
    for ((index, span, copy, lacking), moved) in sound.into_iter().zip(target.move_all(&moves)) {
        let mut run = scratch(target, span, copy);
        let came = moved.or_else(|fault| run.give_up(fault, copy)).map(|()| lacking);
        let result: &mut SpanOutcome = results.entry(index).or_default();
        result.begun = run.begun;
        outcome.record(result, Backing::Shared, came);
    }
    results
}

/// Returns the store's copy that the first attempt of `span` maps.
fn copy_of(span: &Span) -> Option<MapStored> {
    span.attempts.first()?.steps.iter().find_map(|step| match step {
        Step::MapStored(copy) => Some(*copy),
        _ => None,
    })
}

/// Returns an attempt in progress whose copy is mapped and is unmapped if the attempt fails.
fn scratch<'a, T: Target>(target: &'a mut T, span: &'a Span, copy: Range) -> Run<'a, T> {
    let mut run = Run::new(target, span);
    run.undo.push(Undo::Release(copy));
    run
}

impl<T: Target> Run<'_, T> {
    /// Returns the huge pages that the copy lacks, or unmaps it if too many are lacking.
    fn check(&mut self, copy: Range) -> Result<Option<Fault>, Fault> {
        match self.verify(copy) {
            Ok(()) => Ok(self.lacking.take()),
            Err(fault) => self.drop_copy(fault).map(|()| None),
        }
    }

    /// Cleans up after the copy could not be moved.
    fn give_up(&mut self, fault: Fault, copy: Range) -> Result<(), Fault> {
        self.count_moved(copy);
        self.rescue_moved(&fault, copy)?;
        self.drop_copy(fault)
    }

    fn drop_copy(&mut self, fault: Fault) -> Result<(), Fault> {
        if !matches!(fault, Fault::Lost(_)) {
            self.unwind()?;
        }
        Err(fault)
    }
}
