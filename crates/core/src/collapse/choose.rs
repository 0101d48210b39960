// SPDX-License-Identifier: Apache-2.0
//! The choice of the blocks that are collapsed, and why others are left.

use crate::addr::{Addr, PageSize, Range};
use crate::attribute::Attribute;
use crate::maps::Prot;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What collapsing the memory of a process may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// CPU time of the caller, in whose system calls the kernel copies.
    pub cpu: Duration,
    /// Bytes of memory that it may add.
    pub added: u64,
    /// Bytes that the process can do without where a control group limits its memory, as in
    /// [`crate::policy::Policy::spare`].
    pub spare: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { cpu: Duration::from_secs(1), added: 64 << 20, spare: 0 }
    }
}

/// An anonymous mapping, or the part of one that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// Its addresses.
    pub range: Range,
    /// Its protection.
    pub prot: Prot,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

impl Area {
    /// Returns why nothing of it is collapsed. Locked memory is collapsed: its pages stay in memory, and
    /// khugepaged collapses it too.
    pub fn refusal(&self, page: PageSize) -> Option<Why> {
        let forbids = self.attributes.iter().find(|attribute| attribute.forbids_huge());
        match (self.prot, forbids) {
            (_, Some(attribute)) => Some(Why::Attribute(*attribute)),
            (prot, _) if prot.is_wx() => Some(Why::WritableCode),
            (prot, _) if !prot.read && !prot.write && !prot.exec => Some(Why::NoAccess),
            _ if self.shared => Some(Why::Shared),
            _ if self.range.inner(page).is_none() => Some(Why::Small),
            _ => None,
        }
    }
}

/// The base pages of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pages {
    /// All of them, present or not.
    pub all: u64,
    /// Those that are present and of this process alone.
    pub own: u64,
    /// Those that are present and not its own: other processes map them too, or they are the zero page.
    pub others: u64,
    /// Those in swap space.
    pub swapped: u64,
    /// Guard pages (`MADV_GUARD_INSTALL`), and pages that a userfaultfd protects from writes.
    pub guarded: u64,
}

impl Pages {
    /// Returns the pages of a block by their `entries` in `/proc/PID/pagemap`
    /// (Documentation/admin-guide/mm/pagemap.rst).
    pub fn of(entries: &[u64]) -> Pages {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE: u64 = 1 << 61;
        const GUARD: u64 = 1 << 58;
        const WRITE_PROTECTED: u64 = 1 << 57;
        const OWN: u64 = 1 << 56;
        let mut pages = Pages { all: entries.len() as u64, ..Pages::default() };
        for entry in entries {
            let counter = match entry {
                e if e & (GUARD | WRITE_PROTECTED) != 0 => &mut pages.guarded,
                e if e & (PRESENT | FILE | OWN) == PRESENT | OWN => &mut pages.own,
                e if e & PRESENT != 0 => &mut pages.others,
                e if e & SWAPPED != 0 => &mut pages.swapped,
                _ => continue,
            };
            *counter += 1;
        }
        pages
    }

    /// Returns the bytes that a collapse of the block adds; `base` is the size of one of its pages.
    pub fn adds(self, base: PageSize) -> u64 {
        self.all.saturating_sub(self.own).saturating_mul(base.bytes())
    }

    /// Returns why the block is left, whatever the budget.
    pub fn refusal(self) -> Option<Why> {
        match self {
            pages if pages.guarded > 0 => Some(Why::Guarded),
            pages if pages.own.saturating_mul(2) >= pages.all => None,
            pages if (pages.own + pages.others).saturating_mul(2) >= pages.all => Some(Why::NotOwn),
            _ => Some(Why::Sparse),
        }
    }

    fn is_empty(self) -> bool {
        self.own + self.others + self.swapped + self.guarded == 0
    }
}

/// A stretch of an area that one huge page can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its first address, a multiple of the size of a huge page.
    pub start: Addr,
    /// A huge page maps it already.
    pub huge: bool,
    /// Its base pages.
    pub pages: Pages,
    /// How much it is used, in any unit; `None` if that is not known.
    pub heat: Option<u64>,
}

