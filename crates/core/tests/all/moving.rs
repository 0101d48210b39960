// SPDX-License-Identifier: Apache-2.0
//! Moving executables in the model: real layouts, at every base, with every call failing once.

use crate::common::{machine, maps, snapshot};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{Headers, Machine, Segment};
use hugelift_core::maps::{FileId, Mapping, Prot, parse_maps};
use hugelift_core::model::{Content, Model, Start};
use hugelift_core::moving::{Image, Layout, Move, Stay, carry_out};
use hugelift_core::snapshot::{Object, Part, Snapshot};
use hugelift_core::target::Fault;
use proptest::prelude::*;

const BOTH: &[Part] = &[Part::Text, Part::Rodata];
const SMALL: PageSize = PageSize::SMALL;
const HUGE: PageSize = PageSize::MB2;
const FILE: FileId = FileId { major: 8, minor: 1, inode: 77 };
/// Where the kernel begins to look for a place for a PIE, on x86-64.
const ET_DYN_BASE: u64 = 0x5555_5555_4000;

/// As a linker lays it out: headers, text, constants, data, with `skew` between address and
/// offset growing at each segment (lld).
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

/// As execve(2) maps it at `base`, with a stack, and what else is in the address space.
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

fn case(headers: Headers, base: u64, gap: u64) -> Case {
    let mappings = mapped(&headers, base, &[]);
    let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL).unwrap();
    let plan = image.plan(&mappings, BOTH, HUGE, SMALL).unwrap();
    let object = Object {
        path: "/bin/pie".into(),
        file: FILE,
        build_id: None,
        bias: base,
        headers,
        executable: true,
        textrel: false,
    };
    let snapshot = Snapshot {
        objects: vec![object],
        mappings,
        patched: vec![],
        special: vec![],
        cached: vec![],
        brk: None,
        machine: machine(),
        stored: Default::default(),
    };
    let mut model = Model::new(&snapshot);
    let layout = layout(&image, gap);
    let anchors = layout.anchors().unwrap();
    let cleared = plan.cleared.clone();
    model.begin(Start { anchors, layout: layout.clone(), image: image.pieces.clone(), cleared });
    Case { image, plan, layout, model }
}

/// The contents within `range`, by distance from its start.
fn shown(model: &Model, range: Range) -> Vec<(u64, u64, Prot, Content)> {
    let all = model.visible().into_iter().filter(|(r, ..)| r.intersect(range).is_some());
    all.map(|(r, prot, content)| (r.start.0.wrapping_sub(range.start.0), r.len(), prot, content)).collect()
}

impl Case {
    fn new_range(&self) -> Range {
        self.image.range.down(self.plan.distance)
    }

    /// Whether the image is wholly at its new place, with all that names it; panics if it is
    /// neither there nor where it was.
    fn is_moved(&self, model: &Model, what: &str) -> bool {
        let distance = self.plan.distance;
        let before = shown(&self.model, self.image.range);
        let (old, new) = (self.layout.anchors().unwrap(), model.start.anchors);
        let told = model.start.layout.anchors().unwrap();
        assert_eq!(new, told, "{what}: the stack and the kernel differ");
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
    vec![
        case(headers(0x60_0000, 0x40_0000, 0, 0x30_0000, true), base, 0x123_4000),
        case(headers(0x60_0000, 0x40_0000, 0x1000, 0, true), base, 0),
        case(headers(0x260_0000, 0x1000, 0x1000, 0x10, true), base, 1 << 40),
    ]
}

#[test]
fn the_image_is_moved_whole() {
    for case in cases() {
        let mut model = case.model.clone();
        assert_eq!(carry_out(&mut model, &case.plan, &case.layout), Ok(vec![]));
        assert!(case.is_moved(&model, "no fault"));
        assert!(shown(&model, case.image.range).is_empty(), "the old image is still there");
        assert!(!model.saw_wx);
        // The heap keeps its distance, if it is the image's.
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
                // What takes back is tried twice, and the heap may stay.
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

/// A helper that dies before any call: what is then there is one whole image.
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
            let anchors = model.start.anchors;
            let moved = anchors != case.layout.anchors().unwrap();
            let range = if moved { case.new_range() } else { case.image.range };
            assert_eq!(shown(&model, range), shown(&case.model, case.image.range), "call {at}");
            ends[usize::from(moved)] += 1;
        }
        assert!(ends[0] > 5 && ends[1] > 0, "{ends:?}");
    }
}

#[test]
fn where_the_kernel_says_no_nothing_is_tried() {
    let case = &cases()[0];
    let mut model = case.model.clone();
    model.fail_at = Some((0, 1));
    let fault = carry_out(&mut model, &case.plan, &case.layout).unwrap_err();
    assert!(matches!(fault, Fault::Call { call: "prctl(PR_SET_MM_MAP)", errno: 1, .. }), "{fault}");
    assert_eq!((model.calls, model.visible()), (1, case.model.visible()));
}

