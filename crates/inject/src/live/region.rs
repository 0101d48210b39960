// SPDX-License-Identifier: Apache-2.0
//! The place for code of stopped threads: pages with a slot for each thread, which the tracer alone writes to, and a page with
//! the word that the threads wait for.

use crate::arch;
use crate::lent::Slot;
use hugelift_core::addr::{Addr, Range};

/// Bytes of a page, on the architectures where such memory is mapped.
const PAGE: u64 = 4096;

/// Slots that a page holds.
const EACH: usize = PAGE as usize / arch::SLOT_BYTES;

/// Where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The slots.
    code: Range,
    /// The page behind them, which begins with the word.
    pub(super) word: Range,
}

impl Region {
    /// Returns a region with this many slots, or a few more, from `start` on.
    pub(super) fn at(start: Addr, slots: usize) -> Region {
        let len = code_bytes(slots);
        let part = |start: u64, len: u64| Range::sized(Addr(start), len).unwrap_or_default();
        Region { code: part(start.0, len), word: part(start.0 + len, PAGE) }
    }

    /// Returns the bytes of a region with this many slots.
    pub(super) fn bytes(slots: usize) -> u64 {
        code_bytes(slots) + PAGE
    }

    /// Returns all of it.
    pub(super) fn whole(&self) -> Range {
        Range { start: self.code.start, end: self.word.end }
    }

    /// Returns a slot: the first is the leader's.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        let at = (index / EACH) as u64 * PAGE + ((index % EACH) * arch::SLOT_BYTES) as u64;
        (at < self.code.len()).then_some(Slot { at: Addr(self.code.start.0 + at), word: self.word.start })
    }
}

fn code_bytes(slots: usize) -> u64 {
    slots.div_ceil(EACH) as u64 * PAGE
}
