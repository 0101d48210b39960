// SPDX-License-Identifier: Apache-2.0
//! What is measured: how much memory, on which pages, and which of them are written to.

use crate::memory::Pages;
use hugelift_core::addr::PageSize;
use hugelift_linux::machine::base_page;

/// Which pages the parent writes to, each once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pattern {
    /// One base page of each huge page, at a random place.
    OnePerHuge,
    /// An eighth of all base pages, in random order.
    Random,
    /// All base pages, from the first to the last.
    Every,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] = [Pattern::OnePerHuge, Pattern::Random, Pattern::Every];

    /// Returns how many base pages it writes to in a huge page of `base_pages` base pages, on average.
    pub fn written(self, base_pages: u64) -> u64 {
        match self {
            Pattern::OnePerHuge => 1,
            Pattern::Random => (base_pages / 8).max(1),
            Pattern::Every => base_pages,
        }
    }
}

/// One combination that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    /// Memory of the parent, in huge pages.
    pub huge_pages: u64,
    /// Kind of pages that the memory is on.
    pub pages: Pages,
    /// Pages that the parent writes to.
    pub pattern: Pattern,
}

impl Case {
    /// Returns the bytes that it takes, with the copies.
    pub fn bytes(self, huge: PageSize) -> u64 {
        let base = huge.bytes() / base_page().bytes();
        let copied = match self.pages {
            // Kernels before 5.8 copy a transparent huge page as a whole too.
            Pages::Hugetlb(_) | Pages::Thp => huge.bytes(),
            Pages::Small => self.pattern.written(base) * base_page().bytes(),
        };
        self.huge_pages.saturating_mul(huge.bytes() + copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_included() {
        let huge = PageSize::MB2;
        let bytes = |pages, pattern| Case { huge_pages: 10, pages, pattern }.bytes(huge);
        assert_eq!(bytes(Pages::Hugetlb(huge), Pattern::OnePerHuge), 40 << 20);
        assert_eq!(bytes(Pages::Thp, Pattern::OnePerHuge), 40 << 20);
        assert_eq!(bytes(Pages::Small, Pattern::Every), 40 << 20);
        assert_eq!(bytes(Pages::Small, Pattern::OnePerHuge), (20 << 20) + 10 * base_page().bytes());
    }
}
