// SPDX-License-Identifier: Apache-2.0
//! Plans of generated processes on generated machines: what must hold for all of them.

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::apply::apply;
use hugelift_core::elf::{Headers, Machine as Arch, Segment, Stretch};
use hugelift_core::maps::{FileId, Mapping, Prot};
use hugelift_core::model::Model;
use hugelift_core::placement::Placement;
use hugelift_core::plan::{Attempt, Plan, Span, Step, plan, shareable};
use hugelift_core::policy::{Backing, Copies, ObjectFilter, PageChoice, Policy, SpanChoice};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{
    Machine, NotStored, Object, Part, Pool, Snapshot, Stored, StoredCopy, ThpOff, overlapping,
};
use hugelift_core::target::MapStored;
use hugelift_core::weigh::{Past, Stake, weigh};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

const RWX: Prot = Prot { read: true, write: true, exec: true, bti: false };
const ROOT_OF_ALL: u64 = 1 << 46;

fn prot() -> impl Strategy<Value = Prot> {
    let exec = Prot { exec: true, ..Prot::NONE };
    prop_oneof![
        6 => Just(Prot::RX), 4 => Just(Prot::R), 2 => Just(Prot::RW),
        1 => Just(RWX), 1 => Just(Prot::NONE), 1 => Just(exec)
    ]
}

/// Base page and transparent huge page of x86-64 and AArch64.
fn pages() -> impl Strategy<Value = (u64, u64)> {
    prop::sample::select(vec![(4 << 10, 2 << 20), (16 << 10, 32 << 20), (64 << 10, 512 << 20)])
}

fn page_size() -> impl Strategy<Value = PageSize> {
    let sizes = [16, 21, 25, 29, 30].map(|shift| PageSize::new(1 << shift).unwrap());
    prop::sample::select(sizes.to_vec())
}

fn pool_of() -> impl Strategy<Value = Pool> {
    let few = || prop_oneof![4 => 0..12_u64, 1 => Just(u64::MAX)];
    (page_size(), few(), few(), few(), few()).prop_map(|(page, free, reserved, surplus, overcommit)| Pool {
        page,
        total: free,
        free,
        reserved,
        surplus,
        overcommit,
    })
}

fn machine() -> impl Strategy<Value = Machine> {
    let off = prop_oneof![4 => Just(None), 1 => Just(Some(ThpOff::Never)), 1 => Just(Some(ThpOff::Process))];
    let memory = prop_oneof![Just(u64::MAX), 0..64_u64 << 30, 0..64_u64 << 20];
    let thp = prop::bool::weighted(0.85);
    (pages(), thp, off, vec(pool_of(), 0..4), any::<(bool, bool)>(), memory).prop_map(
        |((base, huge), thp, thp_off, mut pools, (moves_hugetlb, has_folios), memory_left)| {
            pools.sort_by_key(|p| std::cmp::Reverse(p.page));
            pools.dedup_by_key(|p| p.page);
            let thp_page = thp.then(|| PageSize::new(huge).unwrap());
            let base_page = PageSize::new(base).unwrap();
            let sizes = (base.trailing_zeros() + 1..huge.trailing_zeros()).rev().filter(|_| has_folios);
            let folios = sizes.filter_map(|log2| PageSize::new(1 << log2)).collect();
            Machine {
                base_page,
                thp_page,
                folios,
                thp_off,
                pools,
                moves_hugetlb,
                populate: true,
                memory_left,
            }
        },
    )
}

/// What becomes of a segment's mapping after the loader made it.
#[derive(Clone, Copy, Debug)]
struct Wear {
    /// Where in the mapping, in 256ths.
    from: u8,
    to: u8,
    what: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Protect(Prot),
    Hole,
    Anonymous,
    Shared,
}

fn wear() -> impl Strategy<Value = Wear> {
    let what = prop_oneof![
        4 => prot().prop_map(Change::Protect),
        1 => Just(Change::Hole),
        2 => Just(Change::Anonymous),
        1 => Just(Change::Shared)
    ];
    (any::<u8>(), any::<u8>(), what).prop_map(|(from, to, what)| Wear { from, to, what })
}

/// Memory that is no object's, `gap` base pages behind the end of one (modulo their number).
#[derive(Clone, Copy, Debug)]
struct Stranger {
    of: usize,
    gap: u64,
    pages: u64,
    prot: Prot,
    is_heap: bool,
}

