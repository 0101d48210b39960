// SPDX-License-Identifier: Apache-2.0
//! The choice of the blocks that are collapsed.

use super::area::Area;
use super::pages::Block;
use super::why::Why;
use crate::addr::{Addr, PageSize, Range};
use std::cmp::Reverse;
use std::collections::BTreeMap;
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
    use super::super::area::Sharing;
    use super::super::outcome::{Collapsed, PageTables, Stopped};
    use super::super::pages::Pages;
    use super::*;
    use crate::attribute::Attribute;
    use crate::maps::Prot;
    use proptest::prelude::*;

    const PAGE: PageSize = PageSize::MB2;
    const BASE: PageSize = PageSize::SMALL;
    const ALL: u64 = 512;
    /// Mostly the process's own.
    const SHARING: [Sharing; 7] = [
        Sharing::Denied,
        Sharing::Private,
        Sharing::Private,
        Sharing::Private,
        Sharing::Memory(0),
        Sharing::Memory(1 << 20),
        Sharing::File,
    ];
    const RWX: Prot = Prot { exec: true, ..Prot::RW };

    /// Returns a range, given in units of half a block.
    fn r(start: u64, end: u64) -> Range {
        Range::new(Addr(start << 20), Addr(end << 20)).unwrap()
    }

    fn area(range: Range) -> Area {
        Area { range, prot: Prot::RW, sharing: Sharing::Private, jit: false, attributes: vec![] }
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
            Area { sharing: Sharing::File, ..nth(4) },
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
    fn issue_32_3_writable_code_is_taken_only_as_such() {
        let code = Area { prot: RWX, ..area(r(0, 4)) };
        assert_eq!(code.refusal(PAGE), Some(Why::WritableCode));
        assert_eq!(Area { jit: true, ..code }.refusal(PAGE), None);
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
            shared: 0,
            tables: None,
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
        let tables = Some(PageTables { processes: 74, before: 145 << 20, after: 13 << 20 });
        let shared = Collapsed {
            shared: 6 << 20,
            tables,
            stopped: None,
            errors: [].into(),
            left: vec![],
            ..collapsed
        };
        let want = "\
6 MB of shared memory is on huge pages now, the densest first; it added 12 kB and took 3.2 ms of CPU time
the page tables of the 74 processes that share it had 145 MB before and have 13 MB now
2 MB more was tried and is not huge";
        assert_eq!(shared.to_string(), want);
        let mixed = Collapsed { shared: 2 << 20, tables: None, tried: 6 << 20, ..shared };
        let want = "\
6 MB of memory is on huge pages now, the densest first; it added 12 kB and took 3.2 ms of CPU time
2 MB of it is shared memory";
        assert_eq!(mixed.to_string(), want);
    }

    #[test]
    fn shared_memory_is_collapsed_where_its_address_matches_its_offset() {
        let shared = |range, offset| Area { sharing: Sharing::Memory(offset), ..area(range) };
        let areas = [shared(r(0, 4), 1 << 30), shared(r(4, 9), 1 << 20), shared(r(11, 15), 3 << 20)];
        let blocks: Vec<Block> = (0..8).map(|n| block(n, ALL)).collect();
        let choice = choose(&areas, &blocks, PAGE, BASE, u64::MAX);
        assert_eq!((starts(&choice), whys(&choice)), (vec![0, 1, 6], vec![Why::NotCongruent]));
    }

    #[test]
    fn what_others_have_touched_of_shared_memory_is_not_added() {
        const FILE: u64 = 1 << 63 | 1 << 61;
        let entries: Vec<u64> = [FILE, FILE | 1 << 56, 0, 1 << 62].into();
        let seen = Pages::of(&entries).of_shared(None);
        assert_eq!(seen, Pages { all: 4, own: 2, others: 0, swapped: 1, guarded: 0 });
        // The page in swap space is in the file too.
        let of_file = Pages::of(&entries).of_shared(Some(4));
        assert_eq!((of_file.own, of_file.swapped, of_file.adds(BASE)), (4, 0, 0));
        let guarded = Pages::of(&[1 << 58, 0]).of_shared(Some(2));
        assert_eq!((guarded.own, guarded.refusal()), (1, Some(Why::Guarded)));
    }

    fn areas() -> impl Strategy<Value = Vec<Area>> {
        let attributes = prop::sample::subsequence(
            &[Attribute::Locked, Attribute::NoHuge, Attribute::Watched, Attribute::NoDump][..],
            0..2,
        );
        let prot = prop::sample::select(&[Prot::RW, Prot::RW, Prot::R, RWX, Prot::NONE][..]);
        let sharing = prop::sample::select(&SHARING[..]);
        prop::collection::vec((0u64..4, 1u64..14, prot, sharing, any::<bool>(), attributes), 0..6).prop_map(
            |steps| {
                let mut at = 0;
                let next = |(gap, len, prot, sharing, jit, attributes)| {
                    let start = at + gap;
                    at = start + len;
                    Area { range: r(start, at), prot, sharing, jit, attributes }
                };
                steps.into_iter().map(next).collect()
            },
        )
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
                let fits = match area.sharing {
                    Sharing::Private => true,
                    Sharing::Memory(offset) => area.range.start.0.abs_diff(offset) % PAGE.bytes() == 0,
                    Sharing::Denied | Sharing::File => false,
                };
                prop_assert!(fits && (area.jit || !area.prot.is_wx()) && area.prot != Prot::NONE);
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
