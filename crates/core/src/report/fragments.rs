// SPDX-License-Identifier: Apache-2.0
//! Where the huge bytes of each extent are, as far as smaps shows.

use crate::addr::{PageSize, Range};
use crate::by_address::ByAddress;
use crate::plan::liftable_bytes;
use crate::policy::Backing;
use crate::smaps::Usage;
use crate::snapshot::Extent;

/// The piece of a part that one mapping of smaps shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Its addresses.
    pub range: Range,
    /// How many bytes of it are huge; smaps does not say which ones.
    pub huge: u64,
    /// Where the huge pages come from.
    pub backing: Option<Backing>,
    /// More of it becomes huge when it is touched.
    pub advised: bool,
}

/// Returns for each extent the mappings of `usage` that it lies in, with its share of their huge
/// bytes. A mapping inside one extent gives it all. The huge bytes of a mapping that several extents
/// share, or that is larger than they are, are apportioned by the whole huge pages in each.
pub(super) fn fragments(extents: &[Extent], usage: &[Usage], page: PageSize) -> Vec<Vec<Fragment>> {
    let mut found: Vec<Vec<Fragment>> = vec![Vec::new(); extents.len()];
    let by_address: ByAddress<usize> = extents.iter().enumerate().map(|(i, e)| (e.range, i)).collect();
    for used in usage {
        let whole = used.mapping.range;
        let here = by_address.over(whole);
        let here: Vec<(usize, Range)> = here.filter_map(|(r, i)| Some((*i, r.intersect(whole)?))).collect();
        let (backing, huge) = (backing_of(used), used.huge());
        let ranges: Vec<Range> = here.iter().map(|(_, range)| *range).collect();
        for ((i, range), huge) in here.iter().zip(apportion(huge, whole, &ranges, page)) {
            let (backing, advised) = (backing.filter(|_| huge > 0), used.advised);
            found[*i].push(Fragment { range: *range, huge, backing, advised });
        }
    }
    found
}

/// Returns where most of a mapping's huge bytes come from.
fn backing_of(usage: &Usage) -> Option<Backing> {
    let counters = [
        (usage.hugetlb(), Backing::Hugetlb),
        (usage.anon_huge, Backing::Thp),
        (usage.shmem_huge, Backing::Shared),
        (usage.file_huge, Backing::Pagecache),
    ];
    counters.into_iter().filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes).map(|(_, b)| b)
}

/// Apportions `huge` bytes of the mapping `whole` to `ranges` inside it: in whole pages where that is
/// possible, and to none more than its length.
fn apportion(huge: u64, whole: Range, ranges: &[Range], page: PageSize) -> Vec<u64> {
    if huge == whole.len() {
        return ranges.iter().map(|r| r.len()).collect();
    }
    let pages = |r: &Range| liftable_bytes(*r, page);
    let by_pages: Vec<u64> = ranges.iter().map(pages).collect();
    // More huge bytes than whole pages hold: they are of another page size. Then by length.
    let (weights, all, unit) = if huge <= pages(&whole) {
        (by_pages, pages(&whole), page.bytes())
    } else {
        (ranges.iter().map(|r| r.len()).collect(), whole.len(), 1)
    };
    let all = weights.iter().sum::<u64>().max(all);
    // Each share is a difference of rounded running sums, so that rounding errors do not add up.
    let (mut weight_sum, mut dealt) = (0u64, 0u64);
    weights
        .iter()
        .map(|weight| {
            weight_sum += weight;
            let exact = u128::from(huge) * u128::from(weight_sum) / u128::from(all.max(1));
            let upto = u64::try_from(exact).unwrap_or(u64::MAX);
            let upto = if weight_sum == all { upto } else { upto - upto % unit };
            let share = upto.saturating_sub(dealt).min(*weight);
            dealt += share;
            share
        })
        .collect()
}
