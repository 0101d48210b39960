// SPDX-License-Identifier: Apache-2.0
//! A piece of the program's memory, and its copy.

use super::Live;
use crate::calls::refused;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::target::Fault;
use hugelift_linux::proc::memory;
use std::io;

/// Bytes that are compared, and copied if they differ, together.
const CHUNK: usize = 4096;

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
