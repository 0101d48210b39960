// SPDX-License-Identifier: Apache-2.0
//! `lab reclaim`: tasks that drop references to pages, and those who wait until nobody uses them any more.
//!
//! The three implementations of `hugelift-epoch`, with crossbeam-epoch and seize beside them; and what a
//! model says of more cores than this machine has.

mod calibrate;
mod findings;
mod scheme;
mod tasks;

use crate::contention::Costs;
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use hugelift_epoch::{Donated, Epochs, Locked};
use scheme::{Crossbeam, Own, Scheme, Seize};
use std::time::Duration;
use tasks::Turn;

/// For `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "reclaim",
    title: "dropping references to pages, and waiting until nobody uses them",
    run: |quick, progress| run(&Options { quick }, progress),
};

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Fewer and shorter turns.
    pub quick: bool,
}

/// A scheme by its name and what can be measured of it.
struct Measurable {
    name: &'static str,
    uncontended: fn() -> f64,
    turn: fn(usize, Duration, &mut Progress) -> Option<Turn>,
}

const fn measurable<S: Scheme>() -> Measurable {
    Measurable { name: S::NAME, uncontended: tasks::uncontended::<S>, turn: tasks::turn::<S> }
}

/// In the order of tables: (a), (b), (c), then the libraries.
const SCHEMES: [Measurable; 5] = [
    measurable::<Own<Locked>>(),
    measurable::<Own<Epochs>>(),
    measurable::<Own<Donated>>(),
    measurable::<Crossbeam>(),
    measurable::<Seize>(),
];
const LOCKED: usize = 0;
const EPOCHS: usize = 1;
const DONATED: usize = 2;
const CROSSBEAM: usize = 3;

/// All that was measured.
#[derive(Debug, Default)]
struct Measured {
    /// Of each scheme, nanoseconds of entering and exiting, round by round.
    uncontended: [Vec<f64>; SCHEMES.len()],
    /// By number of tasks: of each scheme its turns, round by round.
    turns: Vec<(usize, [Vec<Turn>; SCHEMES.len()])>,
    /// For the model.
    costs: Option<Costs>,
    /// Work around each operation in a kernel, in nanoseconds.
    unmapping: Option<f64>,
}

/// Rounds of entering and exiting alone.
fn rounds(quick: bool) -> usize {
    if quick { 40 } else { 200 }
}

/// Turns of each scheme with each number of tasks.
fn turns(quick: bool) -> usize {
    if quick { 5 } else { 9 }
}

/// Runs it.
///
/// # Errors
/// None: what cannot be measured is left out, and said.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let mut measured = Measured::default();
    let counts = task_counts(std::thread::available_parallelism().map_or(1, usize::from));
    // The first rounds take a fraction of the time; the rest is shared out evenly.
    let rounds = rounds(options.quick);
    for round in 0..rounds {
        if !progress.go_on(0.05 * round as f64 / rounds as f64, "entering and exiting alone") {
            return Ok(findings::outcome(&measured));
        }
        for scheme in in_turn(round) {
            measured.uncontended[scheme].push((SCHEMES[scheme].uncontended)());
        }
    }
    if progress.go_on(0.05, "what passes from core to core") {
        let of = |scheme: usize| {
            hugelift_measure::stats::median(&measured.uncontended[scheme]).unwrap_or(f64::NAN)
        };
        measured.costs = calibrate::costs(of(LOCKED), of(EPOCHS));
        measured.unmapping = calibrate::unmapping();
    }
    let turns = turns(options.quick);
    let all = turns * counts.len() * SCHEMES.len();
    // Starting threads and the like take their share, too.
    let time = progress.left().mul_f64(0.8) / all as u32;
    let time = time.min(if options.quick { Duration::from_millis(200) } else { Duration::from_secs(2) });
    measured.turns = counts.iter().map(|&count| (count, Default::default())).collect();
    let mut done = 0;
    // All counts in each round: whatever changes on the machine meanwhile hits all alike.
    for round in 0..turns {
        for (count, results) in &mut measured.turns {
            for scheme in in_turn(round) {
                let what = format!("{}, {count} tasks", SCHEMES[scheme].name);
                let share = 0.06 + 0.94 * f64::from(done) / all as f64;
                if !progress.go_on(share, &what) {
                    return Ok(findings::outcome(&measured));
                }
                results[scheme].extend((SCHEMES[scheme].turn)(*count, time, progress));
                done += 1;
            }
        }
    }
    Ok(findings::outcome(&measured))
}

/// All schemes, another one first in each round.
fn in_turn(round: usize) -> impl Iterator<Item = usize> {
    (0..SCHEMES.len()).map(move |i| (i + round) % SCHEMES.len())
}

/// 1, 2, 4... and the number of CPUs, up to four times that.
fn task_counts(cpus: usize) -> Vec<usize> {
    let powers = (0..usize::BITS - 3).map(|i| 1usize << i).take_while(|&n| n <= 4 * cpus);
    let mut counts: Vec<usize> = powers.chain([cpus]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tasks() {
        assert_eq!(task_counts(1), [1, 2, 4]);
        assert_eq!(task_counts(2), [1, 2, 4, 8]);
        assert_eq!(task_counts(6), [1, 2, 4, 6, 8, 16]);
    }

    #[test]
    fn every_scheme_is_first_once() {
        let firsts: Vec<_> = (0..SCHEMES.len()).filter_map(|round| in_turn(round).next()).collect();
        assert_eq!(firsts, [0, 1, 2, 3, 4]);
        assert!((0..3).all(|round| in_turn(round).sum::<usize>() == 10));
    }

    /// One task and more, the waiter among them, with every scheme: operations are done, and where
    /// there is a wait it was waited.
    #[test]
    fn turns_of_all_schemes() {
        for scheme in &SCHEMES {
            assert!((scheme.uncontended)() > 0.0, "{}", scheme.name);
            for tasks in [1, 3] {
                let mut progress = Progress::new(Duration::from_secs(60), |_, _| {});
                let turn =
                    (scheme.turn)(tasks, Duration::from_millis(60), &mut progress).expect("not stopped");
                assert!(turn.rate > 0.0 && turn.rate.is_finite(), "{}: {turn:?}", scheme.name);
                let own = SCHEMES[..CROSSBEAM].iter().any(|own| own.name == scheme.name);
                assert_eq!(turn.longest_wait.is_some(), own, "{}: {turn:?}", scheme.name);
            }
        }
    }

    #[test]
    fn a_stopped_turn_is_none() {
        let mut progress = Progress::new(Duration::from_millis(10), |_, _| {});
        assert_eq!((SCHEMES[EPOCHS].turn)(2, Duration::from_secs(60), &mut progress), None);
    }

    #[test]
    fn costs_are_measured() {
        if let Some(costs) = calibrate::costs(50.0, 10.0) {
            let all = [costs.transfer, costs.atomic, costs.pause, costs.wake, costs.awake, costs.work];
            assert!(all.iter().all(|cost| *cost > 0.0 && *cost < 1e6), "{costs:?}");
        }
        assert!(calibrate::unmapping().is_some_and(|time| time > 0.0));
    }
}
