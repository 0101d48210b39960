// SPDX-License-Identifier: Apache-2.0
//! `lab reclaim`: tasks that drop references to pages, and tasks that wait until no task uses a page any
//! more.
//!
//! Compares the three implementations of `hugelift-epoch` with crossbeam-epoch and seize, and predicts by a
//! model what they do on more cores than this machine has. The model must first predict what was measured
//! on this machine.

mod calibrate;
mod compared;
mod findings;
mod measured;
mod scheme;
mod tasks;

use crate::contention::Costs;
use crate::cpus;
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use crate::results::disturbance::Disturbance;
use anyhow::Result;
use compared::{EPOCHS, LOCKED, SCHEMES, SPINNING};
use measured::{Measured, Results};
use std::time::Duration;

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

/// Rounds of entering and exiting by one task alone, in one step that is watched for disturbance.
const ROUNDS: usize = 20;

/// How much is measured.
struct Pace {
    /// Steps of entering and exiting by one task alone.
    alone: usize,
    /// Measurements of the costs. The model gets their medians.
    costs: usize,
    /// Turns of each scheme with each number of tasks. Six are the fewest that give an interval.
    turns: usize,
    /// The longest time of a turn.
    longest: Duration,
}

impl Pace {
    fn of(quick: bool) -> Pace {
        if quick {
            Pace { alone: 2, costs: 3, turns: 6, longest: Duration::from_millis(30) }
        } else {
            Pace { alone: 10, costs: 9, turns: 15, longest: Duration::from_millis(500) }
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// None: a note names what could not be measured.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let mut measured = Measured::default();
    measure(options.quick, &mut measured, progress)?;
    measured.disturbed = progress.is_disturbed();
    Ok(findings::outcome(&measured))
}

/// The steps that are watched for disturbance.
struct Steps {
    quick: bool,
    /// The number of steps.
    all: usize,
    /// How many of them were disturbed so far.
    disturbed: usize,
}

impl Steps {
    /// Runs a step, and again while other programs disturb it. A quick run repeats no step once the
    /// whole run counts as disturbed.
    fn run<'p, T>(
        &mut self,
        progress: &mut Progress<'p>,
        mut step: impl FnMut(&mut Progress<'p>) -> T,
    ) -> Result<T> {
        if self.quick && Disturbance::are_many(self.disturbed as u64, self.all as u64) {
            return Ok(step(progress));
        }
        let (result, disturbed) = progress.undisturbed(|progress| Ok(step(progress)))?;
        self.disturbed += usize::from(disturbed);
        Ok(result)
    }
}

/// Measures until everything is measured or the experiment must stop.
fn measure(quick: bool, measured: &mut Measured, progress: &mut Progress) -> Result<()> {
    let cpus = cpus::count();
    let counts = task_counts(cpus, quick);
    let pace = Pace::of(quick);
    let watched = counts.iter().filter(|&&count| count <= cpus).count() * pace.turns;
    let mut steps = Steps { quick, all: pace.alone + pace.costs + watched, disturbed: 0 };
    // The first rounds take a small share of the time. The turns share the rest evenly.
    if measure_alone(&pace, &mut steps, measured, progress)?
        && measure_costs(&pace, &mut steps, measured, progress)?
    {
        measure_turns(&counts, &pace, &mut steps, measured, progress)?;
    }
    Ok(())
}

/// Measures one task alone. Returns whether the experiment goes on.
fn measure_alone(
    pace: &Pace,
    steps: &mut Steps,
    measured: &mut Measured,
    progress: &mut Progress,
) -> Result<bool> {
    for step in 0..pace.alone {
        if !progress.go_on(0.05 * step as f64 / pace.alone as f64, "entering and exiting alone") {
            return Ok(false);
        }
        let (all, spinning) = steps.run(progress, |_| alone())?;
        for (kept, times) in measured.uncontended.iter_mut().zip(all) {
            kept.extend(times);
        }
        measured.spinning_alone.extend(spinning);
    }
    Ok(true)
}

/// Measures the costs for the model, of which some come from what one task alone took. Returns whether the
/// experiment goes on.
fn measure_costs(
    pace: &Pace,
    steps: &mut Steps,
    measured: &mut Measured,
    progress: &mut Progress,
) -> Result<bool> {
    let mut costs = Vec::new();
    for step in 0..pace.costs {
        let share = 0.05 + 0.05 * step as f64 / pace.costs as f64;
        if !progress.go_on(share, "costs of passing data between cores") {
            return Ok(false);
        }
        costs.push(steps.run(progress, |_| (calibrate::costs(), calibrate::unmapping()))?);
    }
    let alone = |times: &[f64]| hugelift_measure::stats::median(times).unwrap_or(f64::NAN);
    let all: Vec<Costs> = costs.iter().filter_map(|(costs, _)| *costs).collect();
    measured.costs = calibrate::medians(&all).map(|costs| Costs {
        held: alone(&measured.uncontended[LOCKED]) / 2.0,
        held_spinning: alone(&measured.spinning_alone) / 2.0,
        epochs: alone(&measured.uncontended[EPOCHS]),
        ..costs
    });
    let unmapping: Vec<f64> = costs.iter().filter_map(|(_, unmapping)| *unmapping).collect();
    measured.unmapping = hugelift_measure::stats::median(&unmapping).ok();
    Ok(true)
}

/// Measures turns of all numbers of tasks until all are measured or the experiment must stop.
fn measure_turns(
    counts: &[usize],
    pace: &Pace,
    steps: &mut Steps,
    measured: &mut Measured,
    progress: &mut Progress,
) -> Result<()> {
    let cpus = cpus::count();
    // The other fifth of the time is for the rest, such as starting threads.
    let all = pace.turns * counts.len() * (SCHEMES.len() + 1);
    let time = (progress.left().mul_f64(0.8) / all as u32).min(pace.longest);
    measured.turns = counts.iter().map(|&count| (count, Default::default())).collect();
    measured.spinning =
        counts.iter().filter(|&&count| count <= cpus).map(|&count| (count, Vec::new())).collect();
    let mut done = 0;
    // Each round has all numbers of tasks, so that changes on the machine affect all of them alike.
    for round in 0..pace.turns {
        for &count in counts {
            let share = 0.1 + 0.9 * f64::from(done) / (pace.turns * counts.len()) as f64;
            let what = if count == 1 { "one task".into() } else { format!("{count} tasks") };
            if !progress.go_on(share, &what) {
                return Ok(());
            }
            // Tasks that have no CPU of their own wait for each other, which seems a disturbance. The
            // steps before and after them are watched.
            let results = if count <= cpus {
                steps.run(progress, |progress| turns(count, round, time, true, progress))?
            } else {
                turns(count, round, time, false, progress)
            };
            measured.add(count, results);
            done += 1;
        }
    }
    Ok(())
}

/// Measures entering and exiting by one task alone: nanoseconds by scheme and round, and of [`SPINNING`].
fn alone() -> ([Vec<f64>; SCHEMES.len()], Vec<f64>) {
    let mut times: [Vec<f64>; SCHEMES.len()] = Default::default();
    let mut spinning = Vec::new();
    for round in 0..ROUNDS {
        for scheme in in_turn(round) {
            times[scheme].push((SCHEMES[scheme].uncontended)());
        }
        spinning.push((SPINNING.uncontended)());
    }
    (times, spinning)
}

/// Runs a turn of each scheme.
fn turns(count: usize, round: usize, time: Duration, spinning: bool, progress: &mut Progress) -> Results {
    let mut results = Results::default();
    for scheme in in_turn(round) {
        results.schemes[scheme] = (SCHEMES[scheme].turn)(count, time, progress);
    }
    if spinning {
        results.spinning = (SPINNING.turn)(count, time, progress);
    }
    results
}

/// Returns all schemes, with another one first in each round.
fn in_turn(round: usize) -> impl Iterator<Item = usize> {
    (0..SCHEMES.len()).map(move |i| (i + round) % SCHEMES.len())
}

/// Returns the numbers of tasks: 1, 2, 4... and `cpus`, up to four times `cpus`. A quick run leaves out those
/// between `cpus` and four times `cpus`.
fn task_counts(cpus: usize, quick: bool) -> Vec<usize> {
    let powers = (0..usize::BITS - 3).map(|i| 1usize << i).take_while(|&n| n <= 4 * cpus);
    let mut counts: Vec<usize> = powers.chain([cpus, 4 * cpus]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts.retain(|&count| !quick || count <= cpus.max(2) || count == 4 * cpus);
    counts
}

#[cfg(test)]
mod tests {
    use super::compared::CROSSBEAM;
    use super::*;

    #[test]
    fn numbers_of_tasks() {
        assert_eq!(task_counts(1, false), [1, 2, 4]);
        assert_eq!(task_counts(2, false), [1, 2, 4, 8]);
        assert_eq!(task_counts(6, false), [1, 2, 4, 6, 8, 16, 24]);
        assert_eq!(task_counts(1, true), [1, 2, 4]);
        assert_eq!(task_counts(2, true), [1, 2, 8]);
        assert_eq!(task_counts(6, true), [1, 2, 4, 6, 24]);
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
        for scheme in SCHEMES.iter().chain([&SPINNING]) {
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
        if let Some(costs) = calibrate::costs() {
            let all = [costs.transfer.within, costs.atomic, costs.pause, costs.wake, costs.awake, costs.work];
            assert!(all.iter().all(|cost| *cost > 0.0 && *cost < 1e6), "{costs:?}");
            let dear = Costs { wake: 1e9, ..costs };
            assert_eq!(calibrate::medians(&[dear, costs, costs]), Some(costs));
        }
        assert_eq!(calibrate::medians(&[]), None);
        assert!(calibrate::unmapping().is_some_and(|time| time > 0.0));
    }
}
