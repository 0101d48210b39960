// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::{CROSSBEAM, DONATED, EPOCHS, LOCKED, Measured, SCHEMES};
use crate::contention::{self, Costs};
use crate::cpus;
use crate::results::unit::Unit;
use crate::results::{Column, Hue, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_measure::stats::{Estimate, median, ratio};

/// FreeBSD on 96 CPUs: operations per second before and after r347695, in review D19630.
const BEFORE: f64 = 1.009e6;
const AFTER: f64 = 3.551e6;

/// Number of CPUs in that measurement.
const LITERATURE: usize = 96;

/// Numbers of cores in the model.
const CORES: [usize; 11] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, LITERATURE];

/// The modelled schemes with their names and colours: the first three of [`SCHEMES`], and a spinning lock as
/// in kernels.
const MODELS: [(contention::Scheme, &str, Hue); 4] = [
    (contention::Scheme::Locked, SCHEMES[LOCKED].name, HUES[LOCKED]),
    (contention::Scheme::Epochs, SCHEMES[EPOCHS].name, HUES[EPOCHS]),
    (contention::Scheme::Donated, SCHEMES[DONATED].name, HUES[DONATED]),
    (contention::Scheme::Spinning, "one lock, spinning", Hue::Small),
];
const HUES: [Hue; SCHEMES.len()] = [Hue::First, Hue::Second, Hue::Third, Hue::Small, Hue::Giant];

/// Returns the outcome of what was measured. It has fewer parts if the experiment was stopped.
pub fn outcome(measured: &Measured) -> Outcome {
    let mut outcome = Outcome::default();
    if measured.uncontended.iter().all(|times| !times.is_empty()) {
        outcome.tables.push(alone(measured));
    }
    if measured.turns.iter().any(|(_, all)| all.iter().any(|turns| !turns.is_empty())) {
        outcome.tables.push(rates(measured));
        outcome.plots.push(curves(measured));
    }
    for (scheme, times) in SCHEMES.iter().zip(&measured.uncontended).filter(|(_, times)| !times.is_empty()) {
        let name = format!("{}, entering and exiting alone", scheme.name);
        outcome.samples.push(Sample { name, unit: Unit::Nanoseconds, values: times.clone() });
    }
    for (count, all) in &measured.turns {
        for (scheme, turns) in SCHEMES.iter().zip(all).filter(|(_, turns)| !turns.is_empty()) {
            let values = turns.iter().map(|turn| turn.rate).collect();
            let name = format!("{}, {count} tasks", scheme.name);
            outcome.samples.push(Sample { name, unit: Unit::PerSecond, values });
        }
    }
    match measured.costs {
        Some(costs) => model(&mut outcome, costs, measured.unmapping),
        None => outcome
            .notes
            .push("there is only one CPU, so the model of more cores could not be calibrated".into()),
    }
    outcome.notes.push(
        "crossbeam-epoch and seize have no wait: their tasks only enter, work and exit; liburcu and \
         ConcurrencyKit are C libraries and not linked: make bench compares epochs and the list with them"
            .into(),
    );
    outcome.advice = advice(measured);
    outcome
}

/// Returns the ratio of the times of entering and exiting, `scheme` to `reference`, pair by pair.
fn against(measured: &Measured, reference: usize, scheme: usize) -> Option<Estimate> {
    let pairs = measured.uncontended[reference].iter().zip(&measured.uncontended[scheme]);
    ratio(&pairs.map(|(a, b)| (*a, *b)).collect::<Vec<_>>()).ok()
}

