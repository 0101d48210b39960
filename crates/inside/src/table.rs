// SPDX-License-Identifier: Apache-2.0
//! The table of the program's writable spans: it is in the library's memory, and the helper fills it
//! while the program is stopped.

use core::cell::UnsafeCell;

/// The symbol by which the helper finds it.
pub const SYMBOL: &str = "hugelift_table";

/// Its first word.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"hugelift");

/// How many spans it holds.
pub const SPANS: usize = 64;

/// Whether fork(2) is guarded here.
pub mod state {
    /// The library's constructor has not run yet: musl runs constructors after the entry point.
    pub const UNSTARTED: u64 = 0;
    /// It is not guarded: the C library lacks the functions, or no guard was requested.
    pub const NONE: u64 = 3;
    /// It is guarded as long as the program has one thread.
    pub const GUARDED: u64 = 1;
    /// The program has had a second thread.
    pub const THREADS: u64 = 2;
}

/// A writable span on pages of the pool.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Size of the pool's pages.
    pub page: u64,
}

/// The table's head, as the helper reads it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// [`MAGIC`]
    pub magic: u64,
    /// One of [`state`].
    pub state: u64,
    /// Spans in use.
    pub count: u64,
}

/// Bytes of a [`Head`].
pub const HEAD_BYTES: usize = size_of::<Head>();

impl Head {
    /// Reads the bytes of the target's memory.
    pub fn from_bytes(bytes: [u8; HEAD_BYTES]) -> Head {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Head { magic: word(0), state: word(8), count: word(16) }
    }
}

/// Offset of the count in the table; the spans follow it.
pub const COUNT_AT: u64 = 16;

/// Bytes of a [`Span`].
pub const SPAN_BYTES: usize = size_of::<Span>();

impl Span {
    /// Returns the bytes for the target's memory.
    pub fn to_bytes(self) -> [u8; SPAN_BYTES] {
        let mut bytes = [0; SPAN_BYTES];
        for (at, word) in [self.start, self.end, self.page].into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// The table.
#[repr(C)]
pub struct Table {
    head: Head,
    spans: [Span; SPANS],
}

/// The table, which the helper writes from outside.
#[repr(transparent)]
pub struct Cell(UnsafeCell<Table>);

// SAFETY: hugelift writes while all threads are stopped; the library writes in `start` and in fork(2),
// where there is one thread. `Cell::set_state`, which writes elsewhere, writes one word.
unsafe impl Sync for Cell {}

/// The one table of a process.
#[cfg_attr(loaded, unsafe(export_name = "hugelift_table"))]
pub static TABLE: Cell = Cell(UnsafeCell::new(Table {
    head: Head { magic: MAGIC, state: state::UNSTARTED, count: 0 },
    spans: [Span { start: 0, end: 0, page: 0 }; SPANS],
}));

impl Cell {
    /// Returns one of [`state`].
    pub fn state(&self) -> u64 {
        // SAFETY: a word of a live static.
        unsafe { (&raw const (*self.0.get()).head.state).read_volatile() }
    }

    /// Sets the state.
    pub fn set_state(&self, state: u64) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0.get()).head.state).write_volatile(state) }
    }

    /// Returns the number of spans.
    pub fn count(&self) -> usize {
        // SAFETY: as above.
        let count = unsafe { (&raw const (*self.0.get()).head.count).read_volatile() };
        (count as usize).min(SPANS)
    }

    /// Removes all spans: none is on pages of the pool any more.
    pub fn clear(&self) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0.get()).head.count).write_volatile(0) }
    }

    /// Returns the spans.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        // SAFETY: as above; within the array.
        (0..self.count()).map(|i| unsafe { (&raw const (*self.0.get()).spans[i]).read_volatile() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_what_the_helper_takes_it_for() {
        assert_eq!((HEAD_BYTES, SPAN_BYTES), (24, 24));
        assert_eq!(
            core::mem::offset_of!(Table, head) + core::mem::offset_of!(Head, count),
            COUNT_AT as usize
        );
        assert_eq!(core::mem::offset_of!(Table, spans), COUNT_AT as usize + 8);
        let span = Span { start: 1, end: 2, page: 3 };
        // SAFETY: plain words.
        let there: [u8; SPAN_BYTES] = unsafe { core::mem::transmute(span) };
        assert_eq!(span.to_bytes(), there);
        let head = Head { magic: MAGIC, state: state::THREADS, count: 7 };
        // SAFETY: as above.
        assert_eq!(Head::from_bytes(unsafe { core::mem::transmute::<Head, [u8; 24]>(head) }), head);
    }
}
