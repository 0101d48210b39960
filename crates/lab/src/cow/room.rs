// SPDX-License-Identifier: Apache-2.0
//! What this machine has room for: cases that fit into its memory, and a pool of huge pages for them.

use super::case::Case;
use super::measured::Measured;
use crate::memory::{Pages, pool_with};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_linux::machine::{memory_left_here, probe};

/// Returns the cases that this machine can run. A note names the others.
pub(super) fn runnable(cases: &[Case], huge: PageSize, measured: &mut Measured) -> Vec<Case> {
    let thp_off = probe(None).thp_off;
    // Two thirds: the pool takes its pages from the same memory.
    let left = memory_left_here() / 3 * 2;
    let mut runnable = Vec::new();
    for &case in cases {
        if case.pages == Pages::Thp && thp_off.is_some() {
            measured.note(
                "thp",
                "nothing on transparent huge pages: they are off (hugelift doctor says why)".into(),
            );
        } else if case.bytes(huge) > left {
            let (pages, needs) = (case.huge_pages, human_bytes(case.bytes(huge)));
            let has = human_bytes(left);
            measured.note(
                "memory",
                format!(
                    "cases of {pages} huge pages and more are left out: they take {needs} with the copies, more than \
                     {has}, two thirds of the free memory"
                ),
            );
        } else {
            runnable.push(case);
        }
    }
    runnable
}

/// Enlarges the pool for `pages` huge pages of memory and all copies, for as long as the returned value
/// lives. Removes hugetlb from `kinds` if that is not possible.
pub(super) fn pool_for(
    kinds: &mut Vec<Pages>,
    pages: u64,
    huge: PageSize,
    measured: &mut Measured,
) -> Option<crate::setting::Setting> {
    let in_pool = |pages: &Pages| matches!(pages, Pages::Hugetlb(_));
    if !kinds.iter().any(in_pool) {
        return None;
    }
    // If another process takes pages of the pool meanwhile, the kernel takes those of the child, which never
    // reads them: there is no SIGBUS.
    pool_with(huge, 2 * pages).unwrap_or_else(|why| {
        measured.note("hugetlb", format!("{why:#}"));
        kinds.retain(|pages| !in_pool(pages));
        None
    })
}
