// SPDX-License-Identifier: Apache-2.0
//! The memory of ours in a process is written down there ([`hugelift_core::ledger`]), in a code cave, where nothing of the
//! program is. That takes no system call in the process: a thread is not stopped for it.

use crate::caves;
use crate::planned::has_file;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::ledger::{BYTES, Owner, Record};
use hugelift_core::maps::Mapping;
use hugelift_core::restore::replaced;
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Where the record is, and what of it does not follow from the list of our memory.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// `None` if there is no place for it.
    at: Option<Addr>,
    owner: Owner,
    /// The copy that is about to move, and where it goes.
    pub(super) moving: Option<(Range, Addr)>,
    is_written: bool,
}

impl Ledger {
    pub(super) fn new(pid: i32, at: Option<Addr>) -> Ledger {
        let owner = owner_of(pid);
        Ledger { at: at.filter(|_| owner.is_some()), owner: owner.unwrap_or_default(), ..Ledger::default() }
    }

    /// Writes down that these ranges are ours, by the open memory of the process.
    pub(super) fn write(&mut self, memory: &File, ours: Vec<Range>) {
        let Ledger { at: Some(at), owner, moving, is_written } = *self else { return };
        let bytes = match (ours.is_empty(), is_written) {
            (true, false) => return,
            (true, true) => [0; BYTES],
            (false, _) => Record { owner, ours, moving }.to_bytes(),
        };
        // Without it a killed hugelift leaves what nobody finds.
        let written = memory.write_all_at(&bytes, at.0);
        tracing::trace!(?written, %at, "wrote down what is ours");
        self.is_written = bytes != [0; BYTES] && written.is_ok();
    }
}

fn owner_of(pid: i32) -> Option<Owner> {
    Process::of(pid).stat().ok().map(|stat| stat.identity())
}

/// Memory that a hugelift has left in a process: it was killed, or could not unmap it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Left {
    /// The memory.
    pub ranges: Vec<Range>,
    /// Where this is written down.
    pub(super) records: Vec<Addr>,
}

impl Left {
    /// Finds it in a process.
    pub fn find(pid: u32, snapshot: &Snapshot) -> Left {
        let (pid, mappings) = (pid.cast_signed(), &snapshot.mappings);
        let mut left = Left::default();
        let Some(owner) = owner_of(pid) else { return left };
        let at = |addr: Addr| mappings.iter().find(|m| m.range.contains(addr));
        // A copy of the store is a file, too.
        let copies = replaced(snapshot);
        let is_copy = |addr| copies.iter().any(|copy| copy.range.contains(addr));
        let holds_file = |addr| at(addr).is_some_and(has_file) && !is_copy(addr);
        for (place, bytes) in caves::all(pid, mappings) {
            let record = Record::from_bytes(&bytes);
            if let Some(record) = record.filter(|record| record.owner == owner) {
                let shown = |range| shown_to_be_ours(pid, range, record.moving, snapshot);
                left.ranges.extend(record.left(holds_file).into_iter().flat_map(shown));
                left.records.push(place);
            }
        }
        left
    }

    /// Returns how many bytes it is.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }
}

/// Returns what of a range that a record claims is still hugelift's. The record alone is no proof: the program may have
/// mapped memory of its own there since. A copy is private memory of no file that no child inherits (`MADV_DONTFORK`).
/// Children may inherit it just before it moves, piece by piece: then it holds what is still mapped where it is to be. A copy
/// of the store is a file's, and takes no memory: it stays.
fn shown_to_be_ours(
    pid: i32,
    range: Range,
    moving: Option<(Range, Addr)>,
    snapshot: &Snapshot,
) -> Vec<Range> {
    let is_of_no_file = |m: &&Mapping| !m.shared && !has_file(m);
    let is_inherited_by_none = |part: &Range| {
        let mut special = snapshot.special.iter();
        special.any(|(range, what)| *what == Attribute::NoFork && range.covers(*part))
    };
    let is_about_to_move = |part: &Range| {
        // All pieces of a copy move by the same distance.
        let to = moving.map(|(from, to)| to.0.wrapping_sub(from.start.0));
        let to = to.and_then(|distance| Range::sized(Addr(part.start.0.wrapping_add(distance)), part.len()));
        to.is_some_and(|to| is_same(pid, *part, to))
    };
    let anonymous = snapshot.mappings.iter().filter(is_of_no_file);
    let parts = anonymous.filter_map(|m| m.range.intersect(range));
    parts.filter(|part| is_inherited_by_none(part) || is_about_to_move(part)).collect()
}

/// Returns whether two ranges of a process hold the same bytes. They are read in pieces, and no more than what may move at
/// once: whoever can write to the process can forge a record of any size.
fn is_same(pid: i32, one: Range, other: Range) -> bool {
    const PIECE: usize = 1 << 20;
    const MOST: u64 = 1 << 30;
    let (mut this, mut that) = (vec![0; PIECE], vec![0; PIECE]);
    one.len() <= MOST
        && (0..one.len()).step_by(PIECE).all(|at| {
            let size = PIECE.min((one.len() - at) as usize);
            let read = |start: Addr, into: &mut [u8]| {
                memory::read(pid, Addr(start.0 + at), into).is_ok_and(|n| n == size)
            };
            read(one.start, &mut this[..size])
                && read(other.start, &mut that[..size])
                && this[..size] == that[..size]
        })
}
