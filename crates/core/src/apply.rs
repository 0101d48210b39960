// SPDX-License-Identifier: Apache-2.0
//! Carries out a [`Plan`] on any [`Target`]: each span by its first attempt that works. A failed
//! attempt is undone before the next is tried.

mod outcome;
mod run;
mod stored;

use crate::plan::{Plan, Span};
use crate::policy::Backing;
use crate::target::Target;
pub use outcome::{Outcome, SpanOutcome};
use run::Run;

/// Carries out `plan` on `target`: first all spans that the store has, together; then span by span.
pub fn apply<T: Target>(target: &mut T, plan: &Plan) -> Outcome {
    let mut outcome = Outcome::default();
    let mut stored = stored::lift(target, plan, &mut outcome);
    for (index, span) in plan.spans.iter().enumerate() {
        let mut result = stored.remove(&index).unwrap_or_default();
        lift_span(target, span, &mut result, &mut outcome);
        outcome.spans.push(result);
    }
    if outcome.lost.is_none() {
        outcome.leftovers = target.scratch().all().to_vec();
    }
    outcome
}

/// Tries the attempts that `result` does not have yet, until one works.
fn lift_span<T: Target>(target: &mut T, span: &Span, result: &mut SpanOutcome, outcome: &mut Outcome) {
    for attempt in span.attempts.iter().skip(result.failures.len()) {
        if result.lifted.is_some() || outcome.lost.is_some() {
            break;
        }
        let mut run = Run::new(target, span);
        let came = run.attempt(attempt);
        result.begun = result.begun.max(run.begun);
        let came = came.map(|()| run.lacking);
        outcome.record(result, attempt.backing, came);
    }
}

/// Returns the spans that were lifted, each with its backing.
pub fn lifted<'a>(plan: &'a Plan, outcome: &'a Outcome) -> impl Iterator<Item = (&'a Span, Backing)> {
    plan.spans.iter().zip(&outcome.spans).filter_map(|(span, o)| Some((span, o.lifted?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, PageSize, Range};
    use crate::model::Model;
    use crate::plan::plan;
    use crate::plan::tests::program;
    use crate::policy::Policy;
    use crate::target::Fault;

    /// Lifts a program on a machine where `scarce` bytes never become huge. Returns the outcome, and
    /// whether it is complete.
    fn lift(scarce: u64) -> (Outcome, bool) {
        let snapshot = program(Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) });
        let policy = Policy { backings: vec![Backing::Thp], ..Policy::default() };
        let mut model = Model::new(&snapshot);
        let before = model.visible();
        model.scarce = scarce;
        let outcome = apply(&mut model, &plan(&snapshot, &policy));
        assert_eq!(model.visible(), before);
        assert!(outcome.leftovers.is_empty() && outcome.lost.is_none());
        let complete = outcome.is_complete();
        (outcome, complete)
    }

    /// The span is not touched either to find out whether it is still there.
    #[test]
    fn bytes_that_are_kept_stay_and_nothing_is_left() {
        let snapshot = program(Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) });
        let policy = Policy { backings: vec![Backing::Thp], ..Policy::default() };
        let plan = plan(&snapshot, &policy);
        let mut model = Model::new(&snapshot);
        model.keeps = true;
        let before = model.visible();
        let outcome = apply(&mut model, &plan);
        assert_eq!(model.visible(), before);
        assert!(outcome.leftovers.is_empty() && outcome.lost.is_none());
        let kept = Fault::Kept("a thread waits".into());
        assert_eq!(
            (outcome.spans[0].lifted, &outcome.spans[0].failures),
            (None, &vec![(Backing::Thp, kept)])
        );
    }

    #[test]
    fn a_few_missing_huge_pages_are_reported_and_tolerated() {
        let page = PageSize::MB2.bytes();
        let (outcome, complete) = lift(0);
        assert!(complete && outcome.spans[0].failures.is_empty());

        let (outcome, complete) = lift(page);
        assert_eq!((outcome.spans[0].lifted, outcome.spans[0].lacking()), (Some(Backing::Thp), page));
        assert!(!complete);

        let (outcome, complete) = lift(3 * page);
        assert_eq!((outcome.spans[0].lifted, complete), (None, false));
        let want = Fault::NotHuge { got: page, want: 4 * page };
        assert_eq!(outcome.spans[0].failures, [(Backing::Thp, want)]);
    }
}
