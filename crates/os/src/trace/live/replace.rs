// SPDX-License-Identifier: Apache-2.0
//! Replaces read-only memory under the threads that use it, piece by piece: the kernel unmaps what was there in the same
//! call, for as long as there are pages.
//!
//! A piece is replaced only if it is the mapping that was planned and holds what was copied. The program may change both
//! at any moment: another thread closes a shared object, whose addresses then belong to whatever is mapped next, or makes
//! its code writable. So this is checked when the lent thread has entered the kernel for the call, and is stopped there.

use super::Live;
use super::written::{Came, Piece};
use crate::proc::pagemap;
use crate::trace::calls::{Calls as _, mmap_call, mremap_call};
use crate::trace::frame::Call;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::scratch::moved;
use hugelift_core::target::{Fault, Place, Source};
use std::rc::Rc;

/// What shows that memory holds what was copied.
pub(super) enum Evidence {
    /// It is pages of its file, none of which was written to. If that is not known, they were.
    Pages,
    /// Its bytes are those of the copy. The kernel cannot tell which of its pages were written to.
    Bytes(Piece),
}

impl Evidence {
    fn holds(&mut self, pid: i32, over: Range) -> bool {
        match self {
            Evidence::Pages => !pagemap::is_written(pid, over).unwrap_or(true),
            Evidence::Bytes(piece) => piece.is_copied(pid),
        }
    }
}

/// Why a piece is not replaced.
const OTHER: &str = "it has another protection now, or is another mapping";
const WRITTEN: &str = "it was written to since it was copied";
const FORBIDDEN: &str = "a seccomp filter forbids the call";

/// Says of a step before the call that replaces memory that nothing was replaced: nobody need look whether it is still
/// mapped.
pub(super) fn kept(fault: Fault) -> Fault {
    match fault {
        Fault::Call { .. } => Fault::Kept(fault.to_string()),
        other => other,
    }
}

fn has_file(mapping: &Mapping) -> bool {
    mapping.is_file() && !mapping.is_anonymous_hugetlb()
}

impl Live {
    /// Moves a copy over what it is to replace.
    pub(super) fn replace(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        if Range::sized(to, from.len()).is_some_and(|over| self.is_written(over)) {
            return self.replace_written(from, to);
        }
        // A child that is forked from now on may inherit the copy.
        self.inherit(from)?;
        let mut rest = from;
        while !rest.is_empty() {
            let piece = Range { end: rest.end.min(Addr(rest.start.0 + self.piece)), ..rest };
            let over = moved(piece, from, to).ok_or_else(|| Fault::Kept(OTHER.into()))?;
            self.replace_piece(piece, over)?;
            rest.start = piece.end;
        }
        Ok(())
    }

    fn replace_piece(&mut self, from: Range, over: Range) -> Result<(), Fault> {
        let planned = self.planned.iter().find(|m| m.range.covers(over) && !m.prot.write);
        let expected = planned.cloned().ok_or_else(|| Fault::Kept(OTHER.into()))?;
        let evidence = match has_file(&expected) {
            true => Evidence::Pages,
            false => {
                let mut piece = Piece::new(from, over);
                piece.read_copy(self.pid).map_err(kept)?;
                Evidence::Bytes(piece)
            }
        };
        self.replace_read_only(from, over, &expected, evidence)?.done(from)?;
        self.forget(over);
        Ok(())
    }

    /// Moves one piece over read-only memory, if that is still this mapping and there is evidence that it holds the same.
    pub(super) fn replace_read_only(
        &mut self,
        from: Range,
        over: Range,
        expected: &Mapping,
        evidence: Evidence,
    ) -> Result<Came, Fault> {
        let came = self.call_over(("mremap", mremap_call(from, over.start)), over, expected, evidence)?;
        if came == Came::Replaced {
            self.scratch.give_up(from);
        }
        Ok(came)
    }

    /// Maps something over read-only memory of a file, in one call.
    pub(super) fn map_over(&mut self, over: Range, prot: Prot, source: Source) -> Result<(), Fault> {
        let is_it = |m: &&Mapping| m.range.covers(over) && !m.prot.write && has_file(m);
        let expected = self.planned.iter().find(is_it).cloned();
        let expected = expected.ok_or_else(|| Fault::Kept(OTHER.into()))?;
        let call = mmap_call(over, prot, source, Place::Over);
        self.call_over(call, over, &expected, Evidence::Pages)?.done(over)?;
        self.forget(over);
        Ok(())
    }

    /// Makes a call that replaces read-only memory.
    fn call_over(
        &mut self,
        (name, (number, args)): (&'static str, Call),
        over: Range,
        expected: &Mapping,
        mut evidence: Evidence,
    ) -> Result<Came, Fault> {
        let (pid, mappings) = (self.pid, Rc::clone(&self.mappings));
        let mut why = None;
        let made = self.borrow(|lent| {
            // Should the tracer die from here on, the thread makes the call without a further check.
            if !mappings.has(expected) {
                why = Some(OTHER);
                return Ok(i64::from(-libc::ESTALE));
            }
            let result = lent.call_unless(number, args, &mut || {
                // In this order: who writes after the first check has made the memory writable before the second.
                why = match (evidence.holds(pid, over), mappings.has(expected)) {
                    (_, false) => Some(OTHER),
                    (false, _) => Some(WRITTEN),
                    (true, true) => None,
                };
                why.map(|_| libc::ESTALE)
            });
            if lent.refused().is_some() {
                why = Some(FORBIDDEN);
            }
            result
        });
        match (made, why) {
            (Err(why), _) if why.is_final() => Err(Fault::Lost(why.to_string())),
            (Err(why), _) => Ok(Came::NotNow(format!("no thread of it could be borrowed: {why}"))),
            (Ok(_), Some(why)) => Ok(Came::Never(why.into())),
            (Ok(errno @ -4095..0), None) => Ok(Came::Refused(name, -errno as i32)),
            (Ok(_), None) => Ok(Came::Replaced),
        }
    }

    /// Lets children of fork(2) have a copy.
    pub(super) fn inherit(&mut self, copy: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_DOFORK)", copy, libc::MADV_DOFORK as u64).map_err(kept)
    }
}