fn alone(measured: &Measured) -> Table {
    let mut table = Table::new(
        "entering and exiting, one task alone",
        vec![
            Column::new("scheme", "scheme", Unit::Text),
            Column::new("nanoseconds", "enter and exit", Unit::Nanoseconds),
            Column::new("to_crossbeam", "ratio to crossbeam-epoch", Unit::Ratio),
            Column::new("to_crossbeam_low", "from", Unit::Ratio),
            Column::new("to_crossbeam_high", "to", Unit::Ratio),
        ],
    );
    for (i, scheme) in SCHEMES.iter().enumerate() {
        let estimate = against(measured, CROSSBEAM, i).filter(|_| i != CROSSBEAM);
        let interval = estimate.and_then(|estimate| estimate.interval);
        table.rows.push(vec![
            scheme.name.into(),
            median(&measured.uncontended[i]).ok().into(),
            estimate.map(|estimate| estimate.point).into(),
            interval.map(|interval| interval.low).into(),
            interval.map(|interval| interval.high).into(),
        ]);
    }
    table
}

/// Returns the median rate of a scheme with `count` tasks.
fn rate(measured: &Measured, count: usize, scheme: usize) -> Option<f64> {
    let (_, all) = measured.turns.iter().find(|(tasks, _)| *tasks == count)?;
    median(&all[scheme].iter().map(|turn| turn.rate).collect::<Vec<_>>()).ok()
}

/// Returns the ratio of the rates, `scheme` to one lock, by pairs of turns.
fn to_locked(measured: &Measured, count: usize, scheme: usize) -> Option<Estimate> {
    let (_, all) = measured.turns.iter().find(|(tasks, _)| *tasks == count)?;
    let pairs: Vec<_> = all[LOCKED].iter().zip(&all[scheme]).map(|(a, b)| (a.rate, b.rate)).collect();
    ratio(&pairs).ok()
}

fn rates(measured: &Measured) -> Table {
    let mut table = Table::new(
        "tasks that drop eight references inside, and a waiter",
        vec![
            Column::new("scheme", "scheme", Unit::Text),
            Column::new("tasks", "tasks", Unit::Count),
            Column::new("operations_per_second", "operations", Unit::PerSecond),
            Column::new("cpu_nanoseconds", "CPU time of each", Unit::Nanoseconds),
            Column::new("to_lock", "ratio to one lock", Unit::Ratio),
            Column::new("longest_wait_seconds", "longest wait", Unit::Seconds),
        ],
    );
    for (count, all) in &measured.turns {
        for (i, turns) in all.iter().enumerate().filter(|(_, turns)| !turns.is_empty()) {
            let cpu: Vec<f64> = turns.iter().map(|turn| turn.cpu).collect();
            let longest = turns.iter().filter_map(|turn| turn.longest_wait).reduce(f64::max);
            let ratio = to_locked(measured, *count, i).filter(|_| i != LOCKED);
            table.rows.push(vec![
                SCHEMES[i].name.into(),
                (*count as u64).into(),
                rate(measured, *count, i).into(),
                median(&cpu).ok().into(),
                ratio.map(|estimate| estimate.point).into(),
                longest.into(),
            ]);
        }
    }
    table
}

