// SPDX-License-Identifier: Apache-2.0
//! Replaces memory of a process, piece by piece: read-only memory under the threads that use it (`read_only`), also RELRO, to
//! which the loader has written; and data that the threads write to (`data`).

use super::Live;
use super::came::{Came, kept};
use super::piece::Piece;
use super::read_only::{Evidence, OTHER};
use crate::calls::Calls as _;
use crate::planned::has_file;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::scratch::moved;
use hugelift_core::target::Fault;
use hugelift_linux::machine::thp_page;

/// Bytes that are compared and replaced in one stop, unless a huge page has more.
const PIECE: u64 = 2 << 20;

impl Live {
    /// Moves a copy over what it is to replace.
    pub(super) fn replace(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        if Range::sized(to, from.len()).is_some_and(|over| self.is_written(over)) {
            return self.replace_written(from, to);
        }
        self.inherit(from, to)?;
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
        self.note_moving(from, over.start);
        let planned = self.planned.at(over).filter(|m| !m.prot.write);
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
        self.planned.forget(over);
        Ok(())
    }

    /// Moves a copy over memory that was written to, piece by piece.
    fn replace_written(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let over = Range::sized(to, from.len());
        let over = over.ok_or(Fault::Call { call: "mremap", range: from, errno: libc::EINVAL })?;
        if !self.is_writable(over) {
            self.inherit(from, over.start)?;
        }
        let replaced = self.replace_pieces(from, over);
        self.unmap_region();
        replaced
    }

    fn replace_pieces(&mut self, from: Range, over: Range) -> Result<(), Fault> {
        let piece = thp_page().map_or(PIECE, |page| page.bytes().max(PIECE));
        let mut done = 0;
        while done < from.len() {
            let end = (done + piece).min(from.len());
            let of =
                |range: Range| Range { start: Addr(range.start.0 + done), end: Addr(range.start.0 + end) };
            self.replace_written_piece(of(from), of(over))?;
            done = end;
        }
        Ok(())
    }

    fn replace_written_piece(&mut self, from: Range, over: Range) -> Result<(), Fault> {
        self.note_moving(from, over.start);
        let expected = self.planned.at(over).cloned();
        let expected = expected.ok_or_else(|| Fault::Kept("another mapping is there now".into()))?;
        let mut piece = Piece::new(from, over);
        let came = match expected.prot.write {
            true => {
                let came = self.replace_data(&mut piece, &expected).map_err(kept)?;
                if came == Came::Replaced {
                    self.scratch.give_up(from);
                }
                came
            }
            // The loader has written to it, and it is read-only since.
            false => {
                piece.read_copy(self.pid).map_err(kept)?;
                self.replace_read_only(from, over, &expected, Evidence::Bytes(piece))?
            }
        };
        came.done(from)?;
        self.planned.forget(over);
        Ok(())
    }

    /// Lets a child that is forked from now on have a copy, which is about to move.
    fn inherit(&mut self, copy: Range, to: Addr) -> Result<(), Fault> {
        self.note_moving(copy, to);
        self.madvise("madvise(MADV_DOFORK)", copy, libc::MADV_DOFORK as u64).map_err(kept)
    }
}
