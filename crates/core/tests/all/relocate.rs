// SPDX-License-Identifier: Apache-2.0
//! Moves executables in the model: real layouts, at every base, with every call failing once.

use crate::common::{machine, maps, snapshot};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{Headers, Machine, Segment};
use hugelift_core::maps::{FileId, Mapping, Prot, parse_maps};
use hugelift_core::model::{Content, Model, Start};
use hugelift_core::policy::{Backing, Policy, SpanChoice};
use hugelift_core::relocate::base::{Base, Bases, Sizes, congruent_residue, shared_base};
use hugelift_core::relocate::{Image, Layout, Move, NotMoved, carry_out};
use hugelift_core::snapshot::{Object, Part, Snapshot};
use hugelift_core::target::Fault;
use proptest::prelude::*;

const BOTH: &[Part] = &[Part::Text, Part::Rodata];
const SMALL: PageSize = PageSize::SMALL;
const HUGE: PageSize = PageSize::MB2;
const FILE: FileId = FileId { major: 8, minor: 1, inode: 77 };
/// The lowest address at which the kernel puts a PIE on x86-64.
const ET_DYN_BASE: u64 = 0x5555_5555_4000;

/// Returns headers as a linker lays them out: headers, text, constants, data. At each segment the distance
/// between address and offset grows by `skew` (lld).
fn headers(text: u64, rodata: u64, skew: u64, bss: u64, relocatable: bool) -> Headers {
    let mut segments = Vec::new();
    let mut offset = 0;
    for (i, (prot, size)) in
        [(Prot::R, 0x1234), (Prot::RX, text), (Prot::R, rodata), (Prot::RW, 0x2345)].into_iter().enumerate()
    {
        let vaddr = offset + skew * i as u64;
        let memsz = if prot.write { size + bss } else { size };
        segments.push(Segment { prot, vaddr, memsz, filesz: size, offset, align: 4096 });
        offset = (offset + size).next_multiple_of(4096);
    }
    Headers {
        machine: Machine::X86_64,
        relocatable,
        entry: segments[1].vaddr + 64,
        segments,
        relro: None,
        interp: None,
        dynamic: None,
        notes: vec![],
    }
}

/// Returns the mappings that execve(2) makes at `base`, with a stack and `others`.
fn mapped(headers: &Headers, base: u64, others: &[Range]) -> Vec<Mapping> {
    let line = |range, prot, offset, file, path: &str| Mapping {
        range,
        prot,
        shared: false,
        offset,
        file,
        path: path.into(),
        deleted: false,
    };
    let mut out = Vec::new();
    for s in &headers.segments {
        let at = |vaddr: u64| Addr(base + vaddr);
        let start = at(s.vaddr).align_down(SMALL);
        let end = at(s.vaddr + s.filesz).align_up(SMALL).unwrap();
        out.push(line(Range { start, end }, s.prot, s.offset & !4095, FILE, "/bin/pie"));
        let last = at(s.vaddr + s.memsz).align_up(SMALL).unwrap();
        if last > end {
            out.push(line(Range { start: end, end: last }, s.prot, 0, FileId::default(), ""));
        }
    }
    let stack = Range { start: Addr(0x7fff_0000_0000), end: Addr(0x7fff_0010_0000) };
    for other in others.iter().chain([&stack]) {
        out.push(line(*other, Prot::RW, 0, FileId::default(), "[stack]"));
    }
    out.sort_by_key(|m| m.range.start);
    out
}

fn layout(image: &Image, gap: u64) -> Layout {
    let (start, end) = (image.range.start.0, image.range.end.0);
    Layout {
        start_code: start,
        end_code: start + 0x10_0000,
        start_data: end - 0x4000,
        end_data: end - 0x2000,
        start_brk: end + gap,
        brk: end + gap,
        start_stack: 0x7fff_0000_8000,
        auxv: vec![3, start + 64, 6, 4096, 9, image.headers.entry + image.bias, 7, 0x7000_0000_0000, 0, 0],
        ..Layout::default()
    }
}

struct Case {
    image: Image,
    plan: Move,
    layout: Layout,
    model: Model,
}

/// Returns the base at which address and offset agree; all programs here have one.
fn congruent(headers: &Headers) -> Base {
    Base { residue: congruent_residue(headers, BOTH, HUGE, SMALL).unwrap(), page: HUGE }
}

static SIZES: Sizes = Sizes { base: SMALL, huge: Some(HUGE), folios: vec![] };

