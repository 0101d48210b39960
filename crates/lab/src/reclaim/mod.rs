// SPDX-License-Identifier: Apache-2.0
//! `lab reclaim`: tasks that drop references to pages, and tasks that wait until no task uses a page any
//! more.
//!
//! Compares the three implementations of `hugelift-epoch` with crossbeam-epoch and seize, and predicts by a
//! model what they do on more cores than this machine has.

mod calibrate;
mod findings;
mod scheme;
mod tasks;

use crate::contention::Costs;
use crate::cpus;
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use hugelift_epoch::{Donated, Epochs, Locked};
use scheme::{Crossbeam, Own, Scheme, Seize};
use std::time::Duration;
use tasks::Turn;

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "reclaim",
    title: "dropping references to pages, and waiting until no task uses them",
    run: |quick, progress| run(&Options { quick }, progress),
};

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Fewer and shorter turns.
    pub quick: bool,
}

/// A scheme: its name and its measurements.
struct Measurable {
    name: &'static str,
    uncontended: fn() -> f64,
    turn: fn(usize, Duration, &mut Progress) -> Option<Turn>,
}

const fn measurable<S: Scheme>() -> Measurable {
    Measurable { name: S::NAME, uncontended: tasks::uncontended::<S>, turn: tasks::turn::<S> }
}

/// The schemes in the order of tables: (a), (b) and (c) of `hugelift-epoch`, then the libraries.
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

/// The measurements.
#[derive(Debug, Default)]
struct Measured {
    /// Nanoseconds of entering and exiting, by scheme and round.
    uncontended: [Vec<f64>; SCHEMES.len()],
    /// Turns by number of tasks, scheme and round.
    turns: Vec<(usize, [Vec<Turn>; SCHEMES.len()])>,
    /// The costs for the model; `None` with one CPU only.
    costs: Option<Costs>,
    /// Nanoseconds of the work around each operation in a kernel.
    unmapping: Option<f64>,
}

/// Returns the rounds of entering and exiting by one task alone.
fn rounds(quick: bool) -> usize {
    if quick { 40 } else { 200 }
}

/// Returns the turns of each scheme with each number of tasks.
fn turns(quick: bool) -> usize {
    if quick { 5 } else { 9 }
}

/// Runs the experiment.
///
/// # Errors
/// None: a note names what could not be measured.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let mut measured = Measured::default();
    let counts = task_counts(cpus::count());
    // The first rounds take a small share of the time. The turns share the rest evenly.
    let rounds = rounds(options.quick);
    for round in 0..rounds {
        if !progress.go_on(0.05 * round as f64 / rounds as f64, "entering and exiting alone") {
            return Ok(findings::outcome(&measured));
        }
        for scheme in in_turn(round) {
            measured.uncontended[scheme].push((SCHEMES[scheme].uncontended)());
        }
    }
    if progress.go_on(0.05, "costs of passing data between cores") {
        let median_of = |scheme: usize| {
            hugelift_measure::stats::median(&measured.uncontended[scheme]).unwrap_or(f64::NAN)
        };
        measured.costs = calibrate::costs(median_of(LOCKED), median_of(EPOCHS));
        measured.unmapping = calibrate::unmapping();
    }
    let turns = turns(options.quick);
    let all = turns * counts.len() * SCHEMES.len();
    // The other fifth of the time is for the rest, such as starting threads.
    let time = progress.left().mul_f64(0.8) / all as u32;
    let time = time.min(if options.quick { Duration::from_millis(200) } else { Duration::from_secs(2) });
    measured.turns = counts.iter().map(|&count| (count, Default::default())).collect();
    let mut done = 0;
    // Each round has all numbers of tasks, so that changes on the machine affect all of them alike.
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

/// Returns all schemes, with another one first in each round.
fn in_turn(round: usize) -> impl Iterator<Item = usize> {
    (0..SCHEMES.len()).map(move |i| (i + round) % SCHEMES.len())
}

/// Returns the numbers of tasks: 1, 2, 4... and `cpus`, up to four times `cpus`.
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

    /// With every scheme, one task and several do operations, and the waiter waits if the scheme has a wait.
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