fn stranger() -> impl Strategy<Value = Stranger> {
    let prot = prop_oneof![2 => Just(Prot::NONE), 2 => Just(Prot::RW), 1 => prot()];
    let gap = prop_oneof![Just(0), 0..16_u64, 0..1024_u64];
    (0..5_usize, gap, 1..300_u64, prot, prop::bool::weighted(0.2))
        .prop_map(|(of, gap, pages, prot, is_heap)| Stranger { of, gap, pages, prot, is_heap })
}

/// (protection, gap before it, bytes in memory, share of them in the file) of each segment, the
/// last three in 4 kB pages, and in 256ths.
type Shape = Vec<(Prot, u64, u64, u8)>;

#[derive(Clone, Debug)]
struct Plot {
    shape: Shape,
    bias: u64,
    relro: bool,
    textrel: bool,
    wear: Vec<Wear>,
}

fn plot() -> impl Strategy<Value = Plot> {
    // Sizes about those of one or a few huge pages, of any size.
    let len = || prop_oneof![1..64_u64, 1..2048_u64, 1..1_u64 << 19];
    let shape = vec((prot(), 0..600_u64, len(), any::<u8>()), 1..6);
    let bias = prop_oneof![
        2 => (0..1_u64 << 34).prop_map(|n| n & !0xfff),
        2 => (0..1_u64 << 13).prop_map(|n| n << 21),
        1 => (0..1_u64 << 20).prop_map(|n| 0_u64.wrapping_sub(n << 12)),
        1 => Just(0)
    ];
    let flags = (any::<bool>(), prop::bool::weighted(0.1));
    (shape, bias, flags, vec(wear(), 0..4)).prop_map(|(shape, bias, (relro, textrel), wear)| Plot {
        shape,
        bias,
        relro,
        textrel,
        wear,
    })
}

fn object(index: usize, plot: &Plot) -> Object {
    let mut at = 0x1000_u64;
    let mut segments = Vec::new();
    for &(prot, gap, pages, file) in &plot.shape {
        let vaddr = at + gap * 4096 + gap % 3 * 8;
        let memsz = pages * 4096 - gap % 5 * 16;
        let filesz = memsz / 255 * u64::from(file);
        segments.push(Segment { prot, vaddr, memsz, filesz, offset: vaddr, align: 4096 });
        at = vaddr + memsz;
    }
    let relro = segments.iter().find(|s| s.prot.write).filter(|_| plot.relro);
    let relro = relro.map(|s| Stretch { offset: s.offset, vaddr: s.vaddr, size: s.memsz / 3 });
    let headers = Headers {
        machine: Arch::X86_64,
        relocatable: true,
        entry: 0,
        segments,
        relro,
        interp: None,
        dynamic: None,
        notes: vec![],
    };
    let file = FileId { major: 8, minor: 1, inode: 100 + index as u64 };
    let path = PathBuf::from(format!("/lib/o{index}.so"));
    let (executable, textrel) = (index == 0, plot.textrel);
    Object { path, file, build_id: None, bias: plot.bias, headers, executable, textrel }
}

fn mapping(range: Range, prot: Prot, file: FileId, path: &str) -> Mapping {
    Mapping { range, prot, shared: false, offset: 0, file, path: path.into(), deleted: false }
}

/// Maps the object as the kernel does, a later segment over an earlier one, then wears it.
fn map(object: &Object, plot: &Plot, base: PageSize, out: &mut Vec<Mapping>) {
    for segment in &object.headers.segments {
        let Some(range) = object.loaded(segment.vaddr, segment.memsz) else { continue };
        let Some(end) = range.end.align_up(base) else { continue };
        let whole = Range { start: range.start.align_down(base), end };
        over(out, mapping(whole, segment.prot, object.file, &object.path.to_string_lossy()));
        for wear in &plot.wear {
            let at = |n: u8| Addr(whole.start.0 + whole.len() / 256 * u64::from(n)).align_down(base);
            let Some(worn) = Range::new(at(wear.from), at(wear.to)).filter(|r| !r.is_empty()) else {
                continue;
            };
            let mut new = mapping(worn, segment.prot, object.file, &object.path.to_string_lossy());
            match wear.what {
                Change::Protect(prot) => new.prot = prot,
                Change::Hole => {
                    cut(out, worn);
                    continue;
                }
                Change::Anonymous => (new.file, new.path) = (FileId::default(), PathBuf::new()),
                Change::Shared => new.shared = true,
            }
            over(out, new);
        }
    }
}