fn copying(parts: &[Part]) -> Policy {
    Policy { parts: parts.to_vec(), backings: vec![Backing::Thp], ..Policy::default() }
}

/// Returns the base with most whole huge pages.
fn fullest(headers: &Headers, policy: &Policy) -> Option<Base> {
    Bases::new(headers, "/bin/pie".as_ref(), policy, &SIZES).best()
}

fn case(headers: Headers, to: Base, base: u64, gap: u64) -> Case {
    let mappings = mapped(&headers, base, &[]);
    let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL).unwrap();
    let plan = image.plan(&mappings, to, SMALL).unwrap();
    let object = Object {
        path: "/bin/pie".into(),
        file: FILE,
        build_id: None,
        bias: base,
        headers,
        executable: true,
        textrel: false,
    };
    let snapshot = Snapshot::new(vec![object], mappings, machine());
    let mut model = Model::new(&snapshot);
    let layout = layout(&image, gap);
    let entry_pointers = layout.entry_pointers().unwrap();
    let cleared = plan.cleared.clone();
    model.begin(Start { entry_pointers, layout: layout.clone(), image: image.pieces.clone(), cleared });
    Case { image, plan, layout, model }
}

/// Returns the contents within `range`, by distance from its start.
fn shown(model: &Model, range: Range) -> Vec<(u64, u64, Prot, Content)> {
    let all = model.visible().into_iter().filter(|(r, ..)| r.intersect(range).is_some());
    all.map(|(r, prot, content)| (r.start.0.wrapping_sub(range.start.0), r.len(), prot, content)).collect()
}

impl Case {
    fn new_range(&self) -> Range {
        self.image.range.down(self.plan.distance)
    }

    /// Returns whether the image is completely at its new place and all pointers to it agree; panics if
    /// it is neither there nor where it was.
    fn is_moved(&self, model: &Model, what: &str) -> bool {
        let distance = self.plan.distance;
        let before = shown(&self.model, self.image.range);
        let (old, new) = (self.layout.entry_pointers().unwrap(), model.start.entry_pointers);
        let in_kernel = model.start.layout.entry_pointers().unwrap();
        assert_eq!(new, in_kernel, "{what}: the stack and the kernel differ");
        if new == old {
            assert_eq!(shown(model, self.image.range), before, "{what}");
            assert_eq!(model.start.layout, self.layout, "{what}");
            return false;
        }
        assert_eq!((new.phdr + distance, new.entry + distance), (old.phdr, old.entry), "{what}");
        assert_eq!(shown(model, self.new_range()), before, "{what}");
        assert_eq!(model.start.layout.start_code + distance, self.layout.start_code, "{what}");
        assert_eq!(model.start.layout.end_data + distance, self.layout.end_data, "{what}");
        assert_eq!(model.start.layout.aux(7), self.layout.aux(7), "{what}: the loader stays");
        true
    }
}

fn cases() -> Vec<Case> {
    let base = ET_DYN_BASE + 0x1234_5000;
    let programs = [
        (headers(0x60_0000, 0x40_0000, 0, 0x30_0000, true), 0x123_4000),
        (headers(0x60_0000, 0x40_0000, 0x1000, 0, true), 0),
        (headers(0x260_0000, 0x1000, 0x1000, 0x10, true), 1 << 40),
        // This one is too small for the page cache: only a copy can be huge.
        (headers(0x28_d809, 0xc_4df0, 0, 0x2_6568, true), 0x123_4000),
    ];
    let for_cache = programs.iter().take(3).map(|(h, gap)| case(h.clone(), congruent(h), base, *gap));
    let for_copies =
        programs.iter().map(|(h, gap)| case(h.clone(), fullest(h, &copying(BOTH)).unwrap(), base, *gap));
    for_cache.chain(for_copies).collect()
}

#[test]
fn the_image_is_moved_whole() {
    for case in cases() {
        let mut model = case.model.clone();
        assert_eq!(carry_out(&mut model, &case.plan, &case.layout), Ok(vec![]));
        assert!(case.is_moved(&model, "no fault"));
        assert!(shown(&model, case.image.range).is_empty(), "the old image is still there");
        assert!(!model.saw_wx);
        // The heap keeps its distance, if the kernel has put it behind the image.
        let heap = case.layout.start_brk;
        let follows = heap - case.image.range.end.0 < 1 << 31;
        let want = if follows { heap - case.plan.distance } else { heap };
        assert_eq!((model.start.layout.start_brk, model.start.layout.brk), (want, want));
    }
}

