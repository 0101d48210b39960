// SPDX-License-Identifier: Apache-2.0
//! One process, changed in one way for each obstacle to rounding out.

use super::*;
use crate::maps::Prot;
use crate::plan::tests::{MB, PAGE, anonymous, mapping, program, r, writable};
use crate::plan::{Plan, Step, plan};
use crate::policy::Copies;

const KB: u64 = 1 << 10;

fn policy(span: SpanChoice) -> Policy {
    let parts = vec![Part::Text, Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack];
    Policy { parts, backings: vec![Backing::Thp], span, ..Policy::default() }
}

fn outer(snapshot: &Snapshot) -> Plan {
    plan(snapshot, &policy(SpanChoice::Outer))
}

/// Returns why the last huge page of text stays.
#[track_caller]
fn refused(snapshot: &Snapshot) -> Reason {
    let plan = outer(snapshot);
    assert!(plan.spans.iter().all(|s| s.gaps().is_empty()), "{plan:#?}");
    let of_text = plan.skips.iter().rfind(|s| s.part == Part::Text);
    of_text.unwrap_or_else(|| panic!("{plan:#?}")).reason.clone()
}

/// Returns a program with text at 2 MB that is 7 MB and 64 kB long.
fn odd() -> Snapshot {
    program(r(2 * MB, 9 * MB + 64 * KB))
}

#[test]
fn unmapped_space_becomes_zeros() {
    let plan = outer(&odd());
    assert!(plan.skips.is_empty(), "{plan:#?}");
    let [inner, last] = &plan.spans[..] else { panic!("{plan:#?}") };
    assert_eq!((inner.range, inner.held.as_slice()), (r(2 * MB, 8 * MB), &[r(2 * MB, 8 * MB)][..]));
    let held = r(8 * MB, 9 * MB + 64 * KB);
    assert_eq!((last.range, last.held.as_slice()), (r(8 * MB, 10 * MB), &[held][..]));
    assert_eq!(last.gaps(), [r(9 * MB + 64 * KB, 10 * MB)]);
    let copies = |s: &&Step| matches!(s, Step::Copy { from, .. } if *from == held);
    assert_eq!(last.attempts[0].steps.iter().filter(copies).count(), 1);
}

#[test]
fn inner_leaves_it_and_auto_asks_for_half_a_page() {
    let with = |snapshot: &Snapshot, span| plan(snapshot, &policy(span));
    let inner = with(&odd(), SpanChoice::Inner);
    assert_eq!((inner.spans.len(), inner.skips[0].reason.clone()), (1, Reason::NotAligned(PAGE)));
    assert_eq!(with(&odd(), SpanChoice::Auto).spans.len(), 2);
    let little = program(r(2 * MB, 8 * MB + 64 * KB));
    assert_eq!(with(&little, SpanChoice::Auto).spans.len(), 1);
    assert_eq!(with(&little, SpanChoice::Outer).spans.len(), 2);
    // A program that fills little of a huge page gets none.
    assert!(with(&program(r(2 * MB, 2 * MB + 64 * KB)), SpanChoice::Outer).spans.is_empty());
    assert_eq!(with(&program(r(2 * MB, 3 * MB)), SpanChoice::Outer).spans.len(), 1);
}

#[test]
fn auto_does_not_copy_the_edge_of_a_shared_part() {
    let mut snapshot = odd();
    snapshot.cached = vec![r(2 * MB, 8 * MB)];
    snapshot.mappings[0].offset = 0;
    let with = |span| {
        let backings = vec![Backing::Pagecache, Backing::Thp];
        plan(&snapshot, &Policy { backings, ..policy(span) })
    };
    assert_eq!(with(SpanChoice::Auto).spans.len(), 1);
    let [cached, copied] = &with(SpanChoice::Outer).spans[..] else { panic!() };
    assert_eq!(cached.attempts[0].backing, Backing::Pagecache);
    assert_eq!(copied.attempts.iter().map(|a| a.backing).collect::<Vec<_>>(), [Backing::Thp]);
}

#[test]
fn edges_of_a_cached_part_are_not_copied_where_the_policy_restricts_copies() {
    let mut snapshot = odd();
    snapshot.cached = vec![r(2 * MB, 8 * MB)];
    let backings = vec![Backing::Pagecache, Backing::Thp];
    let copies = Copies::Later;
    let plan = plan(&snapshot, &Policy { backings, copies, ..policy(SpanChoice::Outer) });
    let [cached] = &plan.spans[..] else { panic!("{plan:#?}") };
    assert_eq!((cached.range, cached.attempts[0].backing), (r(2 * MB, 8 * MB), Backing::Pagecache));
    assert_eq!(plan.skips[0].reason, Reason::NotAligned(PAGE));
}

