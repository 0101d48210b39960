// SPDX-License-Identifier: Apache-2.0
//! How many TLB entries a program's code and constants take, and how much of a program is huge in the
//! page cache before it runs.

use super::{Report, Total};
use crate::addr::PageSize;
use crate::snapshot::{Part, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;

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
    pub(super) fn of(totals: &BTreeMap<Part, Total>, base: PageSize, huge: PageSize) -> Entries {
        let mut all = Entries::default();
        for total in [Part::Text, Part::Rodata].iter().filter_map(|part| totals.get(part)) {
            let pages = |on_huge: u64| {
                let on_huge = on_huge.min(total.bytes);
                on_huge.div_ceil(huge.bytes()) + (total.bytes - on_huge).div_ceil(base.bytes())
            };
            all.small += pages(0);
            all.now += pages(total.huge_bytes);
            all.lifted += pages(total.liftable_bytes);
        }
        all
    }
}

impl Report {
    /// Sets [`ObjectReport::page_cache_bytes`](super::ObjectReport) from [`Snapshot::cached`].
    pub fn set_page_cache(&mut self, snapshot: &Snapshot) {
        for (index, report) in self.objects.iter_mut().enumerate() {
            let extents = snapshot.extents();
            let own =
                extents.iter().filter(|e| e.object == index && matches!(e.part, Part::Text | Part::Rodata));
            let huge = own.flat_map(|e| snapshot.cached.iter().filter_map(|c| c.intersect(e.range)));
            report.page_cache_bytes = Some(huge.map(|r| r.len()).sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_entries() {
        let total = Total { bytes: 5 << 20, liftable_bytes: 4 << 20, huge_bytes: 2 << 20 };
        let totals = BTreeMap::from([(Part::Text, total), (Part::Data, total)]);
        let got = Entries::of(&totals, PageSize::SMALL, PageSize::MB2);
        assert_eq!(got, Entries { small: 1280, now: 1 + 768, lifted: 2 + 256 });
    }
}
