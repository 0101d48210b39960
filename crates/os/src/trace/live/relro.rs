// SPDX-License-Identifier: Apache-2.0
//! Replaces RELRO: memory that the loader has written to, and that is read-only since. It is replaced as code is,
//! but its pages are no longer the file's, so its bytes are compared with the copy once more while the lent thread
//! is stopped.

use super::files::is_mapped_alike;
use super::{Live, fault_of};
use crate::machine::thp_page;
use crate::proc::memory;
use crate::trace::calls::{mremap_call, refused};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use std::io;

/// Bytes that are compared and replaced in one stop, unless a huge page has more.
const PIECE: u64 = 2 << 20;

/// What became of a piece.
enum Came {
    /// What mremap(2) returned: a value, or a negative errno.
    Called(i64),
    /// Nothing was done.
    Kept(&'static str),
}

impl Live {
    /// Names memory that may be replaced although the program has written to it.
    pub fn may_be_written(&mut self, ranges: impl IntoIterator<Item = Range>) {
        self.written.extend(ranges);
    }

    /// Returns whether it may be.
    pub(super) fn is_written(&self, range: Range) -> bool {
        self.written.iter().any(|known| known.covers(range))
    }

    /// Moves a copy over memory that was written to, piece by piece.
    pub(super) fn replace_written(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let piece = thp_page().map_or(PIECE, |page| page.bytes().max(PIECE));
        // A child that is forked from now on may inherit the copy.
        self.inherit(from)?;
        let mut done = 0;
        while done < from.len() {
            let start = Addr(from.start.0 + done);
            let from = Range { start, end: Addr((start.0 + piece).min(from.end.0)) };
            let over = Range::sized(Addr(to.0 + done), from.len());
            let over = over.ok_or(Fault::Call { call: "mremap", range: from, errno: libc::EINVAL })?;
            self.replace_written_piece(from, over)?;
            done += from.len();
        }
        Ok(())
    }

    fn replace_written_piece(&mut self, from: Range, over: Range) -> Result<(), Fault> {
        let expected: Option<Mapping> = self.planned.iter().find(|m| m.range.covers(over)).cloned();
        let expected = expected.ok_or_else(|| Fault::Kept("another mapping is there now".into()))?;
        let pid = self.pid;
        let (mut copy, mut seen) = (vec![0; over.len() as usize], vec![0; over.len() as usize]);
        read(pid, from, &mut copy)?;
        let (number, args) = mremap_call(from, over.start);
        let mut came = Came::Kept("no thread of it could be borrowed just now");
        let made = self.borrow(|lent| {
            came = if !is_mapped_alike(pid, &expected) {
                Came::Kept("it has another protection now, or is another mapping")
            } else if read(pid, over, &mut seen).is_err() || copy != seen {
                Came::Kept("it was written to while it was copied")
            } else {
                Came::Called(lent.call(number, args)?)
            };
            Ok(0)
        });
        fault_of(made)?;
        match came {
            Came::Called(errno @ -4095..0) => {
                Err(Fault::Call { call: "mremap", range: from, errno: -errno as i32 })
            }
            Came::Called(_) => {
                self.forget(over);
                Ok(())
            }
            Came::Kept(why) => Err(Fault::Kept(why.into())),
        }
    }
}

/// Fills `into` with the bytes of a range.
fn read(pid: i32, range: Range, into: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < into.len() {
        let n = memory::read(pid, Addr(range.start.0 + done as u64), &mut into[done..])
            .and_then(|n| if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) });
        done += n.map_err(|e| refused("read", range, &e))?;
    }
    Ok(())
}
