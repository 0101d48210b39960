// SPDX-License-Identifier: Apache-2.0
//! One process, changed in one way for each reason and each choice.

use super::*;
use crate::addr::{Addr, PageSize};
use crate::attribute::Attribute;
use crate::elf::{self, Segment};
use crate::maps::{FileId, Mapping, Prot};
use crate::policy::{Backing, Copies, ObjectFilter, PageChoice};
use crate::skip::Reason;
use crate::snapshot::{Machine, Object, Pool, StoredCopy, ThpOff};

mod data;
mod limits;
mod pool_file;
mod stored;

pub(crate) const MB: u64 = 1 << 20;
pub(super) const PAGE: PageSize = PageSize::MB2;
const FILE: FileId = FileId { major: 8, minor: 1, inode: 7 };
const TEXT: Range = r(2 * MB, 12 * MB);

pub(crate) const fn r(start: u64, end: u64) -> Range {
    Range { start: Addr(start), end: Addr(end) }
}

fn gb1() -> PageSize {
    PageSize::new(1 << 30).unwrap()
}

pub(super) fn mapping(range: Range, prot: Prot) -> Mapping {
    Mapping { range, prot, shared: false, offset: 0, file: FILE, path: "/bin/o".into(), deleted: false }
}

pub(crate) fn anonymous(range: Range, name: &str) -> Mapping {
    Mapping { file: FileId::default(), path: name.into(), ..mapping(range, Prot::RW) }
}

fn pool(page: PageSize, free: u64) -> Pool {
    Pool { page, total: free, free, reserved: 0, surplus: 0, overcommit: 0 }
}

/// Returns a program with text in `range`, far below some other memory.
pub(crate) fn program(range: Range) -> Snapshot {
    let segment = Segment {
        prot: Prot::RX,
        vaddr: range.start.0,
        memsz: range.len(),
        filesz: range.len(),
        offset: 0,
        align: 4096,
    };
    let headers = elf::Headers {
        machine: elf::Machine::X86_64,
        relocatable: false,
        entry: range.start.0,
        segments: vec![segment],
        relro: None,
        interp: None,
        dynamic: None,
        notes: vec![],
    };
    let path = "/bin/o".into();
    let object =
        Object { path, file: FILE, build_id: None, bias: 0, headers, executable: true, textrel: false };
    let other = anonymous(r(1 << 46, (1 << 46) + MB), "");
    let machine = Machine {
        base_page: PageSize::SMALL,
        thp_page: Some(PAGE),
        folios: Vec::new(),
        thp_off: None,
        allows_thp: false,
        pools: vec![pool(gb1(), 0), pool(PAGE, 100)],
        moves_hugetlb: true,
        memory_left: 1 << 30,
        memory_limit: None,
    };
    let mappings = vec![mapping(range, Prot::RX), other];
    Snapshot { brk: Some(Addr(1 << 45)), ..Snapshot::new(vec![object], mappings, machine) }
}

fn on(backings: &[Backing]) -> Policy {
    Policy { backings: backings.to_vec(), ..Policy::default() }
}

/// Checks that nothing is lifted, and all of the first mapping skipped for one reason, which it returns.
#[track_caller]
fn refused(snapshot: &Snapshot, policy: &Policy) -> Reason {
    let plan = plan(snapshot, policy);
    assert!(plan.spans.is_empty(), "{:?}", plan.spans);
    let [skip] = &plan.skips[..] else { panic!("{:?}", plan.skips) };
    assert_eq!(skip.range, snapshot.mappings[0].range);
    skip.reason.clone()
}

fn spans(plan: &Plan) -> Vec<(Range, Vec<Backing>)> {
    let candidates = |s: &Span| s.attempts.iter().map(|a| a.backing).collect();
    plan.spans.iter().map(|s| (s.range, candidates(s))).collect()
}

fn skips(plan: &Plan) -> Vec<(Range, Reason)> {
    plan.skips.iter().map(|s| (s.range, s.reason.clone())).collect()
}