/// Why memory is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// The mapping has this attribute, which forbids huge pages.
    Attribute(Attribute),
    /// `MAP_SHARED`.
    Shared,
    /// It is writable and executable at once.
    WritableCode,
    /// `PROT_NONE`
    NoAccess,
    /// No block fits into the mapping.
    Small,
    /// It is huge already.
    Huge,
    /// Guard pages or pages that a userfaultfd protects are in it.
    Guarded,
    /// Less than half of the block is present.
    Sparse,
    /// Less than half of the block is the process's own: a collapse would copy what a child of fork(2) still
    /// has.
    NotOwn,
    /// The block would add more memory than the budget still has.
    OverBudget,
    /// It is too large for a kernel without `PAGEMAP_SCAN`, which would show where its pages are.
    Unseen,
    /// The CPU time was used up before its pages were read.
    NoTime,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Attribute(attribute) => write!(f, "it {attribute}"),
            Why::Shared => f.write_str("it is shared (MAP_SHARED)"),
            Why::WritableCode => f.write_str("it is writable and executable, as the code of a JIT compiler"),
            Why::NoAccess => f.write_str("the program cannot access it (PROT_NONE)"),
            Why::Small => f.write_str("its mappings are too small to hold a whole huge page"),
            Why::Huge => f.write_str("it is on huge pages already"),
            Why::Guarded => f.write_str("guard pages or pages protected by a userfaultfd are in it"),
            Why::Sparse => f.write_str("less than half of each of its huge pages would hold data"),
            Why::NotOwn => f.write_str(
                "other processes have most of it too (fork), or it was only read and never written",
            ),
            Why::OverBudget => f.write_str("it would add more memory than is allowed"),
            Why::NoTime => f.write_str("the CPU time that this may take did not suffice to read it"),
            Why::Unseen => f.write_str("the kernel cannot show where its pages are (Linux 6.7 can)"),
        }
    }
}

/// A block that is to be collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Its addresses.
    pub range: Range,
    /// Bytes that its collapse adds.
    pub adds: u64,
}

/// Memory that is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Its addresses: an area, or a block of one.
    pub range: Range,
    /// Why it is left.
    pub why: Why,
    /// Bytes that its collapse would have added; 0 if that was not computed.
    pub adds: u64,
}

/// Which blocks are collapsed, in this order, and what is left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// The blocks, the most useful first.
    pub blocks: Vec<Chosen>,
    /// The areas and blocks that are left, by address. Blocks without any page are not among them.
    pub left: Vec<Left>,
    /// The heat of at least one block is known, so that heat decides on the order.
    pub by_heat: bool,
}