fn cut(out: &mut Vec<Mapping>, range: Range) {
    let pieces =
        |m: Mapping| m.range.minus(range).into_iter().map(move |range| Mapping { range, ..m.clone() });
    *out = std::mem::take(out).into_iter().flat_map(pieces).collect();
}

fn over(out: &mut Vec<Mapping>, new: Mapping) {
    cut(out, new.range);
    out.push(new);
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let stock = vec(any::<bool>(), 8);
    let brk = prop_oneof![1 => Just(None), 3 => (0..2048_u64).prop_map(Some)];
    let others = (vec(stranger(), 0..4), brk);
    (vec(plot(), 1..5), machine(), prop::bool::weighted(0.9), stock, others).prop_map(
        |(plots, machine, stack, stock, (strangers, brk))| {
            let objects: Vec<Object> = plots.iter().enumerate().map(|(i, p)| object(i, p)).collect();
            let mut mappings = Vec::new();
            for (object, plot) in objects.iter().zip(&plots) {
                map(object, plot, machine.base_page, &mut mappings);
            }
            let base = machine.base_page.bytes();
            let end = |object: &Object| {
                let ends = object.headers.segments.iter().filter_map(|s| object.loaded(s.vaddr, s.memsz));
                ends.map(|r| r.end).max()?.align_up(machine.base_page)
            };
            for s in &strangers {
                let after = end(&objects[s.of % objects.len()]).filter(|a| a.0 < ROOT_OF_ALL / 2);
                let at = after.and_then(|a| a.checked_add(s.gap * base));
                let Some(range) = at.and_then(|at| Range::sized(at, s.pages * base)) else { continue };
                if mappings.iter().all(|m: &Mapping| m.range.intersect(range).is_none()) {
                    let (prot, name) = if s.is_heap { (Prot::RW, "[heap]") } else { (s.prot, "") };
                    mappings.push(mapping(range, prot, FileId::default(), name));
                }
            }
            let brk = brk.zip(end(&objects[0])).and_then(|(pages, end)| end.checked_add(pages * base));
            if stack {
                let range = Range::sized(Addr(ROOT_OF_ALL), 0x20_0000).unwrap();
                over(&mut mappings, mapping(range, Prot::RW, FileId::default(), "[stack]"));
            }
            mappings.sort_by_key(|m| m.range);
            let cached = mappings.iter().filter_map(cached).collect();
            let stored = Stored::default();
            let mut snapshot = Snapshot {
                objects,
                mappings,
                patched: vec![],
                special: vec![],
                cached,
                brk,
                machine,
                stored,
            };
            snapshot.stored = stocked(&snapshot, &stock);
            snapshot
        },
    )
}

/// A store that has a copy of some of what can be shared, and a reason for the rest.
fn stocked(snapshot: &Snapshot, stock: &[bool]) -> Stored {
    let mut stored = Stored::default();
    for (i, (object, _, range)) in shareable(snapshot, &Policy::default()).into_iter().enumerate() {
        if stock[i % stock.len()] {
            // One file for each object, spans behind each other.
            stored.copies.push(StoredCopy { range, entry: object, offset: (i as u64) << 40 });
        } else {
            stored.lacks.push((range, NotStored { why: "none".into(), hint: None }));
        }
    }
    stored
}

/// What the page cache has of a file in huge folios: all, all but some, or nothing.
fn cached(mapping: &Mapping) -> Option<Range> {
    let inner = mapping.range.inner(PageSize::MB2).filter(|_| mapping.is_file())?;
    let missing = (mapping.range.end.0 >> 12) % 3 * (inner.len() / 16);
    Range::new(inner.start, Addr(inner.end.0 - missing).align_down(PageSize::MB2)).filter(|r| !r.is_empty())
}

