// SPDX-License-Identifier: Apache-2.0
//! Lifts real programs in the model: every call of every plan fails once, with each errno that Linux may
//! return, and the program must not notice.

use crate::common::{PROGRAMS, machine, pool, snapshot};
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::apply::{Outcome, apply};
use hugelift_core::maps::Prot;
use hugelift_core::model::{Content, Model};
use hugelift_core::placement::Placement;
use hugelift_core::plan::{Plan, Span, Step, plan, shareable};
use hugelift_core::policy::{Backing, Copies, Policy, SpanChoice};
use hugelift_core::snapshot::{Part, Snapshot, StoredCopy};
use hugelift_core::target::Fault;

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;

/// A program, a plan for it and a model to carry it out on.
struct Case {
    name: String,
    plan: Plan,
    model: Model,
    /// How many attempts of each span fail without an injected fault before one works.
    doomed: usize,
}

const ALL_PARTS: [Part; 7] =
    [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack];

/// Plans `snapshot` for `backings`; `change` changes the model after planning.
fn case(name: &str, snapshot: &Snapshot, backings: &[Backing], change: impl FnOnce(&mut Model)) -> Case {
    let policy = Policy { backings: backings.to_vec(), ..Policy::default() };
    planned(name, snapshot, policy, change)
}

/// The same with writable parts too.
fn case_of_all(name: &str, snapshot: &Snapshot, data: &[Backing], change: impl FnOnce(&mut Model)) -> Case {
    // Text is backed by the pool first, so that data on transparent huge pages differs from it.
    let (backings, data_backings) = (vec![Backing::Hugetlb, Backing::Thp], data.to_vec());
    let policy = Policy { parts: ALL_PARTS.to_vec(), backings, data_backings, ..Policy::default() };
    planned(name, snapshot, policy, change)
}

/// The same on a NUMA node.
fn placed(name: &str, snapshot: &Snapshot, backings: &[Backing]) -> Case {
    let placement = Some(Placement::On("1".parse().unwrap()));
    let (backings, data_backings) = (backings.to_vec(), backings.to_vec());
    let policy =
        Policy { parts: ALL_PARTS.to_vec(), backings, data_backings, placement, ..Policy::default() };
    planned(name, snapshot, policy, |_| ())
}

/// The same with outer spans.
fn case_rounded(name: &str, snapshot: &Snapshot, data: &[Backing]) -> Case {
    let (parts, backings, data_backings) = (ALL_PARTS.to_vec(), data.to_vec(), data.to_vec());
    let policy = Policy { parts, backings, data_backings, span: SpanChoice::Outer, ..Policy::default() };
    planned(name, snapshot, policy, |_| ())
}

/// The same without copies.
fn later(name: &str, snapshot: &Snapshot, backings: &[Backing]) -> Case {
    let policy = Policy { backings: backings.to_vec(), copies: Copies::Later, ..Policy::default() };
    planned(name, snapshot, policy, |_| ())
}

fn planned(name: &str, snapshot: &Snapshot, policy: Policy, change: impl FnOnce(&mut Model)) -> Case {
    let mut model = Model::new(snapshot);
    change(&mut model);
    Case { name: name.into(), plan: plan(snapshot, &policy), model, doomed: 0 }
}

