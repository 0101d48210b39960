// SPDX-License-Identifier: Apache-2.0
//! Carries out a [`Plan`] on any [`Target`]: each span by its first attempt that works. A failed
//! attempt is undone before the next is tried.

use crate::addr::Range;
use crate::maps::Prot;
use crate::plan::{Attempt, Plan, Span, Step};
use crate::policy::Backing;
use crate::scratch::moved;
use crate::target::{Fault, FileHandle, Place, Source, Target, put_back};

mod stored;

/// The result of carrying out a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// One for each span of the plan, in its order.
    pub spans: Vec<SpanOutcome>,
    /// Why the target is gone or could not be restored.
    pub lost: Option<String>,
    /// Scratch memory that is still mapped, as it could not be unmapped.
    pub leftovers: Vec<Range>,
}

/// The result for one span.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpanOutcome {
    /// The backing that worked.
    pub lifted: Option<Backing>,
    /// The attempts that failed, each with its fault, in the order in which they were tried. The last
    /// is the one that worked, if it lacks some huge pages ([`Fault::NotHuge`]).
    pub failures: Vec<(Backing, Fault)>,
}

impl Outcome {
    /// Returns whether every span was lifted completely.
    pub fn is_complete(&self) -> bool {
        self.lost.is_none() && self.spans.iter().all(|s| s.lifted.is_some() && s.lacking() == 0)
    }
}

impl SpanOutcome {
    /// Returns the attempt of `span` that worked.
    pub fn succeeded<'a>(&self, span: &'a Span) -> Option<&'a Attempt> {
        let failed = self.failures.len() - usize::from(self.lacking() > 0);
        self.lifted.and(span.attempts.get(failed))
    }

    /// Returns the bytes of a lifted span for which no huge page was available.
    pub fn lacking(&self) -> u64 {
        match (self.lifted, self.failures.last()) {
            (Some(lifted), Some((backing, Fault::NotHuge { got, want }))) if lifted == *backing => {
                want.saturating_sub(*got)
            }
            _ => 0,
        }
    }
}

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
        let mut run = Run { target, span, undo: Vec::new(), file: None, lacking: None };
        let came = run.attempt(attempt).map(|()| run.lacking);
        outcome.record(result, attempt.backing, came);
    }
}

impl Outcome {
    /// Records the result of one attempt in `result`: the huge pages that it lacks, or why it failed.
    fn record(&mut self, result: &mut SpanOutcome, backing: Backing, came: Result<Option<Fault>, Fault>) {
        match came {
            Ok(lacking) => {
                result.lifted = Some(backing);
                result.failures.extend(lacking.map(|fault| (backing, fault)));
            }
            Err(Fault::Lost(why)) => self.lost = Some(why),
            Err(fault) => result.failures.push((backing, fault)),
        }
    }
}

/// Returns the spans that were lifted, each with its backing.
pub fn lifted<'a>(plan: &'a Plan, outcome: &'a Outcome) -> impl Iterator<Item = (&'a Span, Backing)> {
    plan.spans.iter().zip(&outcome.spans).filter_map(|(span, o)| Some((span, o.lifted?)))
}

/// What undoes a step.
enum Undo {
    /// Releases what of a range was mapped and has not moved.
    Release(Range),
    Close(FileHandle),
    /// Removes the memory policy of a span that stays in place: it had none.
    Unbind(Range),
}

/// One attempt in progress.
struct Run<'a, T> {
    target: &'a mut T,
    span: &'a Span,
    undo: Vec<Undo>,
    file: Option<FileHandle>,
    /// The fault that says how many huge pages were not available.
    lacking: Option<Fault>,
}