#[test]
fn both_backings_in_the_order_asked_for() {
    let (hugetlb, thp) = (Backing::Hugetlb, Backing::Thp);
    let plan = |backings: &[Backing]| plan(&program(TEXT), &on(backings));
    assert_eq!(spans(&plan(&[hugetlb, thp])), vec![(TEXT, vec![hugetlb, thp])]);
    assert_eq!(spans(&plan(&[thp, hugetlb])), vec![(TEXT, vec![thp, hugetlb])]);
    assert_eq!(spans(&plan(&[thp, thp])), vec![(TEXT, vec![thp])]);
    assert!(plan(&[hugetlb, thp]).skips.is_empty());
}

#[test]
fn part_not_asked() {
    let policy = Policy { parts: vec![Part::Rodata], ..Policy::default() };
    assert_eq!(refused(&program(TEXT), &policy), Reason::PartNotAsked(Part::Text));
}

#[test]
fn only_the_wanted_addresses_are_lifted() {
    let within = Some(r(TEXT.start.0 + MB, TEXT.end.0 - 4096));
    let plan = plan(&program(TEXT), &Policy { within, ..on(&[Backing::Thp]) });
    let lifted = r(TEXT.start.0 + 2 * MB, TEXT.end.0 - 2 * MB);
    assert_eq!(spans(&plan), vec![(lifted, vec![Backing::Thp])]);
    let [before, edge, last, after] = &skips(&plan)[..] else { panic!("{:?}", plan.skips) };
    assert_eq!(before, &(r(TEXT.start.0, TEXT.start.0 + MB), Reason::Excluded));
    assert_eq!(edge.0, r(TEXT.start.0 + MB, lifted.start.0));
    assert_eq!(last.0, r(lifted.end.0, TEXT.end.0 - 4096));
    assert_eq!(after, &(r(TEXT.end.0 - 4096, TEXT.end.0), Reason::Excluded));
    // Without an overlap nothing is lifted.
    let elsewhere = Policy { within: Some(r(0, 4096)), ..on(&[Backing::Thp]) };
    assert_eq!(refused(&program(TEXT), &elsewhere), Reason::Excluded);
}

#[test]
fn excluded() {
    let objects = ObjectFilter::new(&[], &["o".into()]).unwrap();
    assert_eq!(refused(&program(TEXT), &Policy { objects, ..Policy::default() }), Reason::Excluded);
}

#[test]
fn too_small() {
    let small = r(2 * MB, 3 * MB);
    assert_eq!(refused(&program(small), &Policy::default()), Reason::TooSmall(PAGE));
    // The same holds when no backing works at all.
    assert_eq!(refused(&program(small), &on(&[])), Reason::TooSmall(PAGE));
}

#[test]
fn not_aligned_beside_nothing() {
    let odd = r(3 * MB, 9 * MB);
    let plan = super::plan(&program(odd), &Policy::default());
    assert_eq!(plan.spans[0].range, r(4 * MB, 8 * MB));
    let not = Reason::NotAligned(PAGE);
    assert_eq!(skips(&plan), vec![(r(3 * MB, 4 * MB), not.clone()), (r(8 * MB, 9 * MB), not)]);
    // It is large enough but holds no whole page: not "too small".
    let across = super::plan(&program(r(3 * MB, 5 * MB)), &Policy::default());
    assert!(across.spans.is_empty());
    assert!(skips(&across).iter().all(|(_, reason)| *reason == Reason::NotAligned(PAGE)), "{across:?}");
}

#[test]
fn neighbour_of_other_protection() {
    let mut snapshot = program(r(2 * MB, 7 * MB));
    snapshot.mappings.insert(1, mapping(r(7 * MB, 8 * MB), Prot::RW));
    let plan = plan(&snapshot, &Policy::default());
    assert_eq!(plan.spans[0].range, r(2 * MB, 6 * MB));
    assert_eq!(skips(&plan), vec![(r(6 * MB, 7 * MB), Reason::Neighbour(PAGE))]);
}

#[test]
fn writable_code() {
    let wx = Prot { read: true, write: true, exec: true, bti: false };
    let mut snapshot = program(TEXT);
    snapshot.mappings[0].prot = wx;
    assert_eq!(refused(&snapshot, &Policy::default()), Reason::WritableCode);
    // It is not writable now, but its segment says that it will be.
    let mut snapshot = program(TEXT);
    snapshot.objects[0].headers.segments[0].prot = wx;
    assert_eq!(refused(&snapshot, &Policy::default()), Reason::WritableCode);
}