fn curves(measured: &Measured) -> Plot {
    let series = SCHEMES.iter().enumerate().map(|(i, scheme)| {
        let point = |(count, all): &(usize, [Vec<super::Turn>; SCHEMES.len()])| {
            let y = rate(measured, *count, i)?;
            let rates = || all[i].iter().map(|turn| turn.rate);
            let range = Some((rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max)));
            Some(Point { x: *count as f64, y, range })
        };
        let points = measured.turns.iter().filter_map(point).collect();
        Series { name: scheme.name.into(), hue: HUES[i], shape: Shape::Line, points }
    });
    Plot {
        title: "operations by number of tasks, measured here".into(),
        x: Scale::logarithmic("tasks", Unit::Count),
        y: Scale::logarithmic("operations of all tasks", Unit::PerSecond),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

/// A row of the model: the number of cores, and the rate of each of [`MODELS`].
type Modelled = (usize, [f64; MODELS.len()]);

/// Adds the results of the model: with the work of this experiment, with that of a kernel, and with
/// operations as long as those in the literature.
fn model(outcome: &mut Outcome, costs: Costs, unmapping: Option<f64>) {
    let works = [
        ("this experiment's work", Some(costs.work)),
        ("mapping and unmapping a page", unmapping),
        // The time per operation and CPU with the list. Not all of it was private work.
        ("the literature's work", Some(LITERATURE as f64 / AFTER * 1e9)),
    ];
    let mut table = Table::new(
        "model of more cores, with a task on each",
        vec![
            Column::new("work", "work", Unit::Text),
            Column::new("cores", "cores", Unit::Count),
            Column::new("lock_per_second", MODELS[0].1, Unit::PerSecond),
            Column::new("epochs_per_second", MODELS[1].1, Unit::PerSecond),
            Column::new("list_per_second", MODELS[2].1, Unit::PerSecond),
            Column::new("spinning_per_second", MODELS[3].1, Unit::PerSecond),
            Column::new("epochs_to_lock", "epochs / lock", Unit::Ratio),
            Column::new("list_to_lock", "list / lock", Unit::Ratio),
            Column::new("list_to_spinning", "list / spinning", Unit::Ratio),
        ],
    );
    let mut at_most_cores = Vec::new();
    for (name, work) in works {
        let Some(work) = work else { continue };
        let costs = Costs { work, ..costs };
        let rates: [Modelled; CORES.len()] = CORES
            .map(|cores| (cores, MODELS.map(|(scheme, ..)| contention::throughput(scheme, cores, &costs))));
        for (cores, all) in rates {
            let [locked, epochs, donated, spinning] = all;
            let mut row = vec![name.into(), (cores as u64).into()];
            let ratios = [epochs / locked, donated / locked, donated / spinning];
            row.extend(all.into_iter().chain(ratios).map(Into::into));
            table.rows.push(row);
        }
        at_most_cores.push((name, rates[CORES.len() - 1].1));
        outcome.plots.push(modelled(name, &rates));
    }
    outcome.tables.push(table);
    outcome.notes.extend(model_notes(costs, unmapping));
    outcome.notes.extend(at_most_cores.iter().map(|(name, all)| at_literature(name, all)));
    if cfg!(debug_assertions) {
        outcome
            .notes
            .push("this is a debug build of hugelift: its figures are not those of a release build".into());
    }
}

/// Says what the model rests on: the measured costs, its rules, and the figures of the literature.
fn model_notes(costs: Costs, unmapping: Option<f64>) -> [String; 3] {
    let costs = format!(
        "the costs in the model, measured here: a cache line from core to core {:.0} ns, an atomic operation {:.1} ns, \
         taking and releasing the lock {:.1} ns, a round of spinning {:.1} ns, waking a sleeper {:.0} ns and {:.0} ns \
         until it runs, work {:.0} ns{}",
        costs.transfer,
        costs.atomic,
        costs.held,
        costs.pause,
        costs.wake,
        costs.awake,
        costs.work,
        unmapping.map_or(String::new(), |work| format!(", mapping and unmapping {work:.0} ns"))
    );
    let rules = format!(
        "the rules of the model, from the literature: a line goes to one core at a time, and handing over a lock brings \
         it to all spinning waiters (Boyd-Wickizer and others, \"Non-scalable locks are dangerous\", 2012); a waiter \
         for this library's lock spins {} times, then sleeps (futex(2)); in a kernel it spins on",
        contention::SPINS
    );
    let literature = format!(
        "the literature (FreeBSD r347695, review D19630): {:.3} M operations/s with the lock, {:.3} M with the list, on \
         {LITERATURE} CPUs: 252.0 % ± 1.1 % more at 95 % confidence; {:.1} µs per CPU and operation with the list, \
         which the model takes as the work of the literature's CPUs",
        BEFORE / 1e6,
        AFTER / 1e6,
        LITERATURE as f64 / AFTER * 1e6
    );
    [costs, rules, literature]
}

/// Says what the model predicts for the number of cores in the literature, and why if it differs from the
/// literature.
fn at_literature(work: &str, [locked, epochs, donated, spinning]: &[f64; MODELS.len()]) -> String {
    let mut text = format!(
        "the model at {LITERATURE} cores, {work}: epochs {} times and the list {} times one lock with sleeping \
         waiters ({:.3} M operations/s), {} and {} times one with spinning waiters ({:.3} M)",
        Unit::Ratio.show(epochs / locked),
        Unit::Ratio.show(donated / locked),
        locked / 1e6,
        Unit::Ratio.show(epochs / spinning),
        Unit::Ratio.show(donated / spinning),
        spinning / 1e6
    );
    let found = AFTER / BEFORE;
    if donated / locked < found {
        text += &format!(
            "; the list is not {found:.1} times the lock with sleeping waiters: a task that enters or exits reads the lines \
             of the tasks inside, which others have just written to, so no more than {:.3} M pass ({:.0} ns each), \
             while a lock with sleeping waiters hands its line only to tasks that are awake",
            donated / 1e6,
            1e9 / donated
        );
    }
    text
}

fn modelled(work: &str, rates: &[Modelled]) -> Plot {
    let series = MODELS.iter().enumerate().map(|(i, (_, name, hue))| Series {
        name: (*name).into(),
        hue: *hue,
        shape: Shape::Dashed,
        points: rates.iter().map(|(cores, all)| Point { x: *cores as f64, y: all[i], range: None }).collect(),
    });
    let literature = |name: &str, y, scheme: usize| Series {
        name: name.into(),
        hue: HUES[scheme],
        shape: Shape::Points,
        points: vec![Point { x: LITERATURE as f64, y, range: None }],
    };
    Plot {
        title: format!("model: operations by number of cores, {work}"),
        x: Scale::logarithmic("cores", Unit::Count),
        y: Scale::logarithmic("operations of all cores", Unit::PerSecond),
        series: series
            .chain([literature("FreeBSD, lock", BEFORE, LOCKED), literature("FreeBSD, list", AFTER, DONATED)])
            .collect(),
        marks: Vec::new(),
    }
}

fn advice(measured: &Measured) -> Vec<String> {
    let mut advice = Vec::new();
    let time = |scheme: usize| median(&measured.uncontended[scheme]).ok();
    if let (Some(a), Some(b), Some(c), Some(other)) =
        (time(LOCKED), time(EPOCHS), time(DONATED), time(CROSSBEAM))
    {
        let show = |time| Unit::Nanoseconds.show(time);
        advice.push(format!(
            "Alone, entering and exiting takes {} ns with epochs, {} ns with the lock-free list and {} ns with one lock \
             (crossbeam-epoch: {} ns).",
            show(b),
            show(c),
            show(a),
            show(other)
        ));
    }
    let complete = measured.turns.iter().rev().find_map(|(count, _)| {
        Some((*count, to_locked(measured, *count, EPOCHS)?, to_locked(measured, *count, DONATED)?))
    });
    if let Some((count, epochs, donated)) = complete {
        let cpus = cpus::count();
        let show = |estimate: &Estimate| {
            let interval = estimate.interval.map_or(String::new(), |interval| {
                format!(" [{}, {}]", Unit::Ratio.show(interval.low), Unit::Ratio.show(interval.high))
            });
            format!("{}{interval}", Unit::Ratio.show(estimate.point))
        };
        let why = if cpus < LITERATURE {
            format!(
                "; on {cpus} CPUs no more than {cpus} tasks can want the lock at once; the model above has more"
            )
        } else {
            String::new()
        };
        advice.push(format!(
            "With {count} tasks epochs do {} times the operations of one lock, the list {} times{why}.",
            show(&epochs),
            show(&donated)
        ));
    }
    advice
}
