// SPDX-License-Identifier: Apache-2.0
//! How much of a process was on huge pages.

use hugelift_core::smaps::Usage;
use serde::Serialize;
use std::fmt;
use std::ops::Add;

/// Bytes of one part, in all objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Coverage {
    /// In whole huge pages: what could be huge.
    pub whole: u64,
    /// Mapped by huge entries.
    pub huge: u64,
}

impl Coverage {
    /// Whether all that could be huge is.
    pub fn is_full(self) -> bool {
        self.huge >= self.whole
    }
}

impl Add for Coverage {
    type Output = Coverage;
    fn add(self, other: Coverage) -> Coverage {
        Coverage { whole: self.whole + other.whole, huge: self.huge + other.huge }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        f.pad(&format!("{:.0} of {:.0} MB", mb(self.huge), mb(self.whole)))
    }
}

/// The huge bytes of a process, by smaps.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Memory {
    /// Executable mappings.
    pub text: Coverage,
    /// Mappings that can only be read.
    pub rodata: Coverage,
    /// Huge bytes of everything that can be written (heap, data).
    pub writable_huge: u64,
    /// Huge bytes in the page cache.
    pub pagecache: u64,
    /// Huge bytes in anonymous transparent huge pages.
    pub thp: u64,
    /// Huge bytes in hugetlb pages.
    pub hugetlb: u64,
    /// Huge bytes in tmpfs and memfd pages.
    pub shared: u64,
}

impl Add for Memory {
    type Output = Memory;
    fn add(self, other: Memory) -> Memory {
        Memory {
            text: self.text + other.text,
            rodata: self.rodata + other.rodata,
            writable_huge: self.writable_huge + other.writable_huge,
            pagecache: self.pagecache + other.pagecache,
            thp: self.thp + other.thp,
            hugetlb: self.hugetlb + other.hugetlb,
            shared: self.shared + other.shared,
        }
    }
}

impl Memory {
    /// Returns the huge bytes of text and read-only data, which are what a lift changes.
    pub fn lifted(&self) -> u64 {
        self.text.huge + self.rodata.huge
    }

    /// Returns all huge bytes.
    pub fn huge(&self) -> u64 {
        self.lifted() + self.writable_huge
    }

    /// Adds the huge bytes of one mapping to the sums by backing.
    pub(crate) fn add_backings(&mut self, usage: &Usage) {
        self.pagecache += usage.file_huge;
        self.thp += usage.anon_huge;
        self.hugetlb += usage.hugetlb();
        self.shared += usage.shmem_huge;
    }

    /// Returns the larger of each counter: what was huge at one time or another.
    pub fn max(self, other: Memory) -> Memory {
        let most =
            |a: Coverage, b: Coverage| Coverage { whole: a.whole.max(b.whole), huge: a.huge.max(b.huge) };
        Memory {
            text: most(self.text, other.text),
            rodata: most(self.rodata, other.rodata),
            writable_huge: self.writable_huge.max(other.writable_huge),
            pagecache: self.pagecache.max(other.pagecache),
            thp: self.thp.max(other.thp),
            hugetlb: self.hugetlb.max(other.hugetlb),
            shared: self.shared.max(other.shared),
        }
    }
}
