// SPDX-License-Identifier: Apache-2.0
//! Keeps the record of our memory in a process ([`super::ledger`]) up to date.

use super::{Left, Live};
use crate::calls::Calls as _;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::ledger::BYTES;
use hugelift_core::target::Fault;

impl Live {
    /// Writes down what is ours now.
    pub(super) fn note(&mut self) {
        self.note_without(Range::default());
    }

    /// Writes down what is ours without a range, which is about to be unmapped.
    pub(super) fn note_without(&mut self, range: Range) {
        // Threads that were stopped may still be in the region: it stays as long as the process.
        let region = self.written.region.map(|region| region.whole()).unwrap_or_default();
        let ours = self.scratch.all().iter().flat_map(|r| r.minus(range));
        let ours = ours.flat_map(|r| r.minus(region)).collect();
        self.ledger.write(&self.memory, ours);
    }

    /// Writes down that a copy is about to move.
    pub(super) fn note_moving(&mut self, from: Range, to: Addr) {
        self.ledger.moving = Some((from, to));
        self.note();
    }

    /// Writes down that nothing moves any more.
    pub(super) fn note_moved(&mut self) {
        self.ledger.moving = None;
        self.note();
    }

    /// Unmaps what another hugelift has left.
    ///
    /// # Errors
    /// [`Fault`]. What could not be unmapped is written down still.
    pub fn free(&mut self, left: &Left) -> Result<(), Fault> {
        left.ranges.iter().for_each(|range| self.scratch.add(*range));
        self.note();
        for record in &left.records {
            let _ = self.memory_write(*record, &[0; BYTES]);
        }
        left.ranges.iter().try_for_each(|range| self.release_all(*range))
    }
}