fn policy() -> impl Strategy<Value = Policy> {
    let parts = [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack];
    let backings = [Backing::Hugetlb, Backing::Thp, Backing::Pagecache, Backing::Shared];
    let backing = prop::sample::select(backings.to_vec());
    let backings = prop_oneof![2 => Just(Policy::default().backings), 3 => vec(backing.clone(), 0..5)];
    let data = prop_oneof![2 => Just(Policy::default().data_backings), 1 => vec(backing, 0..5)];
    let parts =
        prop_oneof![3 => Just(Policy::default().parts), 1 => vec(prop::sample::select(parts.to_vec()), 0..8)];
    let page = prop_oneof![
        3 => Just(PageChoice::Usual),
        1 => Just(PageChoice::Mixed),
        1 => page_size().prop_map(PageChoice::Only),
    ];
    let except = prop_oneof![4 => Just(vec![]), 1 => Just(vec!["o1.*".to_string()])];
    let placements = [Placement::Local, Placement::On("1".parse().unwrap())].map(Some);
    let placement = prop_oneof![3 => Just(None), 1 => prop::sample::select(placements.to_vec())];
    let span = prop::sample::select(vec![SpanChoice::Inner, SpanChoice::Outer, SpanChoice::Auto]);
    let choices = (parts, backings, data, page, except, placement, span, copies());
    choices.prop_map(|(parts, backings, data_backings, page, except, placement, span, copies)| Policy {
        parts,
        objects: ObjectFilter::new(&[], &except).unwrap(),
        backings,
        data_backings,
        span,
        page,
        placement,
        copies,
    })
}

/// All, what was touched of what lies anywhere, or nothing.
fn copies() -> impl Strategy<Value = Copies> {
    let stretch = (0..1_u64 << 35, 1..1_u64 << 26);
    let seen = vec(stretch, 0..200).prop_map(|stretches| {
        let range = |(start, len): (u64, u64)| Range::sized(Addr(start & !0xffff), len | 0xffff);
        let mut ranges: Vec<Range> = stretches.into_iter().filter_map(range).collect();
        ranges.sort();
        Copies::Seen(ranges)
    });
    let past = Some(Past { runs: 1, cpu: Duration::ZERO });
    let nothing = Copies::NotWorth(weigh(Stake { whole: 1, seen: 1 }, past));
    prop_oneof![4 => Just(Copies::All), 3 => seen, 1 => Just(nothing)]
}

/// Of text and rodata, in no way more is copied than what may be; and all of that is, where all would be.
fn within_what_may_be_copied(snapshot: &Snapshot, policy: &Policy, plan: &Plan) {
    let is_copy = |a: &Attempt| !a.in_place && matches!(a.backing, Backing::Thp | Backing::Hugetlb);
    let read_only = |span: &&Span| !span.part.is_writable();
    let touched = |range: Range| match &policy.copies {
        Copies::All => true,
        Copies::Seen(seen) => seen.iter().any(|s| s.intersect(range).is_some()),
        Copies::NotWorth(_) => false,
    };
    for span in plan.spans.iter().filter(read_only) {
        for attempt in span.attempts.iter().filter(|a| is_copy(a)) {
            let size = attempt.page.bytes();
            for page in (span.range.start.0..span.range.end.0).step_by(size as usize) {
                let page = Range::sized(Addr(page), size).unwrap();
                assert!(touched(page), "{page} is copied by {}", attempt.backing);
            }
        }
    }
    let all = hugelift_core::plan::plan(snapshot, &Policy { copies: Copies::All, ..policy.clone() });
    if policy.copies == Copies::All || all.skips.iter().any(|s| s.reason.is_remediable()) {
        return; // what lacks for all may be there for some
    }
    // Nothing is rounded out where not even all whole pages are copied; and of mixed sizes a smaller
    // one may do for what was touched of a larger one.
    if policy.span != SpanChoice::Inner || policy.page == PageChoice::Mixed {
        return;
    }
    for span in all.spans.iter().filter(read_only) {
        let size = span.attempts[0].page.bytes();
        for page in (span.range.start.0..span.range.end.0).step_by(size as usize) {
            let page = Range::sized(Addr(page), size).unwrap();
            let lifted = plan.spans.iter().any(|s| s.range.covers(page));
            assert!(lifted || (is_copy(&span.attempts[0]) && !touched(page)), "{page} is left out");
        }
    }
}