fn cases(program: &str, record: &str) -> Vec<Case> {
    let full = snapshot(record, machine());
    let mut old = full.clone();
    old.machine.moves_hugetlb = false;
    let all = plan(&full, &Policy::default());
    let pages: u64 = all.spans.iter().map(|s| s.range.len() / PageSize::MB2.bytes()).sum();
    let mut short = full.clone();
    short.machine.pools = vec![pool(PageSize::MB2, pages / 2)];
    let stocked = stocked(&full);
    let (thp, hugetlb, shared) = (Backing::Thp, Backing::Hugetlb, Backing::Shared);
    let named = |variant: &str| format!("{program} on {variant}");
    let mut cases = vec![
        case(&named("thp"), &full, &[thp], |_| ()),
        case(&named("hugetlb, moved"), &full, &[hugetlb], |_| ()),
        case(&named("hugetlb, by file"), &old, &[hugetlb], |_| ()),
        case(&named("pool first, pool short"), &short, &[hugetlb, thp], |_| ()),
        case(&named("pool first, kernel before 5.16"), &old, &[hugetlb, thp], |_| ()),
        case_of_all(&named("pool first, data on thp"), &full, &[thp], |_| ()),
        case_of_all(&named("pool first, data on hugetlb"), &full, &[hugetlb, thp], |_| ()),
        placed(&named("thp, placed"), &full, &[thp]),
        placed(&named("hugetlb by file, placed"), &old, &[hugetlb]),
        case_rounded(&named("thp, outer spans"), &full, &[thp]),
        case_rounded(&named("hugetlb, outer spans"), &full, &[hugetlb]),
        case_rounded(&named("hugetlb by file, outer spans"), &old, &[hugetlb]),
        case_rounded(&named("hugetlb, else thp, outer spans"), &full, &[hugetlb, thp]),
        case(&named("shared"), &stocked, &[shared], |_| ()),
        case(&named("shared, else thp"), &stocked, &[shared, thp], |_| ()),
        case(&named("half of it shared, else thp"), &half_stocked(&full), &[shared, thp], |_| ()),
        later(&named("half of it shared, the rest later"), &half_stocked(&full), &[shared, thp]),
    ];
    let stolen = |m: &mut Model| m.pools.values_mut().for_each(|left| *left = 0);
    let falls_back = [
        case(&named("pool first, pool stolen"), &full, &[hugetlb, thp], stolen),
        case(&named("pool first, pool of files stolen"), &old, &[hugetlb, thp], stolen),
        case(&named("shared fragmented"), &stocked, &[shared, hugetlb], |m| m.fragmented = true),
        case(&named("thp fragmented"), &full, &[thp, hugetlb], |m| m.fragmented = true),
    ];
    cases.extend(falls_back.into_iter().map(|case| Case { doomed: 1, ..case }));
    cases
}

/// Returns the snapshot with a copy in the store of everything that can be shared, one file per object.
fn stocked(snapshot: &Snapshot) -> Snapshot {
    let mut stocked = snapshot.clone();
    let mut next = PageSize::MB2.bytes();
    for (entry, _, range) in shareable(snapshot, &Policy::default()) {
        stocked.stored.copies.push(StoredCopy { range, entry, offset: next });
        next += range.len();
    }
    stocked
}

/// Returns what the program can see, without the zeros that outer spans have added.
fn shown(case: &Case, model: &Model, outcome: &Outcome) -> Vec<(Range, Prot, Content)> {
    model.visible_outside(&gaps(case, model, outcome))
}

/// Returns the zeros that outer spans have added.
fn gaps(case: &Case, model: &Model, outcome: &Outcome) -> Vec<Range> {
    let mut gaps = Vec::new();
    for (span, result) in case.plan.spans.iter().zip(&outcome.spans) {
        for gap in span.gaps().into_iter().filter(|_| result.lifted.is_some()) {
            assert!(model.is_zero(gap, span.prot), "{}: {gap} is not zeros", case.name);
            gaps.push(gap);
        }
    }
    gaps
}

/// Returns the snapshot with a copy of every other part in the store.
fn half_stocked(snapshot: &Snapshot) -> Snapshot {
    let mut half = stocked(snapshot);
    let mut n = 0;
    half.stored.copies.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    half
}

/// Checks that the outcome is true for each span.
fn check_outcome(case: &Case, model: &Model, outcome: &Outcome, what: &str) {
    assert_eq!(outcome.spans.len(), case.plan.spans.len(), "{what}");
    for (span, result) in case.plan.spans.iter().zip(&outcome.spans) {
        let lifted = model.is_huge(span.range) || model.is_advised(span.range);
        assert_eq!(result.lifted.is_some(), lifted, "{what}: {}", span.range);
        let tried = result.failures.len() + usize::from(result.lifted.is_some());
        assert!(tried <= span.attempts.len(), "{what}: {}", span.range);
        assert!(result.lifted.is_some() || tried == span.attempts.len(), "{what}: an attempt was not tried");
    }
}

#[test]
fn without_a_fault_all_spans_are_huge_and_look_the_same() {
    for (program, record) in PROGRAMS {
        for case in cases(program, record) {
            let mut model = case.model.clone();
            let outcome = apply(&mut model, &case.plan);
            assert!(outcome.is_complete() && outcome.leftovers.is_empty(), "{}: {outcome:?}", case.name);
            check_outcome(&case, &model, &outcome, &case.name);
            assert!(outcome.spans.iter().all(|s| s.failures.len() == case.doomed), "{}", case.name);
            assert!(shown(&case, &model, &outcome) == case.model.visible(), "{}", case.name);
            assert!(model.open_files() == 0 && !model.saw_wx, "{}", case.name);
            // The pages of a file are on the node, but the span that maps it has no policy.
            let bound = case.name.contains("placed") && !case.name.contains("by file");
            let stays = |s: &Span| s.attempts[0].in_place;
            let right = |s: &Span| stays(s) || model.is_bound(s.range) == bound;
            assert!(case.plan.spans.iter().all(right), "{}", case.name);
        }
    }
}

