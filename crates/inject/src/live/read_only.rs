// SPDX-License-Identifier: Apache-2.0
//! Replaces read-only memory under the threads that use it, piece by piece: the kernel unmaps what was there in the same
//! call, for as long as there are pages.
//!
//! A piece is replaced only if it is the mapping that was planned and holds what was copied. The program may change both
//! at any moment: another thread closes a shared object, whose addresses then belong to whatever is mapped next, or makes
//! its code writable. So this is checked when the lent thread has entered the kernel for the call, and is stopped there.

use super::Live;
use super::came::Came;
use super::piece::Piece;
use crate::calls::{mmap_call, mremap_call};
use crate::frame::Call;
use crate::planned::has_file;
use hugelift_core::addr::Range;
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::target::{Fault, Place, Source};
use hugelift_linux::proc::pagemap;
use std::rc::Rc;

/// What shows that memory holds what was copied.
pub(super) enum Evidence {
    /// It is pages of its file, and none of them was written to. Pages of unknown state count as written to.
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
pub(super) const OTHER: &str = "it has another protection now, or is another mapping";
pub(super) const WRITTEN: &str = "it was written to since it was copied";
pub(super) const FORBIDDEN: &str = "a seccomp filter forbids the call";

impl Live {
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
        let is_it = |m: &&Mapping| !m.prot.write && has_file(m);
        let expected = self.planned.at(over).filter(is_it).cloned();
        let expected = expected.ok_or_else(|| Fault::Kept(OTHER.into()))?;
        let call = mmap_call(over, prot, source, Place::Over);
        self.call_over(call, over, &expected, Evidence::Pages)?.done(over)?;
        self.planned.forget(over);
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
}
