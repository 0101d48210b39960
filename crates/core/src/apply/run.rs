// SPDX-License-Identifier: Apache-2.0
//! One attempt to back a span: its steps, and what undoes them.

use crate::addr::Range;
use crate::maps::Prot;
use crate::plan::{Attempt, Span, Step};
use crate::scratch::moved;
use crate::target::{Fault, FileHandle, Place, Source, Target, put_back};

/// What undoes a step.
pub(super) enum Undo {
    /// Releases what of a range was mapped and has not moved.
    Release(Range),
    Close(FileHandle),
    /// Removes the memory policy of a span that stays in place: it had none.
    Unbind(Range),
}

/// One attempt in progress.
pub(super) struct Run<'a, T> {
    target: &'a mut T,
    span: &'a Span,
    pub(super) undo: Vec<Undo>,
    file: Option<FileHandle>,
    /// The fault that says how many huge pages were not available.
    pub(super) lacking: Option<Fault>,
    /// Bytes that were replaced before the attempt failed.
    pub(super) begun: u64,
}

impl<'a, T: Target> Run<'a, T> {
    /// Begins to back `span`.
    pub(super) fn new(target: &'a mut T, span: &'a Span) -> Run<'a, T> {
        Run { target, span, undo: Vec::new(), file: None, lacking: None, begun: 0 }
    }

    /// Makes all steps. An attempt that fails is undone.
    pub(super) fn attempt(&mut self, attempt: &Attempt) -> Result<(), Fault> {
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
                    self.count_moved(from);
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
    pub(super) fn verify(&mut self, range: Range) -> Result<(), Fault> {
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

    /// Counts what of a copy has moved away although the move failed.
    pub(super) fn count_moved(&mut self, copy: Range) {
        let left: u64 = self.target.scratch().within(copy).iter().map(|range| range.len()).sum();
        self.begun = copy.len().saturating_sub(left);
    }

    /// Restores what a failed move of `copy` over the span may have unmapped: the piece that did not move.
    pub(super) fn rescue_moved(&mut self, fault: &Fault, copy: Range) -> Result<(), Fault> {
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

    pub(super) fn unwind(&mut self) -> Result<(), Fault> {
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