/// Chooses among `blocks`, which lie in `areas` that do not overlap, those whose collapse adds at most `added` bytes together.
/// A huge page has the size `page`, a base page the size `base`.
pub fn choose(areas: &[Area], blocks: &[Block], page: PageSize, base: PageSize, added: u64) -> Choice {
    let mut choice = Choice { by_heat: blocks.iter().any(|b| b.heat.is_some()), ..Choice::default() };
    let by_start: BTreeMap<Addr, &Block> = blocks.iter().map(|block| (block.start, block)).collect();
    let mut order: Vec<(Chosen, Option<u64>)> = Vec::new();
    for area in areas {
        if let Some(why) = area.refusal(page) {
            choice.left.push(Left { range: area.range, why, adds: 0 });
            continue;
        }
        let inner = area.range.inner(page).unwrap_or_default();
        for (&start, block) in by_start.range(inner.start..inner.end).filter(|(at, _)| at.is_aligned(page)) {
            let Some(range) = Range::sized(start, page.bytes()) else { continue };
            let adds = block.pages.adds(base);
            let why = if block.huge { Some(Why::Huge) } else { block.pages.refusal() };
            match why {
                Some(Why::Sparse) if block.pages.is_empty() => {}
                Some(why) => choice.left.push(Left { range, why, adds: if block.huge { 0 } else { adds } }),
                None => order.push((Chosen { range, adds }, block.heat)),
            }
        }
    }
    order.sort_by_key(|(chosen, heat)| (Reverse(*heat), chosen.adds, chosen.range.start));
    let mut rest = added;
    for (chosen, _) in order {
        match rest.checked_sub(chosen.adds) {
            Some(after) => {
                rest = after;
                choice.blocks.push(chosen);
            }
            None => {
                choice.left.push(Left { range: chosen.range, why: Why::OverBudget, adds: chosen.adds });
            }
        }
    }
    choice.left.sort_by_key(|left| (left.range.start, left.range.end));
    choice
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Collapsed, Stopped};
    use super::*;
    use proptest::prelude::*;

    const PAGE: PageSize = PageSize::MB2;
    const BASE: PageSize = PageSize::SMALL;
    const ALL: u64 = 512;
    const RWX: Prot = Prot { exec: true, ..Prot::RW };

    /// Returns a range, given in units of half a block.
    fn r(start: u64, end: u64) -> Range {
        Range::new(Addr(start << 20), Addr(end << 20)).unwrap()
    }

    fn area(range: Range) -> Area {
        Area { range, prot: Prot::RW, shared: false, attributes: vec![] }
    }

    /// Returns the block `n` with `own` pages.
    fn block(n: u64, own: u64) -> Block {
        let pages = Pages { all: ALL, own, ..Pages::default() };
        Block { start: Addr(n << 21), huge: false, pages, heat: None }
    }

    fn starts(choice: &Choice) -> Vec<u64> {
        choice.blocks.iter().map(|chosen| chosen.range.start.0 >> 21).collect()
    }

    fn whys(choice: &Choice) -> Vec<Why> {
        choice.left.iter().map(|left| left.why).collect()
    }

    #[test]
    fn the_densest_are_first_and_the_sparse_are_left() {
        let blocks = [block(1, 300), block(2, ALL), block(3, 255), block(4, 400), block(5, 0)];
        let choice = choose(&[area(r(1, 12))], &blocks, PAGE, BASE, u64::MAX);
        assert_eq!(starts(&choice), [2, 4, 1]);
        assert_eq!(choice.blocks[1].adds, 112 * 4096);
        assert_eq!((whys(&choice), choice.by_heat), (vec![Why::Sparse], false));
    }

    #[test]
    fn the_hottest_are_first() {
        let heat = |heat, block| Block { heat, ..block };
        let blocks = [
            block(1, ALL),
            heat(Some(3), block(2, 300)),
            heat(Some(9), block(3, 256)),
            heat(Some(0), block(4, ALL)),
        ];
        let choice = choose(&[area(r(0, 20))], &blocks, PAGE, BASE, u64::MAX);
        assert_eq!((starts(&choice), choice.by_heat), (vec![3, 2, 4, 1], true));
    }

    #[test]
    fn the_budget_of_memory_is_kept() {
        let blocks = [block(1, 500), block(2, 256), block(3, ALL), block(4, 502)];
        let choice = choose(&[area(r(0, 20))], &blocks, PAGE, BASE, 30 * 4096);
        assert_eq!((starts(&choice), whys(&choice)), (vec![3, 4, 1], vec![Why::OverBudget]));
        assert_eq!(choice.left[0].adds, 256 * 4096);
        assert_eq!(starts(&choose(&[area(r(0, 20))], &blocks, PAGE, BASE, 0)), [3]);
    }

    #[test]
    fn what_the_program_has_excluded_is_left() {
        let nth = |n: u64| area(r(4 * n, 4 * n + 4));
        let with = |n, attribute| Area { attributes: vec![Attribute::NoDump, attribute], ..nth(n) };
        let areas = [
            with(0, Attribute::NoHuge),
            with(1, Attribute::Watched),
            Area { prot: RWX, ..nth(2) },
            Area { prot: Prot::NONE, ..nth(3) },
            Area { shared: true, ..nth(4) },
            area(r(21, 23)),
            with(6, Attribute::Locked),
            with(7, Attribute::GrowsDown),
        ];
        let blocks: Vec<Block> = (0..16).map(|n| block(n, ALL)).collect();
        let choice = choose(&areas, &blocks, PAGE, BASE, u64::MAX);
        assert_eq!(starts(&choice), [12, 13, 14, 15]);
        let attribute = |a| Why::Attribute(a);
        let want = [
            attribute(Attribute::NoHuge),
            attribute(Attribute::Watched),
            Why::WritableCode,
            Why::NoAccess,
            Why::Shared,
            Why::Small,
        ];
        assert_eq!(whys(&choice), want);
    }

    #[test]
    fn huge_and_guarded_blocks_are_left() {
        let guarded = Pages { guarded: 1, ..block(0, ALL - 1).pages };
        let blocks = [Block { huge: true, ..block(0, ALL) }, Block { pages: guarded, ..block(1, ALL) }];
        let choice = choose(&[area(r(0, 4))], &blocks, PAGE, BASE, u64::MAX);
        assert_eq!((starts(&choice), whys(&choice)), (vec![], vec![Why::Huge, Why::Guarded]));
    }

    #[test]
    fn blocks_that_a_child_has_too_are_left() {
        let with = |n, own, others| {
            let pages = Pages { all: ALL, own, others, ..Pages::default() };
            Block { pages, ..block(n, 0) }
        };
        let blocks = [with(0, 200, 312), with(1, 0, 256), with(2, 256, 256), with(3, 100, 100)];
        let choice = choose(&[area(r(0, 8))], &blocks, PAGE, BASE, u64::MAX);
        assert_eq!((starts(&choice), whys(&choice)), (vec![2], vec![Why::NotOwn, Why::NotOwn, Why::Sparse]));
        assert_eq!(choice.blocks[0].adds, 256 * 4096);
    }

    #[test]
    fn pages_are_counted_by_their_entries() {
        const OWN: u64 = 1 << 63 | 1 << 56;
        let entries =
            [OWN | 7, OWN | 1 << 55, 1 << 63, OWN | 1 << 61, 1 << 62, 1 << 58 | 1 << 62, OWN | 1 << 57, 0];
        let pages = Pages::of(&entries);
        assert_eq!(pages, Pages { all: 8, own: 2, others: 2, swapped: 1, guarded: 2 });
        assert_eq!(pages.adds(BASE), 6 * 4096);
        assert_eq!(Pages::of(&[]), Pages::default());
    }

    #[test]
    fn a_result_says_what_happened() {
        let left = |range, why| Left { range, why, adds: 4096 };
        let collapsed = Collapsed {
            tried: 8 << 20,
            huge: 6 << 20,
            added: 12 << 10,
            cpu: Duration::from_micros(3210),
            errors: [("EAGAIN: Try again".to_string(), 1)].into(),
            stopped: Some((Stopped::Cpu(Duration::from_millis(20)), 4 << 20)),
            by_heat: false,
            left: vec![
                left(r(0, 4), Why::Sparse),
                left(r(4, 6), Why::OverBudget),
                left(r(8, 10), Why::Sparse),
            ],
        };
        let want = "\
6 MB of anonymous memory is on huge pages now, the densest first; it added 12 kB and took 3.2 ms of CPU time
2 MB more was tried and is not huge
  1 block: madvise(MADV_COLLAPSE): EAGAIN: Try again
4 MB was not tried: the 20 ms of CPU time that it may take are used up
6 MB is left: less than half of each of its huge pages would hold data
2 MB is left: it would add more memory than is allowed (it would add 4 kB)";
        assert_eq!(collapsed.to_string(), want);
    }

    fn areas() -> impl Strategy<Value = Vec<Area>> {
        let attributes = prop::sample::subsequence(
            &[Attribute::Locked, Attribute::NoHuge, Attribute::Watched, Attribute::NoDump][..],
            0..2,
        );
        let prot = prop::sample::select(&[Prot::RW, Prot::RW, Prot::R, RWX, Prot::NONE][..]);
        prop::collection::vec((0u64..4, 1u64..14, prot, prop::bool::weighted(0.1), attributes), 0..6)
            .prop_map(|steps| {
                let mut at = 0;
                let next = |(gap, len, prot, shared, attributes)| {
                    let start = at + gap;
                    at = start + len;
                    Area { range: r(start, at), prot, shared, attributes }
                };
                steps.into_iter().map(next).collect()
            })
    }

    fn blocks() -> impl Strategy<Value = Vec<Block>> {
        let pages =
            (0..=ALL, 0..=2u64, 0..=2u64, prop::bool::weighted(0.1)).prop_map(|(own, others, swapped, g)| {
                let own = own.saturating_sub(others + swapped + 1);
                Pages { all: ALL, own, others, swapped, guarded: u64::from(g) }
            });
        let one = (pages, prop::bool::weighted(0.2), prop::option::of(0u64..4));
        prop::collection::vec(one, 0..40).prop_map(|all| {
            let of = |(n, (pages, huge, heat)): (usize, _)| Block {
                start: Addr((n as u64) << 21),
                huge,
                pages,
                heat,
            };
            all.into_iter().enumerate().map(of).collect()
        })
    }

    proptest! {
        /// The budget is kept, nothing that is excluded is chosen, and each block with pages in an area
        /// that allows it is either chosen or left.
        #[test]
        fn sound(areas in areas(), mut blocks in blocks(), added in prop_oneof![0..1u64 << 23, Just(u64::MAX)]) {
            let choice = choose(&areas, &blocks, PAGE, BASE, added);
            let sum: u64 = choice.blocks.iter().map(|chosen| chosen.adds).sum();
            prop_assert!(sum <= added);
            let of = |range: Range| blocks.iter().find(|b| b.start == range.start).unwrap();
            for chosen in &choice.blocks {
                let block = of(chosen.range);
                prop_assert!(!block.huge && block.pages.guarded == 0);
                prop_assert!(2 * chosen.adds <= PAGE.bytes(), "its memory more than doubles");
                let area = areas.iter().find(|a| a.range.covers(chosen.range)).unwrap();
                prop_assert!(!area.shared && !area.prot.is_wx() && area.prot != Prot::NONE);
                prop_assert!(!area.attributes.iter().any(|a| a.forbids_huge()));
            }
            let rank = |chosen: &Chosen| (Reverse(of(chosen.range).heat), chosen.adds);
            prop_assert!(choice.blocks.is_sorted_by_key(rank));
            for left in choice.left.iter().filter(|left| left.why == Why::OverBudget) {
                prop_assert!(left.adds > added - sum, "it would still fit");
            }
            for block in blocks.iter().filter(|block| !block.pages.is_empty()) {
                let range = Range::sized(block.start, PAGE.bytes()).unwrap();
                let is_in_one = areas.iter().any(|a| a.range.covers(range));
                let chosen = choice.blocks.iter().filter(|c| c.range == range).count();
                let left = choice.left.iter().filter(|l| l.range.covers(range)).count();
                prop_assert_eq!(chosen + left, usize::from(is_in_one));
            }
            blocks.reverse();
            prop_assert_eq!(choose(&areas, &blocks, PAGE, BASE, added), choice);
        }
    }
}