#[test]
fn protection_changed_since() {
    for prot in [Prot::R, Prot::RW, Prot::NONE, Prot { read: false, ..Prot::RX }] {
        let mut snapshot = program(TEXT);
        snapshot.mappings[0].prot = prot;
        assert_eq!(refused(&snapshot, &Policy::default()), Reason::Protection, "text, {prot}");
    }
    for prot in [Prot::RX, Prot::RW, Prot::NONE] {
        let mut snapshot = program(TEXT);
        snapshot.objects[0].headers.segments[0].prot = Prot::R;
        snapshot.mappings[0].prot = prot;
        assert_eq!(refused(&snapshot, &Policy::default()), Reason::Protection, "rodata, {prot}");
    }
}

#[test]
fn code_with_a_breakpoint() {
    let mut snapshot = program(r(0, 8 * MB));
    snapshot.patched = vec![r(5 * MB, 5 * MB + 4096)];
    assert_eq!(refused(&snapshot, &on(&[Backing::Thp])), Reason::Patched);
}

/// The pages of the pool that the first object does not get are the second one's, whose code was written to as well.
#[test]
fn code_with_a_breakpoint_in_the_second_plan() {
    let distance = 1 << 30;
    let mut snapshot = program(TEXT);
    snapshot.machine.pools = vec![pool(PAGE, 2)];
    let file = FileId { inode: FILE.inode + 1, ..FILE };
    let object = Object { file, bias: distance, executable: false, ..snapshot.objects[0].clone() };
    let up = r(TEXT.start.0 + distance, TEXT.end.0 + distance);
    snapshot.objects.push(object);
    snapshot.mappings.insert(1, Mapping { file, ..mapping(up, Prot::RX) });
    let find_written = |snapshot: &Snapshot, lifted: &[Range]| {
        let code = snapshot.mappings.iter().map(|m| m.range).filter(|m| [TEXT, up].contains(m));
        let overlaps = |m: &Range| lifted.iter().any(|range| range.intersect(*m).is_some());
        Ok::<_, ()>(code.filter(overlaps).collect())
    };
    let lifted =
        |snapshot: &Snapshot| plan(snapshot, &on(&[Backing::Hugetlb])).spans.first().map(|s| s.object);
    assert_eq!(lifted(&snapshot), Some(0));
    let mut first_known = snapshot.clone();
    first_known.patched = vec![TEXT];
    assert_eq!(lifted(&first_known), Some(1));
    let plan = plan_unwritten(&mut snapshot, &on(&[Backing::Hugetlb]), find_written).unwrap();
    assert_eq!((plan.spans, snapshot.patched), (vec![], vec![TEXT, up]));
}

#[test]
fn branch_protection_is_no_obstacle() {
    let mut snapshot = program(r(0, 8 * MB));
    snapshot.mappings[0].prot.bti = true;
    let plan = plan(&snapshot, &on(&[Backing::Thp]));
    assert!(plan.spans.len() == 1 && plan.spans[0].prot.bti, "{plan:?}");
}

#[test]
fn text_relocations() {
    let mut snapshot = program(TEXT);
    snapshot.objects[0].textrel = true;
    assert_eq!(refused(&snapshot, &Policy::default()), Reason::TextRelocations);
}

#[test]
fn pool_short() {
    let mut snapshot = program(TEXT);
    snapshot.machine.pools = vec![pool(PAGE, 2)];
    let plan_on = |backings: &[Backing]| plan(&snapshot, &on(backings));
    let (head, rest) = (r(2 * MB, 6 * MB), r(6 * MB, 12 * MB));
    let short = Reason::PoolShort { page: PAGE, free: 2, need: 5, total: 2 };
    let alone = plan_on(&[Backing::Hugetlb]);
    assert_eq!(spans(&alone), vec![(head, vec![Backing::Hugetlb])]);
    assert_eq!(skips(&alone), vec![(rest, short.clone())]);
    assert!(short.hint().unwrap().starts_with("hugelift pool set 2M=5"), "{:?}", short.hint());
    // The pool runs out in the middle of the span: THP backs the rest.
    let both = plan_on(&[Backing::Hugetlb, Backing::Thp]);
    let candidates = vec![Backing::Hugetlb, Backing::Thp];
    assert_eq!(spans(&both), vec![(head, candidates), (rest, vec![Backing::Thp])]);
    assert!(both.skips.is_empty());
}

