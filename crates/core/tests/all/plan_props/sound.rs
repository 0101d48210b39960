// SPDX-License-Identifier: Apache-2.0
//! What must hold for every plan.

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::apply::apply;
use hugelift_core::elf::Segment;
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::model::Model;
use hugelift_core::plan::{Attempt, Plan, Span, Step, plan};
use hugelift_core::policy::{Backing, Copies, PageChoice, Policy, SpanChoice};
use hugelift_core::snapshot::{Machine, Part, Snapshot, overlapping};
use hugelift_core::target::MapStored;

fn is_copy(attempt: &Attempt) -> bool {
    !attempt.in_place && matches!(attempt.backing, Backing::Thp | Backing::Hugetlb)
}

/// No attempt copies more of text and rodata than the policy allows.
fn within_what_may_be_copied(policy: &Policy, plan: &Plan) {
    let constant = plan.spans.iter().filter(|span| !span.part.is_writable());
    let mut copied = constant.filter(|span| span.attempts.iter().any(is_copy));
    assert!(copied.all(|span| policy.copies.allow(span.range)), "{plan:?}");
}

/// Compares the plan with one under a policy that allows all copies: of what that plan lifts of text and
/// rodata, everything that needs no copy must be lifted too. Returns for how many spans this could be
/// checked.
pub fn all_that_is_due(snapshot: &Snapshot, policy: &Policy, plan: &Plan) -> usize {
    let all = hugelift_core::plan::plan(snapshot, &Policy { copies: Copies::All, ..policy.clone() });
    let lacks = |plan: &Plan| plan.skips.iter().any(|s| s.reason.is_remediable());
    // Memory that does not suffice for all spans may suffice for some, and for others if a large part
    // finds no gap.
    // Code in use is cut at pages of 2 MB, which are not huge on every machine.
    let other_rules = policy.span != SpanChoice::Inner
        || policy.page == PageChoice::Mixed
        || (matches!(policy.copies, Copies::Hot(_)) && snapshot.machine.thp_page != Some(PageSize::MB2));
    if policy.copies == Copies::All || other_rules || lacks(&all) || lacks(plan) {
        return 0;
    }
    let mut checked = 0;
    for span in all.spans.iter().filter(|span| !span.part.is_writable()) {
        let due = if is_copy(&span.attempts[0]) { vec![] } else { vec![span.range] };
        checked += usize::from(!due.is_empty());
        let left =
            plan.spans.iter().fold(due, |left, s| left.iter().flat_map(|r| r.minus(s.range)).collect());
        assert!(left.is_empty(), "{left:?} of {} is left out", span.range);
    }
    checked
}

