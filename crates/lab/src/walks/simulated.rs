// SPDX-License-Identifier: Apache-2.0
//! The two levels of TLBs of a CPU while a trace passes.

use super::Side;
use super::array::Entries;
use super::cpu::{Array, Cpu, Page, Second};

/// Where a translation was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// In the first level.
    First,
    /// In the second level.
    Second,
    /// Nowhere: the CPU walks the page table.
    Walk,
}

/// A CPU in the middle of a trace.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The arrays of the first level, for code and for data.
    first: [Vec<(Array, Entries)>; 2],
    /// The second level: one array, or one for code and one for data.
    second: Vec<(Array, Entries)>,
    /// Whether small pages are taken to be adjacent in memory.
    adjacent: bool,
}

fn empty(array: &Array) -> (Array, Entries) {
    (*array, Entries::new(*array))
}

impl Simulated {
    /// Starts with empty TLBs. `adjacent` says whether the memory of adjacent small pages is taken to be adjacent too, so that
    /// CPUs that coalesce them do.
    pub fn new(cpu: &Cpu, adjacent: bool) -> Simulated {
        let all = |arrays: &[Array]| arrays.iter().map(empty).collect();
        let second = match &cpu.second {
            Second::Shared(array) => vec![empty(array)],
            Second::Split { code, data } => vec![empty(code), empty(data)],
        };
        Simulated { first: [all(cpu.code), all(cpu.data)], second, adjacent }
    }

    /// Makes an access to an address that is mapped by such a page. A miss fills both levels.
    pub fn access(&mut self, side: Side, address: u64, page: Page) -> Found {
        let adjacent = self.adjacent;
        let looked_up =
            |(array, entries): &mut (Array, Entries)| entries.access(address, array.reach(page, adjacent));
        let index = side as usize;
        let mut first = self.first[index].iter_mut().filter(|(array, _)| array.holds(page));
        if first.next().is_some_and(looked_up) {
            return Found::First;
        }
        let last = self.second.len() - 1;
        if looked_up(&mut self.second[index.min(last)]) { Found::Second } else { Found::Walk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::table::{CPUS, by_name};
    use proptest::prelude::*;

    /// Returns the walks of the second of two rounds over this many consecutive pages of 4 kB.
    fn walks(cpu: &str, side: Side, count: u64, page: Page, adjacent: bool) -> u64 {
        let mut simulated = Simulated::new(by_name(cpu).unwrap(), adjacent);
        let mut round = || {
            let found = (0..count).map(|n| simulated.access(side, 0x7000_0000 + (n << 12), page));
            found.filter(|&found| found == Found::Walk).count() as u64
        };
        round();
        round()
    }

    #[test]
    fn as_many_pages_as_the_second_level_holds_need_no_walk() {
        for (cpu, code, data) in [
            ("skylake-sp", 1536, 1536),
            ("ice-lake-sp", 2048, 2048),
            ("zen-3", 512, 2048),
            ("zen-4", 512, 3072),
            ("zen-5", 2048, 4096),
            ("neoverse-n1", 1280, 1280),
            ("neoverse-v2", 2048, 2048),
        ] {
            for (side, held) in [(Side::Code, code), (Side::Data, data)] {
                assert_eq!(walks(cpu, side, held, Page::Small, false), 0, "{cpu} {side:?}");
                // A cycle that is one round of all sets longer than LRU can hold misses always.
                let much = 2 * held;
                assert_eq!(walks(cpu, side, much, Page::Small, false), much, "{cpu} {side:?}");
                assert_eq!(walks(cpu, side, much, Page::Huge, false), 0, "{cpu} {side:?}");
            }
        }
    }

    #[test]
    fn code_and_data_share_a_second_level_or_do_not() {
        let both = |cpu: &str| {
            let mut simulated = Simulated::new(by_name(cpu).unwrap(), false);
            let mut walks = 0;
            for _ in 0..2 {
                walks = 0;
                for n in 0..512u64 {
                    for (side, at) in [(Side::Code, 0), (Side::Data, 1 << 30), (Side::Data, 2 << 30)] {
                        walks +=
                            u64::from(simulated.access(side, at + (n << 12), Page::Small) == Found::Walk);
                    }
                }
            }
            walks
        };
        assert_eq!(both("zen-3"), 0);
        // 1536 pages in all: they fit, but only if they fill the sets evenly.
        assert_eq!(both("skylake-sp"), 0);
        assert_eq!(both("neoverse-n1"), 1536);
    }

    #[test]
    fn adjacent_pages_are_coalesced_where_the_cpu_does_that() {
        let four = |cpu, pages| walks(cpu, Side::Code, pages, Page::Small, true);
        assert_eq!((four("zen-3", 2048), four("zen-3", 4096)), (0, 1024));
        assert_eq!((four("neoverse-n1", 5120), four("skylake-sp", 3072)), (0, 3072));
        // 64 kB that are adjacent: four entries on Zen, one on AArch64, and 16 on Intel.
        let contiguous = |cpu, pages| walks(cpu, Side::Code, pages, Page::Contiguous, false);
        assert_eq!((contiguous("zen-3", 2048), contiguous("zen-3", 4096)), (0, 1024));
        assert_eq!((contiguous("neoverse-v2", 2048 * 16), contiguous("skylake-sp", 3072)), (0, 3072));
    }

    proptest! {
        /// What was accessed last is in the first level, on each CPU.
        #[test]
        fn an_access_again_needs_nothing(cpu in 0..CPUS.len(), accesses in prop::collection::vec((any::<bool>(), any::<u64>(), 0usize..3), 1..200), adjacent: bool) {
            let mut simulated = Simulated::new(&CPUS[cpu], adjacent);
            for (code, address, page) in accesses {
                let side = if code { Side::Code } else { Side::Data };
                let page = [Page::Small, Page::Contiguous, Page::Huge][page];
                simulated.access(side, address, page);
                prop_assert_eq!(simulated.access(side, address, page), Found::First);
            }
        }
    }
}