#[test]
fn surplus_pages_cost_memory() {
    let mut snapshot = program(TEXT);
    snapshot.machine.pools = vec![Pool { overcommit: u64::MAX, ..pool(PAGE, 1) }];
    snapshot.machine.memory_left = 5 * MB;
    let plan = plan(&snapshot, &on(&[Backing::Hugetlb]));
    assert_eq!(spans(&plan), vec![(r(2 * MB, 8 * MB), vec![Backing::Hugetlb])]);
    assert_eq!(plan.skips[0].reason, Reason::PoolShort { page: PAGE, free: 3, need: 5, total: 1 });
}

#[test]
fn no_pool() {
    let mut snapshot = program(TEXT);
    let policy =
        Policy { page: PageChoice::Only(PageSize::new(64 << 10).unwrap()), ..on(&[Backing::Hugetlb]) };
    assert_eq!(refused(&snapshot, &policy), Reason::NoPool(policy.page.named().unwrap()));
    snapshot.machine.pools.clear();
    assert_eq!(refused(&snapshot, &on(&[Backing::Hugetlb])), Reason::NoPool(PAGE));
}

#[test]
fn no_such_page() {
    let big = r(0, 2 << 30);
    let policy = Policy { page: PageChoice::Only(gb1()), ..on(&[Backing::Thp]) };
    assert_eq!(refused(&program(big), &policy), Reason::NoSuchPage(Backing::Thp, gb1()));
}

/// 1 GB in the middle, 2 MB around it, 64 kB at the edges; the pool first, then THP.
#[test]
fn sizes_are_mixed() {
    const GB: u64 = 1 << 30;
    let small = PageSize::new(64 << 10).unwrap();
    let mut snapshot = program(r(GB - 4 * MB - (96 << 10), 3 * GB + 2 * MB + (64 << 10)));
    snapshot.machine.memory_left = 8 * GB;
    snapshot.machine.pools = vec![pool(gb1(), 1), pool(PAGE, 3)];
    let sizes = |snapshot: &Snapshot| {
        let policy = Policy { page: PageChoice::Mixed, ..on(&[Backing::Hugetlb, Backing::Thp]) };
        let plan = plan(snapshot, &policy);
        let first = |s: &Span| (s.range, s.attempts[0].backing, s.attempts[0].page);
        (plan.spans.iter().map(first).collect::<Vec<_>>(), plan)
    };
    let (without, _) = sizes(&snapshot);
    let expected = [
        (r(GB - 4 * MB, GB), Backing::Hugetlb, PAGE),
        (r(GB, 2 * GB), Backing::Hugetlb, gb1()),
        (r(2 * GB, 2 * GB + 2 * MB), Backing::Hugetlb, PAGE),
        (r(2 * GB + 2 * MB, 3 * GB + 2 * MB), Backing::Thp, PAGE),
    ];
    assert_eq!(without, expected);
    snapshot.machine.folios = vec![small];
    let (with, plan) = sizes(&snapshot);
    let edges = [
        (r(GB - 4 * MB - (64 << 10), GB - 4 * MB), Backing::Thp, small),
        (r(3 * GB + 2 * MB, 3 * GB + 2 * MB + (64 << 10)), Backing::Thp, small),
    ];
    assert_eq!((with[0], with[5]), (edges[0], edges[1]));
    assert_eq!(with[1..5], expected);
    assert!(plan.spans[0].attempts[0].is_unseen() && !plan.spans[1].attempts[0].is_unseen());
    let left: u64 = plan.skips.iter().map(|s| s.range.len()).sum();
    assert_eq!(left, 32 << 10, "{:?}", plan.skips);
}

#[test]
fn what_a_program_writes_to_gets_no_huge_pages_that_it_has_forbidden() {
    let mut snapshot = program(r(0, 4 * MB));
    snapshot.machine.allows_thp = true;
    assert_eq!(plan(&snapshot, &on(&[Backing::Thp])).spans.len(), 1);
    let data = |mut snapshot: Snapshot| {
        let policy = Policy { parts: vec![Part::Data], ..Policy::default() };
        snapshot.objects[0].headers.segments[0].prot = Prot::RW;
        snapshot.mappings[0].prot = Prot::RW;
        plan(&snapshot, &policy)
    };
    let planned = data(snapshot.clone());
    assert_eq!(planned.spans, []);
    assert!(planned.skips.iter().any(|skip| skip.reason == Reason::ThpOff(ThpOff::Process)), "{planned:?}");
    snapshot.machine.allows_thp = false;
    assert_eq!(data(snapshot).spans.len(), 1);
}