#[test]
fn data_and_bss_fill_a_page_together() {
    let mut snapshot = writable();
    let segment = &mut snapshot.objects[0].headers.segments[1];
    segment.filesz = 4 * MB + 512 * KB;
    let (file_end, end) = (20 * MB + 512 * KB, 26 * MB);
    snapshot.mappings[1] = mapping(r(16 * MB, file_end), Prot::RW);
    snapshot.mappings[2] = anonymous(r(file_end, end), "");
    let plan = outer(&snapshot);
    let both =
        plan.spans.iter().find(|s| s.range == r(20 * MB, 22 * MB)).unwrap_or_else(|| panic!("{plan:#?}"));
    // It counts as bss, which fills most of it. It is a copy, although bss alone would stay in place.
    assert_eq!((both.part, both.attempts[0].in_place), (Part::Bss, false));
    assert_eq!(both.held, [r(20 * MB, 22 * MB)]);
}

#[test]
fn mappings_of_other_protection_or_of_no_object_are_respected() {
    let mut guarded = odd();
    guarded.mappings.insert(1, mapping(r(9 * MB + 512 * KB, 10 * MB), Prot::NONE));
    assert_eq!(refused(&guarded), Reason::Neighbour(PAGE));
    let mut unrelated = odd();
    unrelated.mappings.insert(1, mapping(r(9 * MB + 512 * KB, 10 * MB), Prot::RX));
    assert_eq!(refused(&unrelated), Reason::Beside(PAGE));
    let mut special = odd();
    special.special = vec![(r(2 * MB, 10 * MB), Attribute::Locked)];
    assert_eq!(outer(&special).skips[0].reason, Reason::Special(Attribute::Locked));
}

#[test]
fn room_to_grow_stays_free() {
    let kept = Reason::KeptFree(PAGE);
    let mut heap = odd();
    for brk in [9 * MB + 64 * KB, 9 * MB + 128 * KB, 10 * MB - 4 * KB] {
        heap.brk = Some(Addr(brk));
        assert_eq!(refused(&heap), kept, "{brk:#x}");
    }
    heap.brk = Some(Addr(10 * MB));
    assert_eq!(outer(&heap).spans.len(), 2);
    heap.brk = None;
    assert_eq!(refused(&heap), kept);

    let mut stack = odd();
    stack.mappings[1] = anonymous(r(64 * MB, 65 * MB), "[stack]");
    assert_eq!(refused(&stack), kept);
    stack.mappings[1] = anonymous(r(64 * MB, 65 * MB), "");
    assert_eq!(outer(&stack).spans.len(), 2);
    stack.special = vec![(r(64 * MB, 65 * MB), Attribute::GrowsDown)];
    assert_eq!(refused(&stack), kept);
}

#[test]
fn a_distance_to_what_may_be_a_stack_stays() {
    let mut near = odd();
    near.mappings.insert(1, anonymous(r(0, 0), ""));
    for (start, free) in [(10 * MB, false), (11 * MB - 4 * KB, false), (11 * MB, true)] {
        near.mappings[1] = anonymous(r(start, 64 * MB), "");
        assert_eq!(outer(&near).spans.len() == 2, free, "{start:#x}");
    }
    // A file is no stack.
    near.mappings[1] = mapping(r(10 * MB, 64 * MB), Prot::R);
    assert_eq!(outer(&near).spans.len(), 2);
    // A mapping close below may be a stack too.
    let mut above = program(r(5 * MB, 12 * MB));
    above.mappings.insert(0, anonymous(r(2 * MB, 4 * MB - 4 * KB), ""));
    assert_eq!(outer(&above).skips[0].reason, Reason::KeptFree(PAGE));
    above.mappings[0] = anonymous(r(MB, 2 * MB), "");
    assert_eq!(outer(&above).spans.len(), 2);
}

#[test]
fn the_first_page_of_the_address_space_stays_free() {
    assert_eq!(outer(&program(r(MB, 8 * MB))).skips[0].reason, Reason::KeptFree(PAGE));
}

#[test]
fn relro_that_is_still_writable_shares_no_outer_span() {
    let mut snapshot = writable();
    snapshot.mappings.pop();
    let object = &mut snapshot.objects[0];
    object.headers.segments[1].vaddr = 15 * MB;
    object.headers.segments[1].memsz = 11 * MB;
    object.headers.segments[1].filesz = 5 * MB;
    object.headers.relro = Some(crate::elf::Stretch { offset: 0, vaddr: 15 * MB, size: 2 * MB });
    snapshot.mappings[1] = mapping(r(15 * MB, 20 * MB), Prot::RW);
    let first = |snapshot: &Snapshot| {
        let plan = outer(snapshot);
        let skip = plan.skips.iter().find(|s| s.range.contains(Addr(16 * MB))).cloned();
        (plan, skip.map(|s| s.reason))
    };
    let (plan, reason) = first(&snapshot);
    assert!(plan.spans.iter().all(|s| s.range.start >= Addr(18 * MB)), "{plan:#?}");
    assert_eq!(reason, Some(Reason::Neighbour(PAGE)), "{plan:#?}");
}
