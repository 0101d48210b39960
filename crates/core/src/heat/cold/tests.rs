// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::heat::follow::{Code, Follow, Limits};
use proptest::prelude::*;

const MB2: u64 = 2 << 20;
const WINDOW: u64 = 400;
const SECOND: Duration = Duration::from_secs(1);
const NO_LIMITS: Limits = Limits::NONE;

fn pages(from: u64, to: u64) -> Range {
    Range::new(Addr(from * MB2), Addr(to * MB2)).expect("a range")
}

/// A process of which the huge pages from 10 to 14 are copies that a lift of its hot code has made, and 14 to 20 could be.
fn copied() -> Follow {
    let mut process = Follow::new(PageSize::MB2, Code { left: vec![pages(10, 20)], ..Code::default() });
    process.pace(SECOND, NO_LIMITS);
    (10..14).for_each(|page| add(&mut process, page, 50));
    process.decide(SECOND, NO_LIMITS);
    copy(&mut process);
    process
}

/// Copies what was chosen, as a lift does.
fn copy(process: &mut Follow) {
    let (mut code, hot) = (process.code().clone(), process.chosen().clone());
    code.copy(&hot);
    code.anonymous.extend(hot.ranges());
    code.anonymous.sort();
    process.found(code);
}

fn add(process: &mut Follow, page: u64, samples: u64) {
    (0..samples).for_each(|i| process.add(page * MB2 + 64 * i));
}

/// Returns the huge pages that are cold.
fn cold(process: &Follow) -> Vec<(u64, u64)> {
    let ranges = process.cold().map(|cold| cold.ranges.clone()).unwrap_or_default();
    ranges.iter().map(|range| (range.start.0 / MB2, range.end.0 / MB2)).collect()
}

/// Gives back what is cold.
fn give_back(process: &mut Follow, cpu: Duration) {
    let ranges = process.cold().expect("something is cold").ranges.clone();
    process.given_back(&ranges, cpu);
    assert!(process.cold().is_none());
}

/// Has a process use CPU time until `cpu`, with samples in these huge pages.
fn window(process: &mut Follow, cpu: Duration, short: bool, samples: &[(u64, u64)]) {
    process.press(short, cpu, cpu);
    if process.pace(cpu, NO_LIMITS).is_some() {
        samples.iter().for_each(|(page, samples)| add(process, *page, *samples));
    }
    process.decide(cpu, NO_LIMITS);
}

#[test]
fn issue_31_4_copies_without_a_sample_are_cold_while_memory_is_short() {
    let mut process = copied();
    window(&mut process, 2 * SECOND, false, &[(10, WINDOW)]);
    assert_eq!((cold(&process), process.pace(3 * SECOND, NO_LIMITS)), (vec![], None), "there is memory");
    // It rests, and is sampled again at once: what was seen before does not count.
    window(&mut process, 3 * SECOND, true, &[(10, WINDOW - 2), (12, 1)]);
    assert_eq!(cold(&process), []);
    window(&mut process, 3 * SECOND, true, &[(30, 1)]);
    assert_eq!(cold(&process), [(11, 12), (13, 14)]);
    assert_eq!(process.cold().map(|cold| cold.why.to_string()), Some("no sample in 400".into()));
    give_back(&mut process, 3 * SECOND);
    let code = process.code();
    assert_eq!((code.copied, &code.anonymous), (2 * MB2, &vec![pages(10, 11), pages(12, 13)]));
    assert_eq!(code.left, [pages(11, 12), pages(13, 14), pages(14, 20)]);
    assert_eq!(process.pace(5 * SECOND, NO_LIMITS), None, "it rests");
}

#[test]
fn issue_31_4_what_was_just_copied_is_not_cold() {
    let mut process = copied();
    window(&mut process, 2 * SECOND, true, &[(10, 300), (15, 80)]);
    assert_eq!(process.chosen().ranges(), [pages(15, 16)]);
    copy(&mut process);
    // The copy has begun a new window.
    window(&mut process, 2 * SECOND, true, &[(10, 99)]);
    assert_eq!(cold(&process), []);
    window(&mut process, 2 * SECOND, true, &[(15, 301)]);
    assert_eq!(cold(&process), [(11, 14)]);
}