/// Spans and skips hold every byte of the extents once, each where its object and part are.
fn tiles(snapshot: &Snapshot, plan: &Plan) {
    let extents = snapshot.extents();
    // An outer span takes several parts along.
    let own = |s: &Span| {
        let here = extents.iter().filter_map(|e| Some((e.object, e.part, e.range.intersect(s.range)?)));
        let here: Vec<_> = here.collect();
        let (held, bytes) =
            (s.held.iter().map(|r| r.len()).sum::<u64>(), here.iter().map(|h| h.2.len()).sum::<u64>());
        assert_eq!(held, bytes, "{} is not all of extents", s.range);
        here
    };
    let spans = plan.spans.iter().flat_map(own);
    let skips = plan.skips.iter().map(|s| (s.object, s.part, s.range));
    let pieces: Vec<_> = spans.chain(skips).collect();
    for (object, part, range) in &pieces {
        assert!(!range.is_empty());
        let own = extents.iter().filter(|e| (e.object, e.part) == (*object, *part));
        let held: u64 = own.filter_map(|e| e.range.intersect(*range)).map(Range::len).sum();
        assert_eq!(held, range.len(), "{range} is not all {part} of object {object}");
    }
    disjoint(extents.iter().map(|e| e.range).collect());
    disjoint(pieces.iter().map(|p| p.2).collect());
    let bytes = |ranges: &mut dyn Iterator<Item = Range>| ranges.map(Range::len).sum::<u64>();
    assert_eq!(bytes(&mut pieces.iter().map(|p| p.2)), bytes(&mut extents.iter().map(|e| e.range)));
}

fn disjoint(mut ranges: Vec<Range>) {
    ranges.sort();
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{ranges:?}");
}

/// The span's bytes are mapped, with its protection and no other, and its object's segments
/// say that they are what it takes them for.
fn in_its_place(snapshot: &Snapshot, policy: &Policy, span: &Span) {
    let mappings = overlapping(&snapshot.mappings, span.range);
    let held: u64 = mappings.iter().filter_map(|m| m.range.intersect(span.range)).map(Range::len).sum();
    assert_eq!(
        held,
        span.held.iter().map(|r| r.len()).sum::<u64>(),
        "{} holds what is not mapped",
        span.range
    );
    disjoint(span.held.clone());
    for gap in span.gaps() {
        assert!(policy.span != SpanChoice::Inner && overlapping(&snapshot.mappings, gap).is_empty());
        nobodys(snapshot, span, gap);
    }
    for m in mappings {
        assert!(m.prot == span.prot && !m.shared, "{} over {}, {}", span.range, m.range, m.prot);
    }
    let allowed: &[Prot] = match span.part {
        Part::Text => &[Prot::RX],
        Part::Rodata => &[Prot::R],
        Part::Relro => &[Prot::R, Prot::RW],
        Part::Data | Part::Bss | Part::Heap | Part::Stack => &[Prot::RW],
    };
    assert!(allowed.contains(&span.prot), "{} of {}", span.prot, span.part);
    let object = &snapshot.objects[span.object];
    for e in snapshot.extents().iter().filter(|e| e.range.intersect(span.range).is_some()) {
        let object = &snapshot.objects[e.object];
        assert!(policy.parts.contains(&e.part) && policy.objects.takes(object));
        assert!(!(object.textrel && e.part == Part::Text));
        let alone = (e.object, e.part) == (span.object, span.part) && span.gaps().is_empty();
        assert!(alone || policy.span != SpanChoice::Inner, "{} takes others along", span.range);
        assert!(alone || !(e.part == Part::Relro && e.prot.write), "{}: RELRO beside others", span.range);
        assert!(alone || !matches!(e.part, Part::Heap | Part::Stack), "{}: {} is copied", span.range, e.part);
    }
    let base = snapshot.machine.base_page;
    if matches!(span.part, Part::Heap | Part::Stack) {
        return;
    }
    let kind = |s: &&Segment| {
        s.prot.write == span.part.is_writable() && (s.prot.write || s.prot.exec == (span.part == Part::Text))
    };
    let stated = object.headers.segments.iter().filter(kind);
    let rounded = stated
        .filter_map(|s| object.loaded(s.vaddr, s.memsz))
        .filter_map(|r| Some(Range { start: r.start.align_down(base), end: r.end.align_up(base)? }));
    let is_outer = snapshot.extents().iter().all(|e| !e.range.covers(span.range));
    if is_outer {
        return;
    }
    let rest = rounded.fold(vec![span.range], |rest, r| rest.iter().flat_map(|p| p.minus(r)).collect());
    assert!(rest.is_empty(), "{} reaches beyond its part: {rest:?}", span.range);
}

