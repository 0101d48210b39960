// SPDX-License-Identifier: Apache-2.0
//! Generates processes, machines and policies with proptest.

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{Headers, Machine as Arch, Segment, Stretch};
use hugelift_core::heat::hot::HotCode;
use hugelift_core::maps::{FileId, Mapping, Prot};
use hugelift_core::placement::Placement;
use hugelift_core::plan::shareable;
use hugelift_core::policy::{Backing, Copies, ObjectFilter, PageChoice, Policy, SpanChoice};
use hugelift_core::snapshot::{
    Machine, MemoryLimit, NotStored, Object, Part, Pool, Snapshot, Stored, StoredCopy, ThpOff,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::PathBuf;

const RWX: Prot = Prot { read: true, write: true, exec: true, bti: false };
const ROOT_OF_ALL: u64 = 1 << 46;

fn prot() -> impl Strategy<Value = Prot> {
    let exec = Prot { exec: true, ..Prot::NONE };
    prop_oneof![
        6 => Just(Prot::RX), 4 => Just(Prot::R), 2 => Just(Prot::RW),
        1 => Just(RWX), 1 => Just(Prot::NONE), 1 => Just(exec)
    ]
}

/// Generates base page and transparent huge page of x86-64 and AArch64.
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
    let left = prop_oneof![0..64_u64 << 30, 0..64_u64 << 20];
    let limit = (left, any::<bool>()).prop_map(|(left, counts_pools)| MemoryLimit {
        source: "/sys/fs/cgroup/memory.max".into(),
        bytes: left,
        left,
        counts_pools,
    });
    let memory = (memory, prop::option::weighted(0.2, limit));
    (pages(), thp, off, vec(pool_of(), 0..4), any::<(bool, bool)>(), memory).prop_map(
        |((base, huge), thp, thp_off, mut pools, (moves_hugetlb, has_folios), memory)| {
            let (memory_left, memory_limit) = memory;
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
                allows_thp: false,
                pools,
                moves_hugetlb,
                memory_left,
                memory_limit,
            }
        },
    )
}

/// A change of a segment's mapping after the loader has made it.
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

/// Memory that belongs to no object, `gap` base pages behind the end of object `of` (modulo their
/// number).
#[derive(Clone, Copy, Debug)]
struct Unrelated {
    of: usize,
    gap: u64,
    pages: u64,
    prot: Prot,
    is_heap: bool,
}

fn unrelated() -> impl Strategy<Value = Unrelated> {
    let prot = prop_oneof![2 => Just(Prot::NONE), 2 => Just(Prot::RW), 1 => prot()];
    let gap = prop_oneof![Just(0), 0..16_u64, 0..1024_u64];
    (0..5_usize, gap, 1..300_u64, prot, prop::bool::weighted(0.2))
        .prop_map(|(of, gap, pages, prot, is_heap)| Unrelated { of, gap, pages, prot, is_heap })
}

/// (protection, gap before it, size in memory, share of it in the file) of each segment. Gap and size are
/// in 4 kB pages, the share in 255ths.
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
    // Parts of one or a few huge pages, of each size of huge pages.
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

/// Maps the object as the kernel does, a later segment over an earlier one, then applies the changes.
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

pub fn snapshot() -> impl Strategy<Value = Snapshot> {
    let stock = vec(any::<bool>(), 8);
    let brk = prop_oneof![1 => Just(None), 3 => (0..2048_u64).prop_map(Some)];
    let others = (vec(unrelated(), 0..4), brk);
    (vec(plot(), 1..5), machine(), prop::bool::weighted(0.9), stock, others).prop_map(
        |(plots, machine, stack, stock, (unrelated, brk))| {
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
            for s in &unrelated {
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
            let mut snapshot = Snapshot { cached, brk, ..Snapshot::new(objects, mappings, machine) };
            snapshot.stored = stocked(&snapshot, &stock);
            snapshot
        },
    )
}

/// Returns a store that has copies of some shareable ranges or of all but the first page of them, and a reason for each of
/// the others.
fn stocked(snapshot: &Snapshot, stock: &[bool]) -> Stored {
    let mut stored = Stored::default();
    let page = snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
    for (i, (object, _, range)) in shareable(snapshot, &Policy::default()).into_iter().enumerate() {
        if stock[i % stock.len()] {
            let all_but_one = Addr(range.start.0 + page.bytes());
            let start = if i % 3 == 1 && all_but_one < range.end { all_but_one } else { range.start };
            let range = Range { start, ..range };
            // One file for each object.
            stored.copies.push(StoredCopy { range, entry: object, offset: (i as u64) << 40 });
        } else {
            stored.lacks.push((range, NotStored { why: "none".into(), hint: None }));
        }
    }
    stored
}

/// Returns what the page cache has of a file in huge folios: all, most of it, or nothing.
fn cached(mapping: &Mapping) -> Option<Range> {
    let inner = mapping.range.inner(PageSize::MB2).filter(|_| mapping.is_file())?;
    let missing = (mapping.range.end.0 >> 12) % 3 * (inner.len() / 16);
    Range::new(inner.start, Addr(inner.end.0 - missing).align_down(PageSize::MB2)).filter(|r| !r.is_empty())
}

pub fn policy() -> impl Strategy<Value = Policy> {
    let parts =
        [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack, Part::Anon];
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
    let spare = prop_oneof![Just(0), 0..1_u64 << 26, Just(u64::MAX)];
    let choices = (parts, backings, data, page, except, placement, span, (copies(), spare, within()));
    choices.prop_map(
        |(parts, backings, data_backings, page, except, placement, span, (copies, spare, within))| Policy {
            parts,
            objects: ObjectFilter::new(&[], &except).unwrap(),
            within,
            per_node: false,
            backings,
            data_backings,
            span,
            page,
            placement,
            copies,
            spare,
        },
    )
}

/// Generates the addresses that are wanted: mostly all.
fn within() -> impl Strategy<Value = Option<Range>> {
    let page = |n: u64| Addr(n << 12);
    let range = (0..1_u64 << 35, 0..1_u64 << 35);
    let range = range.prop_map(move |(a, b)| Range::new(page(a.min(b)), page(a.max(b))));
    prop_oneof![19 => Just(None), 1 => range]
}

/// Generates permission to copy now, later, or only what is in use.
fn copies() -> impl Strategy<Value = Copies> {
    let span = (0..1_u64 << 14).prop_map(|n| (n << 21, 1));
    let spans = vec(span, 0..300);
    let hot = spans.prop_map(|spans| Copies::Hot(HotCode::choose(spans, PageSize::MB2, u64::MAX)));
    prop_oneof![2 => Just(Copies::All), 1 => Just(Copies::Later), 1 => hot]
}
