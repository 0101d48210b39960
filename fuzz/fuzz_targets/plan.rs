// SPDX-License-Identifier: Apache-2.0
//! Plans snapshots of processes that contradict themselves, and carries the plans out in the model with a
//! fault at some call.
#![no_main]

use arbitrary::Arbitrary;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::apply::apply;
use hugelift_core::elf::{Headers, Machine as Arch, Segment, Stretch};
use hugelift_core::maps::{FileId, Mapping, Prot};
use hugelift_core::model::Model;
use hugelift_core::plan::plan;
use hugelift_core::policy::{Backing, PageChoice, Policy};
use hugelift_core::snapshot::{Machine, MemoryLimit, Object, Pool, Snapshot, Stored, ThpOff};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Elf {
    inode: u8,
    bias: u64,
    /// (protection, address, bytes in memory, bytes in the file)
    segments: Vec<(u8, u64, u64, u64)>,
    relro: Option<(u64, u64)>,
    textrel: bool,
}

#[derive(Arbitrary, Debug)]
struct Input {
    objects: Vec<Elf>,
    mappings: Vec<(u32, u32, u8, u8)>,
    base_shift: u8,
    thp_shift: Option<u8>,
    thp_off: Option<bool>,
    pools: Vec<(u8, [u64; 5])>,
    moves_hugetlb: bool,
    memory_left: u64,
    limit_left: Option<u64>,
    counts_pools: bool,
    backings: Vec<bool>,
    page: Option<u8>,
    fault: Option<(u8, i32)>,
    failed_move_unmaps: bool,
}

fn prot(bits: u8) -> Prot {
    Prot { read: bits & 1 != 0, write: bits & 2 != 0, exec: bits & 4 != 0, bti: false }
}

fn page(shift: u8) -> Option<PageSize> {
    PageSize::new(1 << (12 + shift % 52))
}

fn file(inode: u8) -> FileId {
    FileId { major: 0, minor: 0, inode: u64::from(inode % 5) }
}

fn snapshot(input: &Input) -> Option<Snapshot> {
    let objects = input.objects.iter().map(|Elf { inode, bias, segments, relro, textrel }| {
        let segment = |&(bits, vaddr, memsz, filesz): &(u8, u64, u64, u64)| Segment {
            prot: prot(bits),
            vaddr,
            memsz,
            filesz,
            offset: vaddr,
            align: 4096,
        };
        let headers = Headers {
            machine: Arch::X86_64,
            relocatable: true,
            entry: 0,
            segments: segments.iter().map(segment).collect(),
            relro: relro.map(|(vaddr, size)| Stretch { offset: 0, vaddr, size }),
            interp: None,
            dynamic: None,
            notes: vec![],
        };
        let (path, file) = ("/o".into(), file(*inode));
        Object { path, file, build_id: None, bias: *bias, headers, executable: false, textrel: *textrel }
    });
    let objects = objects.collect();
    let base_page = page(input.base_shift % 5)?;
    // Gaps and lengths in base pages, by address as the kernel prints them.
    let mut at = 0_u64;
    let mut mappings = Vec::new();
    for &(gap, len, bits, inode) in &input.mappings {
        let start = at.checked_add(u64::from(gap).checked_mul(base_page.bytes())?)?;
        let range = Range::sized(Addr(start), (u64::from(len) + 1).checked_mul(base_page.bytes())?)?;
        at = range.end.0;
        let (prot, shared) = (prot(bits), bits & 8 != 0);
        mappings.push(Mapping {
            range,
            prot,
            shared,
            offset: 0,
            file: file(inode),
            path: "/o".into(),
            deleted: false,
        });
    }
    let mut pools: Vec<Pool> = Vec::new();
    for &(shift, [total, free, reserved, surplus, overcommit]) in &input.pools {
        let page = page(shift)?;
        if page > base_page && pools.iter().all(|p| p.page != page) {
            pools.push(Pool { page, total, free, reserved, surplus, overcommit });
        }
    }
    let machine = Machine {
        base_page,
        thp_page: input.thp_shift.and_then(page).filter(|p| *p > base_page),
        folios: Vec::new(),
        thp_off: input.thp_off.map(|never| if never { ThpOff::Never } else { ThpOff::Process }),
        allows_thp: false,
        pools,
        moves_hugetlb: input.moves_hugetlb,
        memory_left: input.memory_left,
        memory_limit: input.limit_left.map(|left| MemoryLimit {
            source: "/sys/fs/cgroup/memory.max".into(),
            bytes: left,
            left,
            counts_pools: input.counts_pools,
        }),
    };
    let (patched, special, cached, tmpfs, stored) = (vec![], vec![], vec![], vec![], Stored::default());
    let brk = None;
    Some(Snapshot { objects, mappings, patched, special, cached, tmpfs, brk, machine, stored })
}

fuzz_target!(|input: Input| {
    let Some(snapshot) = snapshot(&input) else { return };
    let backings = input.backings.iter().map(|h| if *h { Backing::Hugetlb } else { Backing::Thp });
    let policy = Policy {
        backings: backings.collect(),
        page: input.page.map_or(PageChoice::Mixed, |p| page(p).map_or(PageChoice::Usual, PageChoice::Only)),
        ..Policy::default()
    };
    let plan = plan(&snapshot, &policy);

    let pieces = plan.spans.iter().map(|s| s.range).chain(plan.skips.iter().map(|s| s.range));
    let planned: u128 = pieces.map(|r| u128::from(r.len())).sum();
    let bytes: u128 = snapshot.extents().iter().map(|e| u128::from(e.range.len())).sum();
    assert_eq!(planned, bytes);
    for skip in &plan.skips {
        let _ = (skip.reason.to_string(), skip.reason.hint(), skip.reason.key());
    }

    let mut model = Model::new(&snapshot);
    let before = model.visible();
    model.fail_at = input.fault.map(|(at, errno)| (usize::from(at), errno));
    model.failed_move_unmaps = input.failed_move_unmaps;
    let saw = model.saw_wx;
    let outcome = apply(&mut model, &plan);
    assert!(model.visible() == before && model.saw_wx == saw && model.open_files() == 0);
    assert!(outcome.lost.is_none() && outcome.leftovers.is_empty());
    assert!(input.fault.is_some() || outcome.is_complete());
});