#[test]
fn why_it_stays() {
    let stay = |headers: &Headers, base: u64, others: &[Range], parts: &[Part]| {
        let mappings = mapped(headers, base, others);
        let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL)?;
        image.plan(&mappings, parts, HUGE, SMALL).map(|m| m.distance)
    };
    let large = headers(0x60_0000, 0x1000, 0, 0, true);
    let base = ET_DYN_BASE;
    assert_eq!(stay(&large, base & !0x1f_ffff, &[], BOTH), Err(Stay::Congruent));
    assert_eq!(stay(&large, base, &[], &[Part::Rodata]), Err(Stay::Small));
    assert_eq!(stay(&headers(0x10_0000, 0x1000, 0, 0, true), base, &[], BOTH), Err(Stay::Small));
    assert_eq!(stay(&headers(0x60_0000, 0x1000, 0, 0, false), base, &[], BOTH), Err(Stay::Fixed));
    assert_eq!(stay(&large, 0x10_1000, &[], BOTH), Err(Stay::NoRoom));
    let mut wx = large.clone();
    wx.segments[1].prot.write = true;
    wx.segments[2].filesz = 0x60_0000;
    assert!(matches!(stay(&wx, base, &[], BOTH), Err(Stay::WritableCode | Stay::Odd)));
    // What is in the way is passed by.
    let near = Range { start: Addr(base - 0x100_0000), end: Addr(base - 0x1000) };
    let free = stay(&large, base, &[], BOTH).unwrap();
    let passed = stay(&large, base, &[near], BOTH).unwrap();
    assert!(passed > free && base - passed < near.start.0, "{free:#x} {passed:#x}");
}

/// The recorded programs, wherever they were when they were recorded.
#[test]
fn recorded_programs() {
    let mut moved = 0;
    for (program, record) in crate::common::PROGRAMS {
        let snapshot = snapshot(record, machine());
        let mappings = parse_maps(maps(record).as_bytes()).unwrap();
        let object = &snapshot.objects[0];
        let first = Addr(object.headers.first_page(4096).wrapping_add(object.bias));
        let image = Image::new(&mappings, object.headers.clone(), first, SMALL);
        match image.and_then(|image| image.plan(&mappings, BOTH, HUGE, SMALL)) {
            Ok(plan) => {
                moved += 1;
                assert!(object.headers.relocatable, "{program}");
                let segments = object.headers.segments.iter().filter(|s| s.prot.exec || !s.prot.write);
                let bias = object.bias.wrapping_sub(plan.distance);
                let congruent =
                    |s: &Segment| s.vaddr.wrapping_add(bias).wrapping_sub(s.offset) % (2 << 20) == 0;
                assert!(segments.clone().any(congruent), "{program}");
            }
            Err(why) => assert!(why != Stay::NoRoom, "{program}: {why}"),
        }
    }
    assert!(moved >= 1, "no recorded program is moved");
}

proptest! {
    /// For every base that the kernel may choose: congruent, disjoint, and one of as many places
    /// as there are huge pages in the range that the base comes from.
    #[test]
    fn the_new_base_keeps_the_bits_above_a_huge_page(
        page in 0u64..1 << 28, text in 1u64..40, skew in 0u64..3, bss in 0u64..0x50_0000,
    ) {
        let base = ET_DYN_BASE + (page << 12);
        let headers = headers(text * 0x18_0000, 0x1000, skew << 12, bss, true);
        let mappings = mapped(&headers, base, &[]);
        let image = Image::new(&mappings, headers.clone(), Addr(base), SMALL).unwrap();
        match image.plan(&mappings, BOTH, HUGE, SMALL) {
            Ok(plan) => {
                let code = headers.segments[1];
                let new = base - plan.distance;
                prop_assert_eq!((code.vaddr + new - code.offset) % HUGE.bytes(), 0);
                prop_assert!(plan.distance >= image.range.len(), "the copies overlap");
                prop_assert!(plan.distance < image.range.len() + HUGE.bytes());
                // The next base that is a huge page away gives the next place.
                let next = Image::new(
                    &mapped(&headers, base + HUGE.bytes(), &[]), headers.clone(),
                    Addr(base + HUGE.bytes()), SMALL,
                ).unwrap();
                let next = next.plan(&mapped(&headers, base + HUGE.bytes(), &[]), BOTH, HUGE, SMALL).unwrap();
                prop_assert_eq!(next.distance, plan.distance);
            }
            Err(why) => prop_assert!(matches!(why, Stay::Congruent | Stay::Small), "{}", why),
        }
    }
}
