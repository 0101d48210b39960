// SPDX-License-Identifier: Apache-2.0
//! One array of TLB entries while a trace passes.

use super::cpu::{Array, Reach};

/// An entry that holds nothing.
const EMPTY: u64 = 0;

/// The entries of an [`Array`]: set after set, in each the last used one first.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    array: Array,
    /// The number of sets, a power of two, less one.
    mask: usize,
    entries: Vec<u64>,
}

/// Returns what an entry holds as a number that no other address and no other [`Reach`] has, and that is not [`EMPTY`].
fn tag(number: u64, reach: Reach) -> u64 {
    number << 3 | (reach as u64 + 1)
}

fn is_huge(entry: u64) -> bool {
    entry & 7 == Reach::Mb2 as u64 + 1
}

impl Entries {
    /// Makes an empty array.
    pub(super) fn new(array: Array) -> Entries {
        let sets = array.entries / array.ways;
        Entries { array, mask: sets - 1, entries: vec![EMPTY; array.entries] }
    }

    /// Looks an address up, of which an entry holds so much, and makes its entry the last used one. Returns whether it was there.
    pub(super) fn access(&mut self, address: u64, reach: Reach) -> bool {
        let number = address >> reach.log2();
        let ways = self.array.ways;
        let first = (number as usize & self.mask) * ways;
        let set = &mut self.entries[first..first + ways];
        let wanted = tag(number, reach);
        if set[0] == wanted {
            return true;
        }
        if let Some(at) = set.iter().position(|&entry| entry == wanted) {
            set[..=at].rotate_right(1);
            return true;
        }
        let at = replaced(set, reach == Reach::Mb2, &self.array);
        set[..=at].rotate_right(1);
        set[0] = wanted;
        false
    }
}

/// Returns the place in a set whose entry goes: the one that was not used for the longest time. If huge (or small) pages may have
/// no more entries, it is one of theirs.
fn replaced(set: &[u64], huge: bool, array: &Array) -> usize {
    let most = if huge { array.huge_ways } else { array.small_ways };
    let of_kind = |&entry: &u64| entry != EMPTY && is_huge(entry) == huge;
    if most < set.len() && set.iter().filter(|entry| of_kind(entry)).count() >= most {
        return set.iter().rposition(of_kind).unwrap_or(set.len() - 1);
    }
    set.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns how many of the accesses to these pages of 4 kB miss.
    fn misses(array: Array, pages: impl IntoIterator<Item = u64>) -> usize {
        let mut entries = Entries::new(array);
        pages.into_iter().filter(|page| !entries.access(page << 12, Reach::Kb4)).count()
    }

    #[test]
    fn the_entry_that_was_not_used_for_the_longest_time_goes() {
        let mut two = Entries::new(Array::full(2));
        let hits = [1, 2, 1, 3, 1, 2].map(|page: u64| two.access(page << 12, Reach::Kb4));
        assert_eq!(hits, [false, false, true, false, true, false]);
    }

    #[test]
    fn pages_with_the_same_low_bits_share_a_set() {
        // Four sets of two.
        let array = Array::new(8, 2);
        assert_eq!(misses(array, [0, 4, 0, 4, 0, 4]), 2);
        assert_eq!(misses(array, [0, 4, 8, 0, 4, 8]), 6);
        assert_eq!(misses(array, [0, 4, 1, 5, 2, 6, 3, 7, 0, 4, 1, 5, 2, 6, 3, 7]), 8);
    }

    #[test]
    fn an_address_with_another_page_size_is_another_entry() {
        let mut entries = Entries::new(Array::full(8));
        let all = [Reach::Kb4, Reach::Kb16, Reach::Kb64, Reach::Mb2];
        for reach in all {
            assert!(!entries.access(0, reach), "{reach:?}");
        }
        for reach in all {
            assert!(entries.access((1 << reach.log2()) - 1, reach), "{reach:?}");
        }
    }

    #[test]
    fn huge_pages_have_no_more_than_their_ways() {
        // One set, of which half may be huge.
        let array = Array::full(4).huge_in(2);
        let mut entries = Entries::new(array);
        for page in [0, 1, 2] {
            assert!(!entries.access(page << 21, Reach::Mb2));
        }
        assert!(!entries.access(0, Reach::Mb2) && entries.access(2 << 21, Reach::Mb2));
        // Small pages may take all.
        for page in 0..4 {
            assert!(!entries.access(page << 12, Reach::Kb4));
        }
        assert!(!entries.access(2 << 21, Reach::Mb2));
    }

    fn pages() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(0u64..40, 1..300)
    }

    proptest! {
        #[test]
        fn what_fits_misses_once(count in 1u64..65, first: u32, rounds in 2usize..5) {
            let set = || (0..count).map(move |page| u64::from(first) + page);
            let all = (0..rounds).flat_map(|_| set());
            prop_assert_eq!(misses(Array::full(64), all.clone()), count as usize);
            // Consecutive pages fill the sets evenly.
            prop_assert_eq!(misses(Array::new(64, 4), all), count as usize);
        }

        #[test]
        fn a_larger_cycle_misses_always(more in 1u64..65, first: u32, rounds in 2usize..5) {
            let all = || (0..rounds).flat_map(|_| (0..64 + more).map(|page| u64::from(first) + page));
            prop_assert_eq!(misses(Array::full(64), all()), all().count());
        }

        #[test]
        fn more_entries_never_hurt(pages in pages(), fewer in 1usize..32, more in 0usize..32) {
            let few = misses(Array::full(fewer), pages.clone());
            prop_assert!(misses(Array::full(fewer + more), pages) <= few);
        }

        /// A page of 2 MB holds all that pages of 4 kB in it hold.
        #[test]
        fn larger_pages_never_miss_more(pages in prop::collection::vec(0u64..4096, 1..300), count in 1usize..32) {
            let of = |reach| {
                let mut entries = Entries::new(Array::full(count));
                pages.iter().filter(|&&page| !entries.access(page << 12, reach)).count()
            };
            let all = [Reach::Kb4, Reach::Kb16, Reach::Kb64, Reach::Mb2].map(of);
            prop_assert!(all.is_sorted_by(|small, large| small >= large), "{:?}", all);
        }

        /// LRU by its definition: a page hits if fewer other pages than there are entries were used since its last use.
        #[test]
        fn it_is_lru(pages in pages(), count in 1usize..20) {
            let mut entries = Entries::new(Array::full(count));
            for (at, &page) in pages.iter().enumerate() {
                let since = pages[..at].iter().rposition(|&other| other == page);
                let expected = since.is_some_and(|since| {
                    let mut between = pages[since + 1..at].to_vec();
                    between.sort_unstable();
                    between.dedup();
                    between.len() < count
                });
                prop_assert_eq!(entries.access(page << 12, Reach::Kb4), expected);
            }
        }
    }
}
