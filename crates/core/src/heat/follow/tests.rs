// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;

const MB2: u64 = 2 << 20;
const NO_LIMITS: Limits = Limits::NONE;
const SECOND: Duration = Duration::from_secs(1);

fn pages(from: u64, to: u64) -> Range {
    Range::new(Addr(from * MB2), Addr(to * MB2)).expect("a range")
}

/// A process of which the huge pages from `from` to `to` could be copied.
fn follow(from: u64, to: u64) -> Follow {
    Follow::new(PageSize::MB2, Code { left: vec![pages(from, to)], ..Code::default() })
}

fn add(follow: &mut Follow, page: u64, samples: u64) {
    (0..samples).for_each(|i| follow.add(page * MB2 + 64 * i));
}

fn chosen(follow: &Follow) -> Vec<(u64, u64)> {
    follow.chosen().ranges().iter().map(|range| (range.start.0 / MB2, range.end.0 / MB2)).collect()
}

/// Decides, and returns whether the choice is another one now.
fn decide(follow: &mut Follow, cpu: Duration, limits: Limits) -> bool {
    let before = chosen(follow);
    follow.decide(cpu, limits);
    chosen(follow) != before
}

/// Copies what was chosen, as a lift does.
fn copy(follow: &mut Follow) {
    let (mut code, hot) = (follow.code.clone(), follow.chosen().clone());
    code.copy(&hot);
    follow.found(code);
}

#[test]
fn the_first_choice_is_of_what_could_be_copied() {
    let mut process = follow(10, 20);
    assert_eq!(process.pace(SECOND, NO_LIMITS), Some(Pace::Fast));
    add(&mut process, 12, 60);
    add(&mut process, 30, 500);
    assert!(!decide(&mut process, SECOND, NO_LIMITS), "60 samples count");
    add(&mut process, 15, 40);
    assert!(decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(
        (chosen(&process), process.samples(), process.pages()),
        (vec![(12, 13), (15, 16)], 600, (2, 10))
    );
    assert!(!decide(&mut process, SECOND, NO_LIMITS), "it is the same");
    copy(&mut process);
    assert_eq!((process.code.copied, process.code.left.len()), (2 * MB2, 3));
    assert_eq!((chosen(&process), process.pace(SECOND, NO_LIMITS)), (vec![], Some(Pace::Slow)));
}

#[test]
fn what_becomes_hot_is_followed_and_a_stray_sample_is_not() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    add(&mut process, 12, 100);
    decide(&mut process, SECOND, NO_LIMITS);
    copy(&mut process);
    add(&mut process, 12, 90);
    add(&mut process, 16, NEW - 1);
    assert!(!decide(&mut process, SECOND, NO_LIMITS));
    add(&mut process, 16, 1);
    assert!(decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(chosen(&process), [(16, 17)]);
    // Of very many samples so few are not hot.
    let mut steady = follow(10, 20);
    steady.pace(SECOND, NO_LIMITS);
    add(&mut steady, 12, 100);
    decide(&mut steady, SECOND, NO_LIMITS);
    copy(&mut steady);
    add(&mut steady, 12, WINDOW);
    add(&mut steady, 16, NEW);
    assert!(!decide(&mut steady, SECOND, NO_LIMITS));
}

/// A page that is used seldom is copied once four samples have come together, though other copies were made meanwhile.
#[test]
fn seldom_samples_add_up_until_a_rest() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    add(&mut process, 12, 100);
    decide(&mut process, SECOND, NO_LIMITS);
    copy(&mut process);
    add(&mut process, 14, 2);
    add(&mut process, 16, 20);
    assert!(decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(chosen(&process), [(16, 17)]);
    copy(&mut process);
    add(&mut process, 14, 2);
    assert!(decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(chosen(&process), [(14, 15)]);
    // After a rest they are counted anew.
    let mut rested = follow(10, 20);
    rested.pace(SECOND, NO_LIMITS);
    add(&mut rested, 12, 100);
    decide(&mut rested, SECOND, NO_LIMITS);
    copy(&mut rested);
    add(&mut rested, 14, 2);
    rested.add_outside(WINDOW);
    decide(&mut rested, SECOND, NO_LIMITS);
    rested.pace(2 * SECOND, NO_LIMITS);
    add(&mut rested, 14, 2);
    assert!(!decide(&mut rested, 2 * SECOND, NO_LIMITS));
}

/// Many samples of before do not hide what it does now.
#[test]
fn a_second_phase_is_followed_beside_many_samples_of_the_first() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    add(&mut process, 12, 10_000);
    decide(&mut process, SECOND, NO_LIMITS);
    copy(&mut process);
    add(&mut process, 17, NEW);
    assert!(decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(chosen(&process), [(17, 18)]);
}

#[test]
fn a_window_without_news_ends_and_another_one_begins() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    add(&mut process, 12, 100);
    decide(&mut process, SECOND, NO_LIMITS);
    copy(&mut process);
    add(&mut process, 12, WINDOW - 1);
    decide(&mut process, 3 * SECOND, NO_LIMITS);
    assert_eq!(process.pace(3 * SECOND, NO_LIMITS), Some(Pace::Slow));
    process.add_outside(1);
    decide(&mut process, 3 * SECOND, NO_LIMITS);
    assert_eq!(process.pace(5 * SECOND, NO_LIMITS), None);
    assert_eq!(process.pace(6 * SECOND, NO_LIMITS), Some(Pace::Slow));
    assert_eq!(process.samples, 0);
    // A rest has an end.
    add(&mut process, 12, WINDOW);
    decide(&mut process, 5000 * SECOND, NO_LIMITS);
    assert_eq!(process.pace(5599 * SECOND, NO_LIMITS), None);
    assert_eq!(process.pace(5600 * SECOND, NO_LIMITS), Some(Pace::Slow));
}

#[test]
fn a_process_that_is_elsewhere_rests_without_a_choice() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    process.add_outside(LONG_WINDOW - 1);
    decide(&mut process, SECOND, NO_LIMITS);
    assert_eq!(process.pace(SECOND, NO_LIMITS), Some(Pace::Fast));
    process.add_outside(1);
    assert!(!decide(&mut process, SECOND, NO_LIMITS));
    assert_eq!(process.pace(SECOND, NO_LIMITS), None);
    assert_eq!(process.pace(2 * SECOND, NO_LIMITS), Some(Pace::Fast));
}