#[test]
fn the_records_have_something_to_lift() {
    let mut pages = 0;
    for (program, record) in PROGRAMS {
        let plan = plan(&snapshot(record, machine()), &Policy::default());
        // libpython's 2.2 MB of text do not hold one whole aligned page.
        assert_eq!(plan.spans.is_empty(), *program == "python", "{program}: {plan:#?}");
        pages += plan.spans.iter().map(|s| s.range.len() >> 21).sum::<u64>();
    }
    assert!(pages > 100, "{pages} huge pages in all records");
    let rounded = |record: &str| {
        let spans = case_rounded("", &snapshot(record, machine()), &[Backing::Thp]).plan.spans;
        let outer = |s: &&Span| !s.gaps().is_empty();
        (spans.iter().filter(outer).count(), spans.len())
    };
    let plain = |record: &str| {
        case_of_all("", &snapshot(record, machine()), &[Backing::Thp], |_| ()).plan.spans.len()
    };
    let all: Vec<(usize, usize)> = PROGRAMS.iter().map(|(_, record)| rounded(record)).collect();
    let more: usize = PROGRAMS.iter().zip(&all).map(|((_, r), (_, n))| n - plain(r)).sum();
    let over_nothing: usize = all.iter().map(|(gaps, _)| gaps).sum();
    assert!(more >= 4 && over_nothing >= 2, "{more} outer spans, {over_nothing} of them over unmapped space");
}

#[test]
fn each_call_may_fail_once() {
    let mut runs = 0;
    for (program, record) in PROGRAMS {
        for case in cases(program, record) {
            for failed_move_unmaps in [false, true] {
                let mut model = case.model.clone();
                model.failed_move_unmaps = failed_move_unmaps;
                for errno in [ENOMEM, EINVAL, EFAULT, EAGAIN, EPERM] {
                    let calls = fail_each_call(&case, &model, errno);
                    let steps: usize = case.plan.spans.iter().map(|s| s.attempts[0].steps.len()).sum();
                    assert!(case.doomed > 0 || calls >= steps, "{}: {calls} calls", case.name);
                    runs += calls;
                }
            }
        }
    }
    assert!(runs > 10_000, "only {runs} faults");
}

/// Calls whose failure changes nothing: those that undo a step are repeated, and huge pages that
/// collapsing does not bring are reported as lacking.
const FORGIVEN: [&str; 3] = ["munmap", "close", "madvise(MADV_COLLAPSE)"];

fn fail_each_call(case: &Case, fresh: &Model, errno: i32) -> usize {
    let before = fresh.visible();
    for at in 0..usize::MAX {
        let mut model = fresh.clone();
        model.fail_at = Some((at, errno));
        let outcome = apply(&mut model, &case.plan);
        let Some(call) = model.failed.first() else {
            // There are no more calls: every one has failed once.
            assert_eq!(model.calls, at, "{}", case.name);
            return at;
        };
        let what = format!("{}: {call}, call {at}, errno {errno}", case.name);
        assert!(shown(case, &model, &outcome) == before, "{what}: the program sees a difference");
        assert!(model.open_files() == 0, "{what}: a file is left open");
        for (span, result) in case.plan.spans.iter().zip(&outcome.spans) {
            assert!(
                result.lifted.is_some() || !model.is_bound(span.range),
                "{what}: {} is bound",
                span.range
            );
        }
        assert!(!model.saw_wx, "{what}: writable and executable");
        assert!(outcome.lost.is_none() && outcome.leftovers.is_empty(), "{what}: {outcome:?}");
        check_outcome(case, &model, &outcome, &what);

        let injected =
            |f: &Fault| matches!(f, Fault::Call { call: c, errno: e, .. } if c == call && *e == errno);
        let reported = outcome.spans.iter().filter(|s| s.failures.iter().any(|(_, f)| injected(f))).count();
        let concerned = outcome.spans.iter().filter(|s| s.failures.len() > case.doomed).count();
        if FORGIVEN.contains(call) {
            let complete = outcome.lost.is_none() && outcome.spans.iter().all(|s| s.lifted.is_some());
            assert!(complete && concerned == 0, "{what}: {outcome:?}");
        } else {
            assert!(reported >= 1 && concerned <= 1, "{what}: {outcome:?}");
            let left = outcome.spans.iter().filter(|s| s.lifted.is_none()).count();
            assert!(left <= 1, "{what}: spans that the fault does not affect are not huge");
        }
    }
    0
}