#[test]
fn each_call_may_fail_once() {
    let mut faults = 0;
    for case in cases() {
        for errno in [1, 12, 22] {
            for at in 0.. {
                let mut model = case.model.clone();
                model.fail_at = Some((at, errno));
                let result = carry_out(&mut model, &case.plan, &case.layout);
                let Some(call) = model.failed.first() else { break };
                let what = format!("{call}, call {at}, errno {errno}");
                // Calls that undo a step are tried twice, and the heap may stay.
                let moved = case.is_moved(&model, &what);
                assert_eq!(moved, result.is_ok(), "{what}: {result:?}");
                let gone = if moved { case.image.range } else { case.new_range() };
                assert!(shown(&model, gone).is_empty(), "{what}: leftovers");
                assert!(!model.saw_wx, "{what}");
                faults += 1;
            }
        }
    }
    assert!(faults > 100, "only {faults}");
}

/// A helper may die before any call: the program then has one whole image.
#[test]
fn each_call_may_be_the_last() {
    for case in cases() {
        let mut ends = [0, 0];
        for at in 0.. {
            let mut model = case.model.clone();
            (model.fail_at, model.fail_on) = (Some((at, 5)), true);
            let _ = carry_out(&mut model, &case.plan, &case.layout);
            if model.failed.is_empty() {
                break;
            }
            let entry_pointers = model.start.entry_pointers;
            let moved = entry_pointers != case.layout.entry_pointers().unwrap();
            let range = if moved { case.new_range() } else { case.image.range };
            assert_eq!(shown(&model, range), shown(&case.model, case.image.range), "call {at}");
            ends[usize::from(moved)] += 1;
        }
        assert!(ends[0] > 5 && ends[1] > 0, "{ends:?}");
    }
}

#[test]
fn if_the_kernel_refuses_the_switch_all_is_undone() {
    let case = &cases()[0];
    let refused = (0..).find_map(|at| {
        let mut model = case.model.clone();
        model.fail_at = Some((at, 1));
        match carry_out(&mut model, &case.plan, &case.layout) {
            // The switch to the new image, of which the kernel's layout is a part.
            Err(Fault::Call { call: "process_vm_writev to itself", .. }) => Some(model.visible()),
            Err(_) => None,
            Ok(_) => panic!("call {at}: the layout is not set"),
        }
    });
    assert_eq!(refused, Some(case.model.visible()));
}

#[test]
fn why_it_stays() {
    let stay = |headers: &Headers, base: u64, others: &[Range]| {
        let mappings = mapped(headers, base, others);
        let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL)?;
        image.plan(&mappings, congruent(headers), SMALL).map(|m| m.distance)
    };
    let large = headers(0x60_0000, 0x1000, 0, 0, true);
    let base = ET_DYN_BASE;
    assert_eq!(stay(&large, base & !0x1f_ffff, &[]), Err(NotMoved::There));
    assert_eq!(stay(&headers(0x60_0000, 0x1000, 0, 0, false), base, &[]), Err(NotMoved::Fixed));
    assert_eq!(stay(&large, 0x10_1000, &[]), Err(NotMoved::NoRoom));
    // The alignment that a segment demands is kept.
    let mut aligned = large.clone();
    aligned.segments[3].align = 0x1_0000;
    let odd = Base { residue: 0x5000, page: HUGE };
    let mappings = mapped(&aligned, base & !0xffff, &[]);
    let image = Image::new(&mappings, aligned, Addr(base & !0xffff), SMALL).unwrap();
    assert_eq!(image.plan(&mappings, odd, SMALL), Err(NotMoved::Odd));
    let mut wx = large.clone();
    wx.segments[1].prot.write = true;
    wx.segments[2].filesz = 0x60_0000;
    assert!(matches!(stay(&wx, base, &[]), Err(NotMoved::WritableCode | NotMoved::Odd)));
    // Memory in the way is skipped.
    let near = Range { start: Addr(base - 0x100_0000), end: Addr(base - 0x1000) };
    let free = stay(&large, base, &[]).unwrap();
    let passed = stay(&large, base, &[near]).unwrap();
    assert!(passed > free && base - passed < near.start.0, "{free:#x} {passed:#x}");
}

