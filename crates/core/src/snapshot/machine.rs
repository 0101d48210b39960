// SPDX-License-Identifier: Apache-2.0
//! What the machine offers a process: sizes of pages, pools, and memory.

use crate::addr::{PageSize, human_bytes};
use std::fmt;

/// A pool of hugetlb pages of one size
/// (`/sys/kernel/mm/hugepages/hugepages-*kB`, Documentation/admin-guide/mm/hugetlbpage.rst).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Size of its pages.
    pub page: PageSize,
    /// Pages in the pool, including surplus ones.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
    /// Free pages that are reserved for existing mappings.
    pub reserved: u64,
    /// Pages above the pool's own size at the moment.
    pub surplus: u64,
    /// The most surplus pages that the kernel may make.
    pub overcommit: u64,
}

impl Pool {
    /// Returns how many pages a new mapping could get: free and not reserved, and surplus still to be
    /// made.
    pub fn available(self) -> u64 {
        self.unpromised().saturating_add(self.overcommit.saturating_sub(self.surplus))
    }

    /// Returns how many of these the pool holds already: they cost no further memory.
    pub fn unpromised(self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// What the machine and the target's limits allow, found by probing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The base page.
    pub base_page: PageSize,
    /// Size of a transparent huge page; `None` where the kernel has none.
    pub thp_page: Option<PageSize>,
    /// Sizes of transparent pages between the base page and [`Machine::thp_page`] that
    /// `MADV_HUGEPAGE` may bring (Linux 6.8), largest first; empty if they were not read.
    pub folios: Vec<PageSize>,
    /// Why `MADV_HUGEPAGE` brings no huge pages; `None` if it does.
    pub thp_off: Option<ThpOff>,
    /// The running process has forbidden itself transparent huge pages, and a borrowed thread can allow them while a
    /// copy of code or of constants is made. What the program writes to stays as it wants it.
    pub allows_thp: bool,
    /// The hugetlb pools, largest page first.
    pub pools: Vec<Pool>,
    /// `mremap(2)` moves hugetlb mappings (Linux 5.16).
    pub moves_hugetlb: bool,
    /// Bytes of the machine's memory that copies may take.
    pub memory_left: u64,
    /// The limit of a control group that leaves the target least memory, if there is one.
    pub memory_limit: Option<MemoryLimit>,
}

impl Machine {
    /// Returns whether a page table holds several pages of the pool of this size. On AArch64 it holds several pages of 64 kB, and
    /// several pages of 2 MB where the base page has 16 or 64 kB.
    ///
    /// A child of fork(2) may get none of such pages, and reads zeros instead. The kernel reads a number in a record of the page
    /// table as the number of the table's users, which only tables of the next level have (`copy_hugetlb_page_range`;
    /// measured on 6.12.117: 39 of 40 children after many small objects of the kernel were freed). If a file is mapped, such a
    /// child finds the pages in the file.
    pub fn pool_page_is_lost_at_fork(&self, page: PageSize) -> bool {
        const ENTRY: u64 = 8;
        page.bytes() < self.base_page.bytes() * (self.base_page.bytes() / ENTRY)
    }

    /// Returns whether mremap(2) may move what is on pages of the pool of this size. If not, it is mapped from a file.
    pub fn moves(&self, page: PageSize) -> bool {
        self.moves_hugetlb && !self.pool_page_is_lost_at_fork(page)
    }
}

/// The memory limit of the control group that leaves a process least memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// The file that sets it.
    pub source: String,
    /// The limit.
    pub bytes: u64,
    /// Bytes that may still be charged to the group.
    pub left: u64,
    /// Pages of the hugetlb pools are charged to it as well (`memory_hugetlb_accounting`).
    pub counts_pools: bool,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.source, human_bytes(self.bytes))
    }
}

/// Why there are no transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThpOff {
    /// `/sys/kernel/mm/transparent_hugepage/enabled` is `never`.
    Never,
    /// `prctl(PR_SET_THP_DISABLE)` was inherited.
    Process,
}

/// A machine with huge pages of 2 MB and nothing else, for tests.
#[cfg(test)]
pub(crate) const BARE: Machine = Machine {
    base_page: PageSize::SMALL,
    thp_page: Some(PageSize::MB2),
    folios: Vec::new(),
    thp_off: None,
    allows_thp: false,
    pools: Vec::new(),
    moves_hugetlb: true,
    memory_left: 0,
    memory_limit: None,
};