#[test]
fn thp_off_or_absent() {
    let mut snapshot = program(TEXT);
    for off in [ThpOff::Never, ThpOff::Process] {
        snapshot.machine.thp_off = Some(off);
        assert_eq!(refused(&snapshot, &on(&[Backing::Thp])), Reason::ThpOff(off));
    }
    snapshot.machine.thp_page = None;
    assert_eq!(refused(&snapshot, &on(&[Backing::Thp])), Reason::NoThp);
    let policy = Policy { page: PageChoice::Only(PAGE), ..on(&[Backing::Thp]) };
    assert_eq!(refused(&snapshot, &policy), Reason::NoThp);
}

#[test]
fn memory_limit() {
    let mut snapshot = program(TEXT);
    snapshot.machine.memory_left = 9 * MB;
    let limit = Reason::MemoryLimit { left: 9 * MB, need: 10 * MB };
    assert_eq!(refused(&snapshot, &on(&[Backing::Thp])), limit);
    // The pool's pages exist already; falling back to THP would exceed the limit.
    let both = plan(&snapshot, &on(&[Backing::Hugetlb, Backing::Thp]));
    assert_eq!(spans(&both), vec![(TEXT, vec![Backing::Hugetlb])]);
    let other = plan(&snapshot, &on(&[Backing::Thp, Backing::Hugetlb]));
    assert_eq!(spans(&other), vec![(TEXT, vec![Backing::Hugetlb])]);
}

#[test]
fn no_room_for_a_copy() {
    let mut snapshot = program(TEXT);
    // Two gaps of 9 MB, and nothing above.
    let low = [mapping(r(21 * MB, 22 * MB), Prot::R), mapping(r(31 * MB, 32 * MB), Prot::R)];
    snapshot.mappings.splice(1.., low);
    assert_eq!(refused(&snapshot, &Policy::default()), Reason::NoAddressSpace(10 * MB));
    // The kernel's half of the address space is no gap.
    snapshot.mappings.push(mapping(r(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000), Prot::R));
    assert_eq!(refused(&snapshot, &Policy::default()), Reason::NoAddressSpace(10 * MB));
}

#[test]
fn a_gap_that_is_not_aligned_is_used() {
    let mut snapshot = program(r(2 * MB, 4 * MB));
    let (low, high) = (r(5 * MB - 4096, 5 * MB), r(8 * MB, 9 * MB));
    snapshot.mappings.splice(1.., [mapping(low, Prot::R), mapping(high, Prot::R)]);
    let plan = plan(&snapshot, &on(&[Backing::Hugetlb]));
    let first = plan.spans[0].attempts[0].steps[0];
    assert_eq!(first, Step::Map { range: r(6 * MB, 8 * MB), hugetlb: Some(PAGE) });
}

#[test]
fn not_lifted() {
    assert_eq!(refused(&program(TEXT), &on(&[])), Reason::NotLifted);
    assert_eq!(refused(&program(TEXT), &on(&[Backing::Shared])), Reason::NotLifted);
}

#[test]
fn what_the_page_cache_has_is_not_copied() {
    let mut snapshot = program(r(0, 40 * MB));
    let cached = on(&[Backing::Pagecache]);
    assert_eq!(refused(&snapshot, &cached), Reason::NotPrimed);
    // All of it is lifted, without memory or address space for a copy.
    snapshot.cached = vec![r(0, 40 * MB)];
    snapshot.machine.memory_left = 0;
    let all = plan(&snapshot, &cached);
    let (range, page) = (r(0, 40 * MB), PageSize::MB2);
    assert_eq!(all.spans[0].attempts[0].steps, [Step::FaultIn { range, page }, Step::Verify { range }]);
    assert!(all.spans.len() == 1 && all.skips.is_empty(), "{all:?}");
    // A hole in it is skipped, and is not worth a message.
    snapshot.cached = vec![r(0, 10 * MB), r(14 * MB, 40 * MB)];
    let most = plan(&snapshot, &Policy::default());
    assert_eq!(most.spans.iter().map(|s| s.range).collect::<Vec<_>>(), snapshot.cached);
    assert!(most.spans.iter().all(|s| s.attempts[0].backing == Backing::Pagecache));
    assert_eq!(most.skips[0].reason, Reason::SmallFolios);
    assert!(!most.skips[0].reason.is_remediable());
    // Too little of it counts as nothing.
    snapshot.cached.truncate(1);
    assert_eq!(refused(&snapshot, &cached), Reason::NotPrimed);
    // So does what huge page table entries cannot map.
    snapshot.cached = vec![r(0, 40 * MB)];
    snapshot.mappings[0].offset = 4096;
    assert_eq!(refused(&snapshot, &cached), Reason::NotCongruent(PAGE));
    assert_eq!(plan(&snapshot, &on(&[Backing::Pagecache, Backing::Hugetlb])).spans[0].attempts.len(), 1);
}

