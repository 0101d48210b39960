// SPDX-License-Identifier: Apache-2.0
//! The stretches that one huge page can map, and which of their base pages are present.

use super::why::Why;
use crate::addr::{Addr, PageSize};

/// The base pages of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pages {
    /// All pages, present or not.
    pub all: u64,
    /// The pages that are present and belong to this process alone.
    pub own: u64,
    /// The pages that are present and not its own: other processes map them too, or they are the zero page.
    pub others: u64,
    /// The pages in swap space.
    pub swapped: u64,
    /// Guard pages (`MADV_GUARD_INSTALL`), and pages that a userfaultfd protects from writes.
    pub guarded: u64,
}

impl Pages {
    /// Returns the pages of a block by their `entries` in `/proc/PID/pagemap`
    /// (Documentation/admin-guide/mm/pagemap.rst).
    pub fn of(entries: &[u64]) -> Pages {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE: u64 = 1 << 61;
        const GUARD: u64 = 1 << 58;
        const WRITE_PROTECTED: u64 = 1 << 57;
        const OWN: u64 = 1 << 56;
        let mut pages = Pages { all: entries.len() as u64, ..Pages::default() };
        for entry in entries {
            let counter = match entry {
                e if e & (GUARD | WRITE_PROTECTED) != 0 => &mut pages.guarded,
                e if e & (PRESENT | FILE | OWN) == PRESENT | OWN => &mut pages.own,
                e if e & PRESENT != 0 => &mut pages.others,
                e if e & SWAPPED != 0 => &mut pages.swapped,
                _ => continue,
            };
            *counter += 1;
        }
        pages
    }

    /// Returns the counts for a block of shared memory. `in_file` is how many of the block's pages its file has in memory, if
    /// that is known: other processes may have touched pages that this one has not. A collapse moves the pages for all processes.
    pub fn of_shared(self, in_file: Option<u64>) -> Pages {
        let present = self.own + self.others;
        let rest = self.all.saturating_sub(self.guarded);
        let own = in_file.map_or(present, |in_file| present.max(in_file)).min(rest);
        Pages { own, others: 0, swapped: self.swapped.min(rest - own), ..self }
    }

    /// Returns the bytes that a collapse of the block adds; `base` is the size of one of its pages.
    pub fn adds(self, base: PageSize) -> u64 {
        self.all.saturating_sub(self.own).saturating_mul(base.bytes())
    }

    /// Returns why the block is left, whatever the budget.
    pub fn refusal(self) -> Option<Why> {
        match self {
            pages if pages.guarded > 0 => Some(Why::Guarded),
            pages if pages.own.saturating_mul(2) >= pages.all => None,
            pages if (pages.own + pages.others).saturating_mul(2) >= pages.all => Some(Why::NotOwn),
            _ => Some(Why::Sparse),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.own + self.others + self.swapped + self.guarded == 0
    }
}

/// A stretch of an area that one huge page can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its first address, a multiple of the size of a huge page.
    pub start: Addr,
    /// A huge page maps it already.
    pub huge: bool,
    /// Its base pages.
    pub pages: Pages,
    /// How much it is used, in any unit; `None` if that is not known.
    pub heat: Option<u64>,
}