/// Unmapped space that is not kept free by being so.
fn nobodys(snapshot: &Snapshot, span: &Span, gap: Range) {
    let base = snapshot.machine.base_page.bytes();
    assert!(span.range.start > Addr(0) && span.range.len() == span.attempts[0].page.bytes());
    let below = snapshot.mappings.iter().rfind(|m| m.range.end <= gap.start);
    let above = snapshot.mappings.iter().find(|m| m.range.start >= gap.end).expect("something above");
    assert!(!above.is_named("[stack]") && !below.is_some_and(|m| m.is_named("[heap]")), "{gap}");
    let brk =
        snapshot.brk.filter(|brk| below.is_none_or(|m| m.range.end <= *brk) && *brk < above.range.start);
    assert!(brk.is_none_or(|brk| gap.end <= brk), "{gap} is for the heap at {brk:?}");
    let is_stranger = |m: &Mapping| {
        !m.is_file() && !snapshot.extents().iter().any(|e| e.range.intersect(m.range).is_some())
    };
    let far = |from: Addr, to: Addr| to < from || to.0 - from.0 >= 256 * base;
    assert!(!is_stranger(above) || far(span.range.end, above.range.start), "{gap} below {}", above.range);
    assert!(!below.is_some_and(|m| is_stranger(m) && !far(m.range.end, span.range.start)), "{gap}");
}

/// The attempt's steps work on the span, and on scratch memory that is nobody's.
fn harmless(snapshot: &Snapshot, span: &Span, attempt: &Attempt) {
    let (page, whole) = (attempt.page, span.range);
    assert_eq!(whole.inner(page), Some(whole), "not aligned to {page}");
    if attempt.in_place {
        assert!(matches!(span.part, Part::Bss | Part::Heap | Part::Stack), "{} in place", span.part);
        let steps: Vec<_> = attempt.steps.iter().filter(|s| !matches!(s, Step::Bind { .. })).collect();
        assert_eq!(steps, [&Step::Collapse { range: whole }, &Step::Advise { range: whole }]);
        return;
    }
    if attempt.backing == Backing::Pagecache {
        assert_eq!(attempt.steps, [Step::FaultIn { range: whole, page }, Step::Verify { range: whole }]);
        assert!(snapshot.cached.iter().any(|c| c.covers(whole)), "{whole} is not in huge folios");
        return;
    }
    let scratch = attempt.steps.iter().find_map(|step| match step {
        Step::Map { range, .. } | Step::MapFile { range } => Some(*range),
        Step::MapStored(copy) => Some(copy.range),
        _ => None,
    });
    let scratch = scratch.expect("a scratch range");
    assert_eq!((scratch.len(), scratch.inner(page)), (whole.len(), Some(scratch)));
    assert!(overlapping(&snapshot.mappings, scratch).is_empty(), "scratch {scratch} is not free");
    assert!(scratch.end.0 < 1 << 63);
    for step in &attempt.steps {
        match *step {
            Step::Map { range, .. }
            | Step::MapFile { range }
            | Step::Advise { range }
            | Step::Populate { range, .. }
            | Step::Bind { range, .. }
            | Step::Verify { range } => assert_eq!(range, scratch),
            Step::Collapse { .. } => panic!("only in place"),
            Step::MapStored(MapStored { range, prot, entry, offset }) => {
                let copy = snapshot.stored.covering(span.range).expect("a copy");
                let want = (scratch, span.prot, span.object, copy.offset);
                assert_eq!((range, prot, entry, offset), want);
            }
            Step::CreateFile { bytes, page: p } => assert_eq!((bytes, p), (whole.len(), page)),
            Step::Copy { from, to } => {
                assert!(span.held.contains(&from));
                assert_eq!(to.0 - scratch.start.0, from.start.0 - whole.start.0);
            }
            Step::Protect { range, prot } => assert_eq!((range, prot), (scratch, span.prot)),
            Step::Move { from, to } => assert_eq!((from, to), (scratch, whole.start)),
            Step::Replace { range, prot, scratch: s } => {
                assert_eq!((range, prot, s), (whole, span.prot, scratch.start));
            }
            Step::FaultIn { range, .. } => panic!("{range} is copied and not copied"),
        }
    }
    let copies = attempt.steps.iter().filter(|s| matches!(s, Step::Copy { .. })).count();
    assert_eq!(copies, if attempt.backing == Backing::Shared { 0 } else { span.held.len() });
    let last = attempt.steps.last();
    assert!(matches!(last, Some(Step::Move { .. } | Step::Replace { .. })));
}