impl<T: Target> Run<'_, T> {
    fn attempt(&mut self, attempt: &Attempt) -> Result<(), Fault> {
        let mut result = Ok(());
        for step in &attempt.steps {
            result = self.step(*step);
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            self.undo.retain(|u| !matches!(u, Undo::Unbind(_)));
        }
        // Only scratch is left to undo, both after a success and after a failure.
        if !matches!(result, Err(Fault::Lost(_))) {
            self.unwind()?;
        }
        result
    }

    fn step(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            Step::Map { range, hugetlb } => {
                let source = hugetlb.map_or(Source::Anonymous, Source::Hugetlb);
                self.undo.push(Undo::Release(range));
                self.target.mmap(range, Prot::RW, source, Place::Free)?;
            }
            // The kernel reports an error where nothing has been touched yet: ignore it.
            Step::Collapse { range } => {
                if let Err(Fault::Lost(why)) = self.target.collapse(range) {
                    return Err(Fault::Lost(why));
                }
            }
            Step::Bind { range, placement } => {
                self.target.bind(range, Some(placement))?;
                if range == self.span.range {
                    self.undo.push(Undo::Unbind(range));
                }
            }
            Step::Advise { range } => self.target.advise_huge(range)?,
            Step::Populate { range, page } => self.target.populate(range, page)?,
            Step::FaultIn { range, page } => self.target.fault_in(range, page)?,
            Step::Verify { range } => self.verify(range)?,
            Step::CreateFile { bytes, page } => {
                let file = self.target.memfd(page, bytes)?;
                self.file = Some(file);
                self.undo.push(Undo::Close(file));
            }
            Step::MapFile { range } => {
                let file = self.file()?;
                self.undo.push(Undo::Release(range));
                self.target.mmap(range, Prot::RW, Source::Shared(file), Place::Free)?;
            }
            Step::MapStored(copy) => {
                self.undo.push(Undo::Release(copy.range));
                self.target.map_stored(&[copy]).into_iter().collect::<Result<(), Fault>>()?;
            }
            Step::Copy { from, to } => self.target.copy(from, to)?,
            Step::Protect { range, prot } => self.target.mprotect(range, prot)?,
            Step::Move { from, to } => {
                if let Err(fault) = self.target.mremap(from, to) {
                    self.rescue_moved(&fault, from)?;
                    return Err(fault);
                }
            }
            Step::Replace { range, prot, scratch } => {
                let file = self.file()?;
                if let Err(fault) = self.target.mmap(range, prot, Source::Private(file, 0), Place::Over) {
                    if matches!(fault, Fault::Call { .. }) {
                        self.rescue(Range::sized(scratch, range.len()).unwrap_or_default(), range)?;
                    }
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    /// Checks that huge pages map `range`. Faulting in takes small pages where no huge one is free at
    /// once; collapsing waits for the kernel to make one. If at least half is huge then, the attempt
    /// succeeds and records what is lacking.
    fn verify(&mut self, range: Range) -> Result<(), Fault> {
        let want = range.len();
        let mut got = self.target.huge_bytes(range)?;
        if got < want {
            match self.target.collapse(range) {
                Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
                Ok(()) | Err(_) => got = self.target.huge_bytes(range)?,
            }
        }
        if got < want {
            let fault = Fault::NotHuge { got, want };
            if got < want / 2 {
                return Err(fault);
            }
            self.lacking = Some(fault);
        }
        Ok(())
    }

    fn file(&self) -> Result<FileHandle, Fault> {
        self.file.ok_or_else(|| Fault::Lost("the plan maps a file before it makes one".into()))
    }

    /// Restores what a failed move of `copy` over the span may have unmapped: the piece that did not move.
    fn rescue_moved(&mut self, fault: &Fault, copy: Range) -> Result<(), Fault> {
        let Fault::Call { range: piece, .. } = *fault else { return Ok(()) };
        match moved(piece, copy, self.span.range.start) {
            Some(over) if copy.covers(piece) => self.rescue(piece, over),
            _ => Ok(()),
        }
    }

    /// Restores what a failed call has unmapped of `over`, with the bytes of `copy` and the protection that they had.
    fn rescue(&mut self, copy: Range, over: Range) -> Result<(), Fault> {
        put_back(self.target, copy, over.start, &self.span.held, self.span.prot)
    }

    fn unwind(&mut self) -> Result<(), Fault> {
        while let Some(undo) = self.undo.pop() {
            // A second try, as the kernel may have been short of memory for a moment.
            let mut again = || match undo {
                Undo::Release(range) => self.target.release(range),
                Undo::Close(file) => self.target.close(file),
                Undo::Unbind(range) => self.target.bind(range, None),
            };
            match again().or_else(|_| again()) {
                Ok(()) => {}
                Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
                // What is left of a copy is still in the list of the target.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, PageSize};
    use crate::model::Model;
    use crate::plan::plan;
    use crate::plan::tests::program;
    use crate::policy::Policy;

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
