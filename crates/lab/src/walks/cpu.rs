// SPDX-License-Identifier: Apache-2.0
//! What the model knows of a CPU: arrays of TLB entries, and the pages that an entry holds.

use super::Side;
use crate::results::machine;

/// The memory behind an address: how the page table maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Page {
    /// A page of 4 kB.
    Small,
    /// 16 pages of 4 kB, aligned to 64 kB and adjacent in memory. On AArch64 the kernel marks them as contiguous.
    Contiguous,
    /// A page of 2 MB.
    Huge,
}

/// The bytes that an entry of a TLB translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// 4 kB
    Kb4,
    /// 16 kB: four pages
    Kb16,
    /// 64 kB
    Kb64,
    /// 2 MB
    Mb2,
}

impl Reach {
    /// Returns the binary logarithm of the bytes.
    pub const fn log2(self) -> u32 {
        match self {
            Reach::Kb4 => 12,
            Reach::Kb16 => 14,
            Reach::Kb64 => 16,
            Reach::Mb2 => 21,
        }
    }
}

/// An array of entries: `entries / ways` sets, each with LRU replacement. The set is chosen by the low bits of the number of the
/// page (or of the group of pages that the entry holds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// How many entries it has.
    pub entries: usize,
    /// How many entries a set has; as many as `entries` if it is fully associative.
    pub ways: usize,
    /// How many entries of a set may hold small pages.
    pub small_ways: usize,
    /// How many entries of a set may hold huge pages.
    pub huge_ways: usize,
    /// What an entry holds of small pages that are adjacent in memory.
    pub adjacent: Reach,
    /// What an entry holds of [`Page::Contiguous`].
    pub contiguous: Reach,
}

impl Array {
    /// An array whose entries hold pages of 4 kB and of 2 MB.
    pub const fn new(entries: usize, ways: usize) -> Array {
        Array {
            entries,
            ways,
            small_ways: ways,
            huge_ways: ways,
            adjacent: Reach::Kb4,
            contiguous: Reach::Kb4,
        }
    }

    /// A fully associative array.
    pub const fn full(entries: usize) -> Array {
        Array::new(entries, entries)
    }

    /// The same array, for pages of 4 kB only.
    pub const fn small(self) -> Array {
        Array { huge_ways: 0, ..self }
    }

    /// The same array, for pages of 2 MB only.
    pub const fn huge(self) -> Array {
        Array { small_ways: 0, ..self }
    }

    /// The same array with a limit: only so many entries of a set may hold pages of 2 MB.
    pub const fn huge_in(self, huge_ways: usize) -> Array {
        Array { huge_ways, ..self }
    }

    /// The same array, whose entries hold four adjacent pages of an aligned block of 16 kB.
    pub const fn coalescing(self) -> Array {
        let contiguous = match self.contiguous {
            Reach::Kb4 => Reach::Kb16,
            more => more,
        };
        Array { adjacent: Reach::Kb16, contiguous, ..self }
    }

    /// The same array, whose entries hold the 64 kB that the kernel marks as contiguous.
    pub const fn marked(self) -> Array {
        Array { contiguous: Reach::Kb64, ..self }
    }

    /// Returns whether an entry may hold this page.
    pub fn holds(&self, page: Page) -> bool {
        match page {
            Page::Small | Page::Contiguous => self.small_ways > 0,
            Page::Huge => self.huge_ways > 0,
        }
    }

    /// Returns what an entry holds of this page, if small pages are adjacent in memory or not.
    pub fn reach(&self, page: Page, adjacent: bool) -> Reach {
        match page {
            Page::Small if adjacent => self.adjacent,
            Page::Small => Reach::Kb4,
            Page::Contiguous => self.contiguous,
            Page::Huge => Reach::Mb2,
        }
    }

    /// Returns how many entries can hold pages of 4 kB, or of 2 MB.
    fn entries_for(&self, page: Page) -> usize {
        let ways = if page == Page::Huge { self.huge_ways } else { self.small_ways };
        self.entries / self.ways * ways
    }
}

/// The second level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Second {
    /// Code and data share it.
    Shared(Array),
    /// Each has its own.
    Split {
        /// That for code.
        code: Array,
        /// That for data.
        data: Array,
    },
}

impl Second {
    /// Returns the array for one side.
    pub fn of(&self, side: Side) -> &Array {
        match (self, side) {
            (Second::Shared(array), _) => array,
            (Second::Split { code, .. }, Side::Code) => code,
            (Second::Split { data, .. }, Side::Data) => data,
        }
    }
}

/// A CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The name on the command line, as in `zen-4`.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// Arrays of the first level for code. Each page size is in one of them.
    pub code: &'static [Array],
    /// Arrays of the first level for data.
    pub data: &'static [Array],
    /// The second level.
    pub second: Second,
}

impl Cpu {
    /// Returns the TLBs in the form in which this machine's are read: one for each level, kind and page size.
    pub fn tlbs(&self) -> Vec<machine::Tlb> {
        let tlb = |level, kind: &str, array: &Array| {
            let of = move |page, page_bytes| machine::Tlb {
                level,
                kind: kind.into(),
                page_bytes,
                entries: array.entries_for(page) as u64,
            };
            [of(Page::Small, 4 << 10), of(Page::Huge, 2 << 20)]
        };
        let mut all: Vec<machine::Tlb> = self.code.iter().flat_map(|a| tlb(1, "instruction", a)).collect();
        all.extend(self.data.iter().flat_map(|array| tlb(1, "data", array)));
        match &self.second {
            Second::Shared(array) => all.extend(tlb(2, "unified", array)),
            Second::Split { code, data } => {
                all.extend(tlb(2, "instruction", code).into_iter().chain(tlb(2, "data", data)));
            }
        }
        all.retain(|tlb| tlb.entries > 0);
        all
    }
}