#[test]
fn issue_31_4_what_was_given_back_is_copied_again_after_a_rest_with_enough_memory() {
    let mut process = copied();
    window(&mut process, 2 * SECOND, true, &[(10, WINDOW)]);
    give_back(&mut process, 2 * SECOND);
    // Memory is short for many windows, and the process uses page 11 in every other one.
    let mut cpu = 2 * SECOND;
    for round in 0..20 {
        cpu *= 2;
        window(&mut process, cpu, true, &[(10, 200), (11 + round % 2, 200)]);
        assert_eq!((process.chosen().bytes(), cold(&process)), (0, vec![]), "{round}");
    }
    // Memory is there again: the rest of now goes on first.
    window(&mut process, cpu, false, &[(11, WINDOW)]);
    assert_eq!(process.chosen().bytes(), 0);
    cpu *= 2;
    window(&mut process, cpu, false, &[(10, 200), (11, 3)]);
    assert_eq!(process.chosen().bytes(), 0, "these may be stray samples");
    window(&mut process, cpu, false, &[(11, 1)]);
    assert_eq!(process.chosen().ranges(), [pages(11, 12)]);
}

/// A lift that could not copy all leaves its choice. What was given back meanwhile is not in it any more.
#[test]
fn issue_31_4_what_is_chosen_still_is_not_copied_again() {
    let mut process = copied();
    add(&mut process, 15, 50);
    add(&mut process, 16, 50);
    process.decide(SECOND, NO_LIMITS);
    let left = vec![pages(14, 16), pages(17, 20)];
    let anonymous = vec![pages(10, 14), pages(16, 17)];
    process.found(Code { left, copied: 5 * MB2, anonymous });
    assert_eq!(process.chosen().ranges(), [pages(15, 17)]);
    window(&mut process, 2 * SECOND, true, &[(10, WINDOW)]);
    assert_eq!(cold(&process), [(11, 14), (16, 17)]);
    give_back(&mut process, 2 * SECOND);
    assert_eq!(process.chosen().bytes(), 0);
}

/// A copy whose huge pages the program has split is counted as one that could be made, too.
#[test]
fn issue_31_4_a_copy_in_small_pages_is_given_back() {
    let anonymous = vec![pages(10, 14)];
    let mut code = Code { left: vec![pages(11, 20)], copied: MB2, anonymous };
    code.give_back(&[pages(10, 12)]);
    let left = vec![pages(10, 12), pages(12, 20)];
    assert_eq!(code, Code { left, copied: 0, anonymous: vec![pages(12, 14)] });
}

/// Pressure that comes and goes brings new windows, and no page to and fro.
#[test]
fn issue_31_4_pressure_that_comes_and_goes() {
    let mut process = copied();
    window(&mut process, 2 * SECOND, true, &[(10, WINDOW)]);
    give_back(&mut process, 2 * SECOND);
    for _ in 0..10 {
        window(&mut process, 3 * SECOND, false, &[(11, WINDOW)]);
        window(&mut process, 3 * SECOND, true, &[(10, 10), (11, WINDOW)]);
        assert_eq!((process.chosen().bytes(), cold(&process)), (0, vec![]));
    }
}