/// Plans moves of the recorded programs, from the addresses at which they were recorded.
#[test]
fn recorded_programs() {
    let mut moved = 0;
    for (program, record) in crate::common::PROGRAMS {
        let snapshot = snapshot(record, machine());
        let mappings = parse_maps(maps(record).as_bytes()).unwrap();
        let object = &snapshot.objects[0];
        let first = Addr(object.headers.first_page(4096).wrapping_add(object.bias));
        let image = Image::new(&mappings, object.headers.clone(), first, SMALL);
        let Some(residue) = congruent_residue(&object.headers, BOTH, HUGE, SMALL) else { continue };
        let to = Base { residue, page: HUGE };
        match image.and_then(|image| image.plan(&mappings, to, SMALL)) {
            Ok(plan) => {
                moved += 1;
                assert!(object.headers.relocatable, "{program}");
                let segments = object.headers.segments.iter().filter(|s| s.prot.exec || !s.prot.write);
                let bias = object.bias.wrapping_sub(plan.distance);
                let congruent =
                    |s: &Segment| s.vaddr.wrapping_add(bias).wrapping_sub(s.offset) % (2 << 20) == 0;
                assert!(segments.clone().any(congruent), "{program}");
            }
            Err(why) => assert!(why != NotMoved::NoRoom, "{program}: {why}"),
        }
    }
    assert!(moved >= 1, "no recorded program is moved");
}

proptest! {
    /// For every base that the kernel may choose, the new place is congruent and disjoint from the old,
    /// and bases a huge page apart have different new places.
    #[test]
    fn the_new_base_keeps_the_bits_above_a_huge_page(
        page in 0u64..1 << 28, text in 1u64..40, skew in 0u64..3, bss in 0u64..0x50_0000,
    ) {
        let base = ET_DYN_BASE + (page << 12);
        let headers = headers(text * 0x18_0000, 0x1000, skew << 12, bss, true);
        let mappings = mapped(&headers, base, &[]);
        let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL).unwrap();
        let Some(residue) = congruent_residue(&headers, BOTH, HUGE, SMALL) else { return Ok(()) };
        let to = Base { residue, page: HUGE };
        match image.plan(&mappings, to, SMALL) {
            Ok(plan) => {
                let code = headers.segments[1];
                let new = base - plan.distance;
                prop_assert_eq!((code.vaddr + new - code.offset) % HUGE.bytes(), 0);
                prop_assert!(plan.distance >= image.range.len(), "the copies overlap");
                prop_assert!(plan.distance < image.range.len() + HUGE.bytes());
                // A base that is a huge page higher has a new place that is a huge page higher.
                let next = Image::new(
                    &mapped(&headers, base + HUGE.bytes(), &[]), headers.clone(),
                    Addr(base + HUGE.bytes()), SMALL,
                ).unwrap();
                let next = next.plan(&mapped(&headers, base + HUGE.bytes(), &[]), to, SMALL).unwrap();
                prop_assert_eq!(next.distance, plan.distance);
            }
            Err(why) => prop_assert_eq!(why, NotMoved::There),
        }
    }

    /// Wherever the kernel puts a program, its parts hold the same number of whole huge pages in the end,
    /// and no base would hold more: each of the 512 is tried, and counted without the planner.
    #[test]
    fn coverage_does_not_depend_on_the_base_that_the_kernel_draws(
        page in 0u64..1 << 28, text in 0u64..0x90_0000, rodata in 0u64..0x70_0000, skew in 0u64..3,
        bss in 0u64..0x50_0000, wanted in 0usize..4,
    ) {
        let parts = [BOTH, &[Part::Text], &[Part::Rodata], ALL][wanted];
        let headers = headers(text + 1, rodata + 1, skew << 12, bss, true);
        let policy = copying(parts);
        let mut bases = Bases::new(&headers, "/bin/pie".as_ref(), &policy, &SIZES);
        let most = (0..512).map(|n| counted(&headers, n << 12, parts)).max_by_key(|c| c.iter().sum::<u64>());
        let most = most.unwrap();
        let Some(best) = bases.best() else {
            prop_assert_eq!(most.iter().sum::<u64>(), 0);
            return Ok(());
        };
        let found = counted(&headers, best.residue, parts);
        prop_assert_eq!(found.iter().sum::<u64>(), most.iter().sum::<u64>());
        prop_assert_eq!(bases.worth(best).unwrap().bytes(), most.iter().sum::<u64>());
        // A program that stays has as much of each part as one that is moved.
        let base = ET_DYN_BASE + (page << 12);
        let now = bases.of(base);
        prop_assert_eq!(bases.worth(now) >= bases.worth(best), counted(&headers, base, parts) == found);
        if bases.worth(now) < bases.worth(best) {
            let mappings = mapped(&headers, base, &[]);
            let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL).unwrap();
            let plan = image.plan(&mappings, best, SMALL).unwrap();
            prop_assert_eq!(counted(&headers, base - plan.distance, parts), found);
            // The kernel's random bits above a huge page are kept.
            prop_assert!(plan.distance < image.range.len() + HUGE.bytes());
        }
    }

    /// The same for outer spans, which depend on the neighbours in a huge page too. Here the planner
    /// itself counts.
    #[test]
    fn no_base_has_more_in_outer_spans(
        text in 0u64..0x50_0000, rodata in 0u64..0x50_0000, bss in 0u64..0x50_0000, auto in any::<bool>(),
    ) {
        let headers = headers(text + 1, rodata + 1, 0, bss, true);
        let span = if auto { SpanChoice::Auto } else { SpanChoice::Outer };
        let policy = Policy { span, ..copying(ALL) };
        let mut bases = Bases::new(&headers, "/bin/pie".as_ref(), &policy, &SIZES);
        let most = (0..512).filter_map(|n| bases.worth(Base { residue: n << 12, page: HUGE })).max().unwrap();
        let best = bases.best().and_then(|best| bases.worth(best));
        prop_assert_eq!(best.map_or(0, |worth| worth.bytes()), most.bytes());
    }

    /// Processes share a copy whatever parts their options ask for.
    #[test]
    fn the_shared_base_depends_on_the_program_alone(text in 0u64..0x90_0000, rodata in 0u64..0x70_0000) {
        let headers = headers(text + 1, rodata + 1, 0, 0x1000, true);
        let shared = shared_base(&headers, "/bin/pie".as_ref(), &SIZES);
        prop_assert_eq!(shared, fullest(&headers, &copying(BOTH)));
    }
}

