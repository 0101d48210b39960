// SPDX-License-Identifier: Apache-2.0
//! Plans generated processes on generated machines, and checks what must hold for every plan.

mod generate;
mod sound;

use generate::{policy, snapshot};
use hugelift_core::plan::Span;
use hugelift_core::policy::Backing;
use hugelift_core::skip::Reason;
use proptest::prelude::*;
use sound::{all_that_is_due, check};

proptest! {
    #![proptest_config(crate::common::cases::times(16))]

    #[test]
    fn plans_are_sound(snapshot in snapshot(), policy in policy()) {
        check(&snapshot, &policy);
    }
}

/// The property above would hold for empty plans: most generated plans must not be empty.
#[test]
fn most_generated_plans_lift_something() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut spans, mut by_pool, mut second, mut split, mut partial) = (0, 0, 0, 0, 0);
    let (mut over_nothing, mut several, mut due) = (0, 0, 0);
    for _ in 0..1500 {
        let tree = (snapshot(), policy()).new_tree(&mut runner).unwrap();
        let (snapshot, policy) = tree.current();
        let plan = check(&snapshot, &policy);
        spans += plan.spans.len();
        by_pool += plan.spans.iter().filter(|s| s.attempts[0].backing == Backing::Hugetlb).count();
        second += plan.spans.iter().filter(|s| s.attempts.len() > 1).count();
        over_nothing += plan.spans.iter().filter(|s| !s.gaps().is_empty()).count();
        let alone = |s: &Span| snapshot.extents().iter().any(|e| e.range.covers(s.held[0]));
        several += plan.spans.iter().filter(|s| s.held.len() > 1 || !alone(s)).count();
        let later = plan.skips.iter().any(|s| s.reason == Reason::CopiedLater);
        partial += usize::from(later && !plan.spans.is_empty());
        due += all_that_is_due(&snapshot, &policy, &plan);
        split += plan.spans.windows(2).filter(|w| w[0].range.end == w[1].range.start).count();
    }
    let seen = format!("{spans} spans, {by_pool} from a pool, {second} with a fallback, {split} split");
    let seen = format!(
        "{seen}, {over_nothing} over unmapped space, {several} of several extents, {partial} partly later, {due} due"
    );
    assert!(spans > 500 && by_pool > 100 && second > 20 && split > 10 && partial > 5, "{seen}");
    assert!(over_nothing > 20 && several > 5 && due > 10, "{seen}");
}
