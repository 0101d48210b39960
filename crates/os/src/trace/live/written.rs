// SPDX-License-Identifier: Apache-2.0
//! Replaces memory that the program has written to, or writes to: RELRO (`replace`) and data (`data`). Its pages are
//! no longer the file's, so its bytes are compared with the copy just before they are replaced.

use super::Live;
use super::looks::Looks;
use super::region::Region;
use super::replace::{Evidence, kept};
use crate::machine::thp_page;
use crate::proc::memory;
use crate::trace::calls::refused;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use std::io;
use std::time::Duration;

/// Bytes that are compared and replaced in one stop, unless a huge page has more.
const PIECE: u64 = 2 << 20;

/// Bytes that are compared, and copied if they differ, together.
const CHUNK: usize = 4096;

/// What is known of memory that the program has written to.
#[derive(Default)]
pub(super) struct Written {
    /// The ranges that may be replaced although they are no longer their files'.
    ranges: Vec<Range>,
    /// When the threads were seen where a stop is not noticed.
    pub(super) looks: Looks,
    /// How long a moment was looked for so far in which all threads can be stopped.
    pub(super) waited: Duration,
    /// How often all were stopped for nothing.
    pub(super) in_vain: u32,
    /// After the last stop of all: when all were stopped, when the piece was replaced, and when all had been let go.
    pub(super) times: (Duration, Duration, Duration),
    /// Where their code is while they are stopped, if it is mapped.
    pub(super) region: Option<Region>,
}

/// What became of an attempt.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Came {
    Replaced,
    /// The kernel refused a call: its name and errno.
    Refused(&'static str, i32),
    /// Nothing was done. A later attempt may succeed.
    NotNow(String),
    /// Nothing was done, and no later attempt helps.
    Never(String),
}

/// A piece that is replaced.
pub(super) struct Piece {
    /// The copy.
    pub(super) from: Range,
    /// What it replaces.
    pub(super) over: Range,
    /// What the copy holds.
    copy: Vec<u8>,
    /// What the program's memory holds, as it was read last.
    seen: Vec<u8>,
}

impl Live {
    /// Names memory that may be replaced although the program has written to it.
    pub fn may_be_written(&mut self, ranges: impl IntoIterator<Item = Range>) {
        self.written.ranges.extend(ranges);
    }

    /// Returns whether it may be.
    pub(super) fn is_written(&self, range: Range) -> bool {
        self.written.ranges.iter().any(|known| known.covers(range))
    }

    /// Returns whether the program may write to `range` now, so that a copy made now is not the last.
    pub(super) fn is_writable(&self, range: Range) -> bool {
        self.is_written(range) && self.planned.iter().any(|m| m.prot.write && m.range.covers(range))
    }

    /// Moves a copy over memory that was written to, piece by piece.
    pub(super) fn replace_written(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let over = Range::sized(to, from.len());
        let over = over.ok_or(Fault::Call { call: "mremap", range: from, errno: libc::EINVAL })?;
        if !self.is_writable(over) {
            // A child that is forked from now on may inherit the copy.
            self.inherit(from)?;
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
        let expected: Option<Mapping> = self.planned.iter().find(|m| m.range.covers(over)).cloned();
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
        self.forget(over);
        Ok(())
    }
}

impl Came {
    /// Returns whether the piece whose copy was at `from` was replaced.
    ///
    /// # Errors
    /// It was not. [`Fault::Call`] if the kernel refused the call, which then may have unmapped the piece.
    pub(super) fn done(self, from: Range) -> Result<(), Fault> {
        match self {
            Came::Replaced => Ok(()),
            Came::Refused(call, errno) => Err(Fault::Call { call, range: from, errno }),
            Came::NotNow(why) | Came::Never(why) => Err(Fault::Kept(why)),
        }
    }
}

impl Piece {
    /// Prepares a piece, of which nothing was read yet.
    pub(super) fn new(from: Range, over: Range) -> Piece {
        let length = over.len() as usize;
        Piece { from, over, copy: vec![0; length], seen: vec![0; length] }
    }

    /// Copies all of it.
    pub(super) fn copy_first(&mut self, live: &Live) -> Result<(), Fault> {
        read(live.pid, self.over, &mut self.copy)?;
        live.write(self.from.start, &self.copy, self.from)
    }

    /// Copies what has changed, while the program runs. Returns how many bytes that were.
    pub(super) fn catch_up(&mut self, live: &Live) -> Result<usize, Fault> {
        let from = self.from;
        self.update(live.pid, |at, bytes| live.write(at, bytes, from))
    }

    /// Copies what has changed, while nobody runs: no other process can have its id, as its stopped threads are
    /// this process's to wait for. By process_vm_writev(2), which copies the bytes once.
    pub(super) fn catch_up_at_last(&mut self, pid: i32) -> Result<usize, Fault> {
        let from = self.from;
        self.update(pid, |at, bytes| memory::write(pid, at, bytes).map_err(|e| refused("write", from, &e)))
    }

    fn update(
        &mut self,
        pid: i32,
        mut write: impl FnMut(Addr, &[u8]) -> Result<(), Fault>,
    ) -> Result<usize, Fault> {
        read(pid, self.over, &mut self.seen)?;
        let mut changed = 0;
        for run in differences(&self.copy, &self.seen) {
            write(Addr(self.from.start.0 + run.start as u64), &self.seen[run.clone()])?;
            self.copy[run.clone()].copy_from_slice(&self.seen[run.clone()]);
            changed += run.len();
        }
        Ok(changed)
    }

    /// Returns what the copy holds.
    pub(super) fn copy(&self) -> &[u8] {
        &self.copy
    }

    /// Reads what the copy holds.
    pub(super) fn read_copy(&mut self, pid: i32) -> Result<(), Fault> {
        read(pid, self.from, &mut self.copy)
    }

    /// Returns whether the program's memory holds the same.
    pub(super) fn is_copied(&mut self, pid: i32) -> bool {
        read(pid, self.over, &mut self.seen).is_ok() && self.copy == self.seen
    }

    /// Returns whether little was written to it, if that many bytes have changed.
    pub(super) fn is_calm(&self, changed: usize) -> bool {
        const SHARE: usize = 16;
        changed < self.copy.len() / SHARE
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

/// Returns the stretches in which two slices of one length differ, in whole chunks.
fn differences(one: &[u8], other: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, (a, b)) in one.chunks(CHUNK).zip(other.chunks(CHUNK)).enumerate() {
        let start = index * CHUNK;
        match runs.last_mut() {
            _ if a == b => {}
            Some(last) if last.end == start => last.end += a.len(),
            _ => runs.push(start..start + a.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_whole_chunks_and_neighbours_are_joined() {
        let one = vec![0; 5 * CHUNK + 10];
        let mut other = one.clone();
        assert!(differences(&one, &other).is_empty());
        for at in [0, CHUNK + 5, 3 * CHUNK, 5 * CHUNK + 9] {
            other[at] = 1;
        }
        assert_eq!(
            differences(&one, &other),
            [0..2 * CHUNK, 3 * CHUNK..4 * CHUNK, 5 * CHUNK..5 * CHUNK + 10]
        );
    }
}
