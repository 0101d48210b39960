// SPDX-License-Identifier: Apache-2.0
//! How many TLB entries a program's code and constants take.

use crate::addr::PageSize;
use serde::Serialize;

/// TLB entries for all of text and read-only data, at one entry per page.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Entries {
    /// Entries if all pages were base pages.
    pub small: u64,
    /// Entries with the huge pages of now.
    pub now: u64,
    /// Entries if all liftable bytes were huge.
    pub lifted: u64,
}

impl Entries {
    /// Counts the entries of these parts. Each part has three numbers: its bytes, the bytes that huge pages map, and the bytes
    /// that they could map.
    pub(super) fn of(parts: impl Iterator<Item = [u64; 3]>, base: PageSize, huge: PageSize) -> Entries {
        let mut all = Entries::default();
        for [bytes, huge_bytes, liftable_bytes] in parts {
            let pages = |on_huge: u64| {
                let on_huge = on_huge.min(bytes);
                on_huge.div_ceil(huge.bytes()) + (bytes - on_huge).div_ceil(base.bytes())
            };
            all.small += pages(0);
            all.now += pages(huge_bytes);
            all.lifted += pages(liftable_bytes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_entries() {
        let parts = [[5 << 20, 2 << 20, 4 << 20]];
        let got = Entries::of(parts.into_iter(), PageSize::SMALL, PageSize::MB2);
        assert_eq!(got, Entries { small: 1280, now: 1 + 768, lifted: 2 + 256 });
    }
}