const ALL: &[Part] = &[Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss];

/// Returns the bytes of whole huge pages in each part of the program, when it is loaded with `bias`.
fn counted(headers: &Headers, bias: u64, parts: &[Part]) -> Vec<u64> {
    let huge = HUGE.bytes();
    let up = |at: u64| at.next_multiple_of(4096);
    let whole = |start: u64, end: u64| (end / huge).saturating_sub(start.div_ceil(huge)) * huge;
    let mut found = vec![0; ALL.len()];
    let mut add = |part: Part, start: u64, end: u64| {
        if parts.contains(&part) {
            found[ALL.iter().position(|p| *p == part).unwrap()] += whole(start, end);
        }
    };
    for s in &headers.segments {
        let (start, file) = (bias + (s.vaddr & !4095), bias + up(s.vaddr + s.filesz));
        match s.prot {
            Prot::RX => add(Part::Text, start, file),
            Prot::R => add(Part::Rodata, start, file),
            _ => {
                add(Part::Data, start, file);
                add(Part::Bss, file, bias + up(s.vaddr + s.memsz));
            }
        }
    }
    found
}

/// A program that demands alignment to 64 kB, or to a huge page, gets a base with this alignment.
#[test]
fn the_best_base_keeps_the_alignment_that_a_segment_asks_for() {
    for align in [0x1000, 0x1_0000, 0x20_0000] {
        let mut program = headers(0x28_d809, 0xc_4df0, 0, 0, true);
        program.segments[1].align = align;
        if let Some(base) = fullest(&program, &copying(BOTH)) {
            assert_eq!(base.residue % align, 0, "{align:#x}: {base:?}");
            assert!(align < HUGE.bytes(), "{base:?}: no whole huge page is there");
        }
    }
    let mut program = headers(0x28_d809, 0xc_4df0, 0, 0, true);
    program.segments[1].align = 0x1_0000;
    let base = fullest(&program, &copying(BOTH)).unwrap();
    assert_eq!(counted(&program, base.residue, BOTH)[0], HUGE.bytes());
}

/// A page size that is too large for the program moves nothing; else it is the page of the base.
#[test]
fn a_named_page_size_is_used() {
    let program = headers(0x28_d809, 0xc_4df0, 0, 0, true);
    let page = PageSize::new(1 << 30).unwrap();
    let large = Policy {
        page: hugelift_core::policy::PageChoice::Only(page),
        backings: vec![Backing::Hugetlb],
        ..copying(BOTH)
    };
    assert_eq!(fullest(&program, &large), None);
    let program = headers(0x6000_0000, 0x1000, 0, 0, true);
    let base = fullest(&program, &large).unwrap();
    assert_eq!(base.page, page);
    let mut bases = Bases::new(&program, "/bin/pie".as_ref(), &large, &SIZES);
    assert_eq!(bases.worth(base).unwrap().bytes(), 1 << 30);
}