#[test]
fn issue_31_4_the_copies_of_a_process_that_sleeps_are_cold() {
    let mut process = copied();
    let press = |process: &mut Follow, seconds: u64, cpu: Duration| {
        process.press(true, Duration::from_secs(seconds), cpu);
        process.decide(cpu, NO_LIMITS);
        cold(process)
    };
    assert_eq!(press(&mut process, 10, SECOND), []);
    assert_eq!(press(&mut process, 39, SECOND), []);
    // It does something.
    assert_eq!(press(&mut process, 40, 2 * SECOND), []);
    add(&mut process, 10, 1);
    assert_eq!(press(&mut process, 60, 2 * SECOND), [], "a process that it has forked does something");
    assert_eq!(press(&mut process, 89, 2 * SECOND), []);
    assert_eq!(press(&mut process, 91, 2 * SECOND), [(10, 14)]);
    assert_eq!(process.cold().map(|cold| cold.why.to_string()), Some("no CPU time for 31 s".into()));
    // Nothing could be given back, and it sleeps on: that is not tried all the time.
    process.given_back(&[], 2 * SECOND);
    assert_eq!(press(&mut process, 1000, 2 * SECOND), []);
    assert_eq!(press(&mut process, 1001, 3 * SECOND), []);
    assert_eq!(press(&mut process, 1031, 3 * SECOND), [(10, 14)]);
    give_back(&mut process, 3 * SECOND);
    assert!(!process.may_give_back());
    assert_eq!(press(&mut process, 9000, 3 * SECOND), []);
    // With enough memory nothing is cold, however long it sleeps.
    let mut process = copied();
    for seconds in [0, 100, 1000] {
        process.press(false, Duration::from_secs(seconds), SECOND);
        process.decide(SECOND, NO_LIMITS);
        assert_eq!(cold(&process), []);
    }
}

/// A process whose budget is used up is not sampled, but for what it could give back.
#[test]
fn issue_31_4_a_process_that_could_copy_nothing_is_sampled_while_memory_is_short() {
    let mut process =
        Follow::new(PageSize::MB2, Code { left: vec![], copied: 4 * MB2, anonymous: vec![pages(10, 12)] });
    assert_eq!(process.pace(SECOND, NO_LIMITS), None);
    process.press(true, SECOND, SECOND);
    assert!(process.pace(SECOND, NO_LIMITS).is_some());
    process.add_outside(1000);
    process.decide(SECOND, NO_LIMITS);
    assert_eq!(cold(&process), [(10, 12)]);
    process.given_back(&[pages(10, 11)], SECOND);
    assert_eq!(process.pace(SECOND, NO_LIMITS), None, "it rests");
    process.press(false, SECOND, SECOND);
    assert!(process.pace(2 * SECOND, NO_LIMITS).is_some(), "page 10 could be copied");
}

proptest! {
    /// Whatever is sampled and whenever memory is short: only copies are given back, only while memory is short, none with a
    /// sample in the window; and no page is given back twice without a rest in between.
    #[test]
    fn issue_31_4_only_cold_copies_are_given_back(
        turns in prop::collection::vec(
            (any::<bool>(), prop::collection::vec((8u64..24, 0u64..300), 0..4), 0u64..4000, any::<bool>()), 0..60),
    ) {
        let mut process = copied();
        let (mut at, mut cpu) = (Duration::ZERO, SECOND);
        let mut sampled = BTreeSet::new();
        let mut given: BTreeMap<u64, Duration> = BTreeMap::new();
        let mut was_short = false;
        for (short, samples, millis, copies) in turns {
            at += 5 * SECOND;
            cpu += Duration::from_millis(millis);
            if short && !was_short {
                sampled.clear();
            }
            was_short = short;
            process.press(short, at, cpu);
            if process.pace(cpu, NO_LIMITS).is_some() {
                if process.samples() == 0 {
                    sampled.clear();
                }
                for (page, samples) in samples {
                    add(&mut process, page, samples);
                    sampled.extend((samples > 0).then_some(page));
                }
            }
            process.decide(cpu, NO_LIMITS);
            if let Some(found) = process.cold().cloned() {
                prop_assert!(short);
                let anonymous = &process.code().anonymous;
                for range in &found.ranges {
                    let held: u64 = anonymous.iter().filter_map(|a| a.intersect(*range)).map(Range::len).sum();
                    prop_assert_eq!(held, range.len());
                    for page in range.start.0 / MB2..range.end.0 / MB2 {
                        prop_assert!(matches!(found.why, Why::Asleep(_)) || !sampled.contains(&page));
                        if let Some(last) = given.insert(page, cpu) {
                            prop_assert!(cpu >= (last * 2).min(last + Duration::from_secs(600)));
                        }
                    }
                }
                give_back(&mut process, cpu);
            }
            let hot = process.chosen();
            prop_assert_eq!(process.code().left_of(hot), hot.bytes());
            if copies {
                copy(&mut process);
                if process.samples() == 0 {
                    sampled.clear();
                }
            }
        }
    }
}