#[test]
fn the_least_time_and_the_budget_are_kept() {
    let limits = Limits { budget: 2 * MB2, least: 3 * SECOND, ..NO_LIMITS };
    let mut process = follow(10, 20);
    process.pace(SECOND, limits);
    [(12, 900), (13, 500), (14, 300)]
        .into_iter()
        .for_each(|(page, samples)| add(&mut process, page, samples));
    assert!(!decide(&mut process, 3 * SECOND, limits));
    assert_eq!(process.pace(3 * SECOND, limits), Some(Pace::Fast), "it is too early for a rest as well");
    assert!(decide(&mut process, 4 * SECOND, limits));
    assert_eq!(chosen(&process), [(12, 14)]);
    copy(&mut process);
    assert_eq!(process.pace(100 * SECOND, limits), None, "the budget is used up");
    assert_eq!(process.pace(100 * SECOND, NO_LIMITS), Some(Pace::Slow));
}

#[test]
fn what_a_partial_copy_leaves_stays_chosen() {
    let mut process = follow(10, 20);
    process.pace(SECOND, NO_LIMITS);
    add(&mut process, 12, 50);
    add(&mut process, 15, 50);
    decide(&mut process, SECOND, NO_LIMITS);
    process.found(Code { left: vec![pages(10, 12), pages(13, 20)], copied: MB2, ..Code::default() });
    assert_eq!(chosen(&process), [(12, 13), (15, 16)]);
    process.found(Code { left: vec![pages(10, 12)], copied: 2 * MB2, ..Code::default() });
    assert_eq!(chosen(&process), []);
    // Nothing is left to copy.
    process.found(Code::default());
    assert_eq!(process.pace(SECOND, NO_LIMITS), None);
}

proptest! {
    /// Whatever is sampled: only what could be copied is chosen, within the budget, and the process is sampled for a part of
    /// its time only.
    #[test]
    fn no_samples_lead_astray(
        batches in prop::collection::vec((prop::collection::vec((8u64..24, 0u64..60), 0..6), 0u64..200, 0u64..5000, any::<bool>()), 0..40),
        most in 0u64..8,
    ) {
        let limits = Limits { budget: most * MB2, ..NO_LIMITS };
        let left = vec![pages(10, 14), pages(16, 20)];
        let mut process = Follow::new(PageSize::MB2, Code { left, ..Code::default() });
        let mut cpu = Duration::ZERO;
        for (samples, outside, millis, copies) in batches {
            cpu += Duration::from_millis(millis);
            if process.pace(cpu, limits).is_some() {
                process.add_outside(outside);
                samples.into_iter().for_each(|(page, samples)| add(&mut process, page, samples));
                decide(&mut process, cpu, limits);
                let most = if process.has_chosen() { WINDOW } else { LONG_WINDOW };
                prop_assert!(process.samples < most || process.pace(cpu, limits).is_none());
            }
            let hot = process.chosen();
            prop_assert_eq!(process.code.left_of(hot), hot.bytes());
            prop_assert!(process.code.copied + hot.bytes() <= limits.budget);
            if copies {
                copy(&mut process);
            }
            prop_assert!(process.code.left.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}

#[test]
fn issue_33_the_copies_of_all_processes_are_bounded_together() {
    let limits = Limits { budget: 8 * MB2, total: 10 * MB2, ..NO_LIMITS };
    let beside = |others: u64| limits.beside(others * MB2).budget / MB2;
    assert_eq!([0, 2, 3, 9, 10, 11].map(beside), [8, 8, 7, 1, 0, 0]);
    assert!(!limits.is_unlimited() && !Limits { budget: u64::MAX, ..limits }.is_unlimited());
    assert!(NO_LIMITS.is_unlimited() && NO_LIMITS.beside(u64::MAX / 2).budget == u64::MAX - u64::MAX / 2);
}