/// First choices together take no more than the pools and the memory hold.
fn affordable(machine: &Machine, plan: &Plan) {
    let chosen = || plan.spans.iter().map(|s| (&s.attempts[0], s.range.len()));
    let thp = |(a, _): &(&Attempt, u64)| a.backing == Backing::Thp && !a.in_place;
    let mut memory: u64 = chosen().filter(thp).map(|(_, len)| len).sum();
    for pool in &machine.pools {
        let of_pool = chosen().filter(|(a, _)| a.backing == Backing::Hugetlb && a.page == pool.page);
        let pages: u64 = of_pool.map(|(_, len)| len / pool.page.bytes()).sum();
        assert!(pages <= pool.available(), "{pages} pages of {pool:?}");
        memory += pages.saturating_sub(pool.unpromised()) * pool.page.bytes();
    }
    assert!(memory <= machine.memory_left, "{memory} bytes of {}", machine.memory_left);
}

/// Carried out, the plan changes nothing that the program could see.
fn invisible(snapshot: &Snapshot, plan: &Plan) {
    let before = Model::new(snapshot);
    let mut model = before.clone();
    let outcome = apply(&mut model, plan);
    assert!(outcome.is_complete() && outcome.leftovers.is_empty(), "{outcome:?}");
    for (span, told) in plan.spans.iter().zip(&outcome.spans) {
        let way = told.way(span).expect("one that worked");
        let is_huge = model.is_huge(span.range) || model.is_advised(span.range);
        assert!(way.is_unseen() || is_huge, "{} by {way:?}", span.range);
    }
    let gaps: Vec<Range> = plan.spans.iter().flat_map(Span::gaps).collect();
    let zeros = |s: &Span| s.gaps().into_iter().all(|gap| model.is_zero(gap, s.prot));
    assert!(plan.spans.iter().all(zeros), "{gaps:?}");
    assert!(model.visible_outside(&gaps) == before.visible());
    assert!(!model.saw_wx && model.open_files() == 0);
}

fn check(snapshot: &Snapshot, policy: &Policy) -> Plan {
    let plan = plan(snapshot, policy);
    tiles(snapshot, &plan);
    for span in &plan.spans {
        in_its_place(snapshot, policy, span);
        assert!(!span.attempts.is_empty(), "{} has no way", span.range);
        for attempt in &span.attempts {
            let wanted = if span.part.is_writable() { &policy.data_backings } else { &policy.backings };
            assert!(wanted.contains(&attempt.backing));
            assert!(policy.page.allows(attempt.page));
            harmless(snapshot, span, attempt);
        }
    }
    within_what_may_be_copied(snapshot, policy, &plan);
    affordable(&snapshot.machine, &plan);
    invisible(snapshot, &plan);
    plan
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_sound(snapshot in snapshot(), policy in policy()) {
        check(&snapshot, &policy);
    }
}

/// The property above would hold for empty plans: most of the generated must not be.
#[test]
fn the_generator_makes_work() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut spans, mut by_pool, mut second, mut split, mut partial) = (0, 0, 0, 0, 0);
    let (mut over_nothing, mut several) = (0, 0);
    for _ in 0..1000 {
        let tree = (snapshot(), policy()).new_tree(&mut runner).unwrap();
        let (snapshot, policy) = tree.current();
        let plan = check(&snapshot, &policy);
        spans += plan.spans.len();
        by_pool += plan.spans.iter().filter(|s| s.attempts[0].backing == Backing::Hugetlb).count();
        second += plan.spans.iter().filter(|s| s.attempts.len() > 1).count();
        over_nothing += plan.spans.iter().filter(|s| !s.gaps().is_empty()).count();
        let alone = |s: &Span| snapshot.extents().iter().any(|e| e.range.covers(s.held[0]));
        several += plan.spans.iter().filter(|s| s.held.len() > 1 || !alone(s)).count();
        let untouched = plan.skips.iter().any(|s| s.reason == Reason::NotTouched);
        partial += usize::from(untouched && hugelift_core::plan::copied(&plan).next().is_some());
        split += plan.spans.windows(2).filter(|w| w[0].range.end == w[1].range.start).count();
    }
    let seen = format!("{spans} spans, {by_pool} from a pool, {second} with a second way, {split} split");
    let seen = format!(
        "{seen}, {over_nothing} over unmapped space, {several} of several extents, {partial} in part"
    );
    assert!(spans > 500 && by_pool > 100 && second > 20 && split > 10 && partial > 5, "{seen}");
    assert!(over_nothing > 20 && several > 5, "{seen}");
}