/// From some call on every call fails, also those that undo steps: then the outcome names everything that
/// was not restored.
#[test]
fn every_call_may_fail_from_one_on() {
    for (program, record) in PROGRAMS {
        for case in cases(program, record) {
            let before = case.model.visible();
            let mut at = 0;
            loop {
                let mut model = case.model.clone();
                (model.fail_at, model.fail_on) = (Some((at, ENOMEM)), true);
                model.failed_move_unmaps = at % 2 == 0;
                let outcome = apply(&mut model, &case.plan);
                let what = format!("{}: nothing works from call {at} on", case.name);
                assert!(!model.saw_wx, "{what}");
                if outcome.lost.is_none() {
                    let mut rest = shown(&case, &model, &outcome);
                    rest.retain(|(range, ..)| !outcome.leftovers.iter().any(|l| l.covers(*range)));
                    assert!(rest == before, "{what}: {outcome:?}");
                    check_outcome(&case, &model, &outcome, &what);
                }
                if model.failed.is_empty() {
                    break;
                }
                at += 1;
            }
            assert!(at > 0 || case.plan.spans.is_empty(), "{}", case.name);
        }
    }
}

/// A running program maps memory of its own at once where a copy has been, and each call fails once, also in the middle
/// of a move. What the program has mapped is never taken from it.
#[test]
fn holes_that_the_program_takes_are_its_own() {
    let mut in_the_middle = 0;
    for (program, record) in PROGRAMS {
        for case in cases(program, record) {
            let before = case.model.visible();
            for (fail_on, failed_move_unmaps) in [(false, false), (false, true), (true, false)] {
                for at in 0..usize::MAX {
                    let mut model = case.model.clone();
                    (model.takes_holes, model.piece) = (true, PageSize::MB2.bytes());
                    (model.fail_at, model.fail_on) = (Some((at, ENOMEM)), fail_on);
                    model.failed_move_unmaps = failed_move_unmaps;
                    let outcome = apply(&mut model, &case.plan);
                    let what = format!("{}: {:?}, call {at}: {outcome:?}", case.name, model.failed.first());
                    assert!(model.has_taken(), "{what}: memory of the program is gone");
                    let of_program =
                        |left: &Range| model.taken.iter().any(|own| own.intersect(*left).is_some());
                    assert!(!outcome.leftovers.iter().any(of_program), "{what}: it is said to be ours");
                    if outcome.lost.is_none() {
                        let mut others = [gaps(&case, &model, &outcome), outcome.leftovers.clone()].concat();
                        others.extend(&model.taken);
                        let visible = model.visible_outside(&others);
                        assert!(visible == before, "{what}: the program sees a difference");
                    }
                    let is_done = |r: &Range| case.plan.spans.iter().any(|s| s.range.intersect(*r).is_some());
                    assert!(!model.taken.iter().any(is_done), "{what}: a hole in a span");
                    if model.failed.is_empty() {
                        break;
                    }
                    let moves = outcome.spans.iter().flat_map(|s| &s.failures);
                    in_the_middle += moves.filter(|(_, f)| f.to_string().starts_with("mremap")).count();
                }
            }
        }
    }
    assert!(in_the_middle > 1000, "only {in_the_middle} moves failed");
}

/// The variants have the steps that their names say.
#[test]
fn variants_differ_in_their_steps() {
    let (program, record) = PROGRAMS[0];
    for case in cases(program, record) {
        let steps = || case.plan.spans.iter().flat_map(|s| &s.attempts).flat_map(|a| &a.steps);
        let by_file = steps().any(|s| matches!(s, Step::Replace { .. }));
        assert_eq!(by_file, case.name.contains("file") || case.name.contains("before 5.16"), "{}", case.name);
        let backings = |b| case.plan.spans.iter().any(|s| s.attempts[0].backing == b);
        let both = backings(Backing::Thp) && backings(Backing::Hugetlb);
        let mixed =
            ["pool short", "data on", "hugetlb, else thp"].iter().any(|name| case.name.contains(name));
        assert_eq!(both, mixed, "{}", case.name);
    }
}