#[test]
fn what_a_large_page_leaves_goes_to_smaller_pages() {
    const GB: u64 = 1 << 30;
    let mut snapshot = program(r(GB - 2 * MB, 3 * GB));
    snapshot.machine.memory_left = 2 * GB;
    snapshot.machine.pools = vec![pool(gb1(), 1)];
    let (hugetlb, thp) = (Backing::Hugetlb, Backing::Thp);
    let plan = plan(&snapshot, &on(&[hugetlb, thp]));
    // THP backs what the pool has no page for, and the edge. It is not granted as a fallback: too
    // little memory is left.
    let expected =
        vec![(r(GB - 2 * MB, GB), vec![thp]), (r(GB, 2 * GB), vec![hugetlb]), (r(2 * GB, 3 * GB), vec![thp])];
    assert_eq!(spans(&plan), expected);
    assert!(plan.skips.is_empty());
    // The text is too small for the only pool.
    let mut snapshot = program(TEXT);
    snapshot.machine.pools = vec![pool(gb1(), 1)];
    assert_eq!(spans(&super::plan(&snapshot, &on(&[hugetlb, thp]))), vec![(TEXT, vec![thp])]);
}

#[test]
fn the_usual_page_is_what_a_pmd_maps_unless_a_smaller_pool_was_filled() {
    let kb64 = PageSize::new(64 << 10).unwrap();
    let mb512 = PageSize::new(512 * MB).unwrap();
    let mut machine = program(TEXT).machine;
    let mut usual = |thp_page, pools: &[(PageSize, u64)]| {
        machine.thp_page = thp_page;
        machine.pools = pools.iter().map(|&(page, free)| pool(page, free)).collect();
        usual_page(&machine, Backing::Hugetlb)
    };
    assert_eq!(usual(Some(PAGE), &[(gb1(), 5), (PAGE, 0)]), Some(PAGE));
    assert_eq!(usual(Some(PAGE), &[(PAGE, 5), (kb64, 5)]), Some(PAGE));
    assert_eq!(usual(Some(PAGE), &[(PAGE, 0), (kb64, 5)]), Some(kb64));
    assert_eq!(usual(Some(mb512), &[(mb512, 0), (PAGE, 9)]), Some(PAGE));
    assert_eq!(usual(Some(mb512), &[(mb512, 0), (PAGE, 0)]), Some(mb512));
    assert_eq!(usual(None, &[(gb1(), 0), (PAGE, 0)]), Some(PAGE));
    assert_eq!(usual(None, &[]), None);
}

/// Returns a program with data at 16 MB: 4 MB from the file, then 6 MB of `.bss`, then a heap.
pub(crate) fn writable() -> Snapshot {
    let mut snapshot = program(TEXT);
    let segments = &mut snapshot.objects[0].headers.segments;
    let data = Segment {
        prot: Prot::RW,
        vaddr: 16 * MB,
        memsz: 10 * MB,
        filesz: 4 * MB,
        offset: 16 * MB,
        align: 4096,
    };
    segments.push(data);
    let mappings = [
        mapping(r(16 * MB, 20 * MB), Prot::RW),
        anonymous(r(20 * MB, 26 * MB), ""),
        anonymous(r(26 * MB, 31 * MB), "[heap]"),
    ];
    snapshot.mappings.splice(1..1, mappings);
    snapshot
}

fn data_on(backings: &[Backing]) -> Policy {
    let parts = vec![Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack];
    Policy { parts, data_backings: backings.to_vec(), ..Policy::default() }
}
