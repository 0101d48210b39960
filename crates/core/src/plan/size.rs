// SPDX-License-Identifier: Apache-2.0
//! Sizes: which page a backing uses, and what is worth a copy.

use crate::addr::{PageSize, Range};
use crate::policy::Backing;
use crate::snapshot::Machine;

/// Returns the bytes of `range` that whole pages of `page` cover.
pub fn liftable_bytes(range: Range, page: PageSize) -> u64 {
    range.inner(page).map_or(0, Range::len)
}

/// Returns whether `found` bytes are at least nine tenths of `whole`, so that the rest is not worth a
/// copy.
pub fn is_nearly_all(found: u64, whole: u64) -> bool {
    whole > 0 && found >= whole - whole / 10
}

/// Returns the page size that a backing uses when the user names none.
pub fn usual_page(machine: &Machine, backing: Backing) -> Option<PageSize> {
    match backing {
        Backing::Hugetlb => usual_pool(machine),
        Backing::Thp | Backing::Pagecache | Backing::Shared => machine.thp_page,
    }
}

/// Pages that one PMD entry maps cost least. Where these are too large to be useful (512 MB on 64 kB
/// base pages), an administrator who has filled a pool of smaller pages wants those used.
fn usual_pool(machine: &Machine) -> Option<PageSize> {
    let offered = || machine.pools.iter().map(|p| p.page);
    let stocked = || machine.pools.iter().filter(|p| p.available() > 0).map(|p| p.page);
    match machine.thp_page {
        Some(pmd) => {
            let best = stocked().filter(|p| *p <= pmd).max();
            best.or_else(|| offered().find(|p| *p == pmd)).or_else(|| offered().min())
        }
        None => stocked().min().or_else(|| offered().min()),
    }
}