/// Spans and skips hold every byte of the extents once, under its object and part.
fn tiles(snapshot: &Snapshot, plan: &Plan) {
    let extents = snapshot.extents();
    // An outer span may hold several parts.
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

/// The span's bytes are mapped with its protection alone, and its object's segments state the part that
/// the span names.
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
        is_free(snapshot, span, gap);
    }
    for m in mappings {
        assert!(m.prot == span.prot && !m.shared, "{} over {}, {}", span.range, m.range, m.prot);
    }
    let allowed: &[Prot] = match span.part {
        Part::Text => &[Prot::RX],
        Part::Rodata => &[Prot::R],
        Part::Relro => &[Prot::R, Prot::RW],
        Part::Data | Part::Bss | Part::Heap | Part::Stack => &[Prot::RW],
        Part::Anon | Part::Jit | Part::Shm => &[],
    };
    assert!(allowed.contains(&span.prot), "{} of {}", span.prot, span.part);
    let object = &snapshot.objects[span.object];
    for e in snapshot.extents().iter().filter(|e| e.range.intersect(span.range).is_some()) {
        let object = &snapshot.objects[e.object];
        assert!(policy.parts.contains(&e.part) && policy.objects.takes(object));
        assert!(
            policy
                .within
                .is_none_or(|within| within.covers(e.range.intersect(span.range).unwrap_or_default()))
        );
        assert!(!(object.textrel && e.part == Part::Text));
        let alone = (e.object, e.part) == (span.object, span.part) && span.gaps().is_empty();
        assert!(alone || policy.span != SpanChoice::Inner, "{} holds other parts", span.range);
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

/// The unmapped range `gap` of the span is no guard and no room to grow into.
fn is_free(snapshot: &Snapshot, span: &Span, gap: Range) {
    let base = snapshot.machine.base_page.bytes();
    assert!(span.range.start > Addr(0) && span.range.len() == span.attempts[0].page.bytes());
    let below = snapshot.mappings.iter().rfind(|m| m.range.end <= gap.start);
    let above = snapshot.mappings.iter().find(|m| m.range.start >= gap.end).expect("something above");
    assert!(!above.is_named("[stack]") && !below.is_some_and(|m| m.is_named("[heap]")), "{gap}");
    let brk =
        snapshot.brk.filter(|brk| below.is_none_or(|m| m.range.end <= *brk) && *brk < above.range.start);
    assert!(brk.is_none_or(|brk| gap.end <= brk), "{gap} is for the heap at {brk:?}");
    let is_unrelated = |m: &Mapping| {
        !m.is_file() && !snapshot.extents().iter().any(|e| e.range.intersect(m.range).is_some())
    };
    let far = |from: Addr, to: Addr| to < from || to.0 - from.0 >= 256 * base;
    assert!(!is_unrelated(above) || far(span.range.end, above.range.start), "{gap} below {}", above.range);
    assert!(!below.is_some_and(|m| is_unrelated(m) && !far(m.range.end, span.range.start)), "{gap}");
}

/// The attempt's steps work on the span, and on a scratch range that is not mapped.
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
                let copy = snapshot.stored.copies.iter().find(|copy| copy.range.covers(span.range));
                let copy = copy.and_then(|copy| copy.part(span.range)).expect("a copy");
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

/// The first attempts of all spans together take no more than the pools and the memory have.
fn affordable(machine: &Machine, spare: u64, plan: &Plan) {
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
    // They take no more of a control group's limit than the program can do without.
    let Some(limit) = &machine.memory_limit else { return };
    let charged = |span: &&Span| match span.attempts[0].backing {
        Backing::Thp => true,
        Backing::Hugetlb => limit.counts_pools || span.part.is_writable(),
        Backing::Pagecache | Backing::Shared => false,
    };
    let charged: u64 = plan.spans.iter().filter(charged).map(|s| s.range.len()).sum();
    assert!(charged <= spare.min(limit.left / 2), "{charged} bytes, {spare} spare of {limit:?}");
}

/// Carrying out the plan changes nothing that the program could see.
fn invisible(snapshot: &Snapshot, plan: &Plan) {
    let before = Model::new(snapshot);
    let mut model = before.clone();
    let outcome = apply(&mut model, plan);
    assert!(outcome.is_complete() && outcome.leftovers.is_empty(), "{outcome:?}");
    for (span, result) in plan.spans.iter().zip(&outcome.spans) {
        let attempt = result.succeeded(span).expect("an attempt that worked");
        let is_huge = model.is_huge(span.range) || model.is_advised(span.range);
        assert!(attempt.is_unseen() || is_huge, "{} by {attempt:?}", span.range);
    }
    let gaps: Vec<Range> = plan.spans.iter().flat_map(Span::gaps).collect();
    let zeros = |s: &Span| s.gaps().into_iter().all(|gap| model.is_zero(gap, s.prot));
    assert!(plan.spans.iter().all(zeros), "{gaps:?}");
    assert!(model.visible_outside(&gaps) == before.visible());
    assert!(!model.saw_wx && model.open_files() == 0);
}

/// Makes all checks of the plan for this process and policy. Returns the plan.
pub fn check(snapshot: &Snapshot, policy: &Policy) -> Plan {
    let plan = plan(snapshot, policy);
    tiles(snapshot, &plan);
    for span in &plan.spans {
        assert!(!span.attempts.is_empty(), "{} has no attempt", span.range);
        in_its_place(snapshot, policy, span);
        for attempt in &span.attempts {
            let wanted = if span.part.is_writable() { &policy.data_backings } else { &policy.backings };
            assert!(wanted.contains(&attempt.backing));
            assert!(policy.page.allows(attempt.page));
            harmless(snapshot, span, attempt);
        }
    }
    within_what_may_be_copied(policy, &plan);
    all_that_is_due(snapshot, policy, &plan);
    affordable(&snapshot.machine, policy.spare, &plan);
    invisible(snapshot, &plan);
    plan
}
