// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots, claims and advice of the measurements.

mod model;

use super::compared::{CROSSBEAM, DONATED, EPOCHS, HUES, LOCKED, SCHEMES};
use super::measured::Measured;
use super::tasks::Turn;
use crate::results::claim::Claim;
use crate::results::unit::Unit;
use crate::results::{Column, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_measure::stats::{Estimate, median, ratio};

/// A ratio is a sure order if its whole interval is this much above 1, since figures of a guest drift by
/// some ten percent.
const MARGIN: f64 = 1.3;

/// The pairs whose order is claimed: the subject, the word for each order, and the schemes.
const ORDERS: [(&str, [&str; 2], [usize; 2]); 3] = [
    ("reclaim.order.epochs-lock", ["epochs-before-lock", "lock-before-epochs"], [EPOCHS, LOCKED]),
    ("reclaim.order.list-lock", ["list-before-lock", "lock-before-list"], [DONATED, LOCKED]),
    ("reclaim.order.epochs-list", ["epochs-before-list", "list-before-epochs"], [EPOCHS, DONATED]),
];

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
    let shown = match measured.costs {
        Some(costs) => model::add(&mut outcome, measured, costs),
        None => {
            outcome
                .notes
                .push("there is only one CPU, so the model of more cores could not be calibrated".into());
            String::new()
        }
    };
    outcome.notes.push(
        "crossbeam-epoch and seize have no wait: their tasks only enter, work and exit; liburcu and \
         ConcurrencyKit are C libraries and not linked: make bench compares epochs and the list with them"
            .into(),
    );
    outcome.claims = claims(measured);
    outcome.advice = advice(measured, &shown);
    outcome
}

/// Returns the ratio of the times of entering and exiting, `scheme` to crossbeam-epoch, pair by pair.
fn to_crossbeam(measured: &Measured, scheme: usize) -> Option<Estimate> {
    let pairs = measured.uncontended[CROSSBEAM].iter().zip(&measured.uncontended[scheme]);
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
        let estimate = to_crossbeam(measured, i).filter(|_| i != CROSSBEAM);
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

/// Returns the ratio of the rates, `scheme` to `reference`, by pairs of turns.
fn rates_ratio(measured: &Measured, count: usize, [scheme, reference]: [usize; 2]) -> Option<Estimate> {
    let (_, all) = measured.turns.iter().find(|(tasks, _)| *tasks == count)?;
    let pairs: Vec<_> = all[reference].iter().zip(&all[scheme]).map(|(a, b)| (a.rate, b.rate)).collect();
    ratio(&pairs).ok()
}

/// Returns the largest number of tasks with which all of the three were measured.
fn most_tasks(measured: &Measured) -> Option<usize> {
    let complete = |all: &[Vec<Turn>]| all[..CROSSBEAM].iter().all(|turns| !turns.is_empty());
    measured.turns.iter().rev().find(|(_, all)| complete(all)).map(|(count, _)| *count)
}

/// Returns the order of two schemes: its word, and whether it is sure.
fn order(estimate: &Estimate, words: [&'static str; 2], disturbed: bool) -> (&'static str, bool) {
    let word = words[usize::from(estimate.point < 1.0)];
    let sure = estimate.interval.is_some_and(|i| i.low > MARGIN || i.high < 1.0 / MARGIN);
    (word, sure && !disturbed)
}

/// Claims the order of the three under contention, and what entering and exiting costs, within a factor of
/// two: the caches of the CPU and its clock differ from run to run.
fn claims(measured: &Measured) -> Vec<Claim> {
    let mut claims = Vec::new();
    if let Some(count) = most_tasks(measured) {
        for (subject, words, pair) in ORDERS {
            let Some(estimate) = rates_ratio(measured, count, pair) else { continue };
            let (word, sure) = order(&estimate, words, measured.disturbed);
            claims.push(Claim::word(subject, word, sure));
        }
    }
    for (subject, scheme) in [("lock", LOCKED), ("epochs", EPOCHS), ("list", DONATED)] {
        let times = &measured.uncontended[scheme];
        if let Ok(time) = median(times) {
            let bounds = (time / 2.0, 2.0 * time);
            let carried = times.iter().all(|time| (bounds.0..=bounds.1).contains(time));
            let subject = format!("reclaim.alone.{subject}");
            claims.push(Claim::between(subject, bounds, Unit::Nanoseconds, carried && !measured.disturbed));
        }
    }
    claims
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
            let ratio = rates_ratio(measured, *count, [i, LOCKED]).filter(|_| i != LOCKED);
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
        let point = |(count, all): &(usize, [Vec<Turn>; SCHEMES.len()])| {
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

/// Returns the two sentences. `shown` is what the second one says of the model's predictions, or empty.
fn advice(measured: &Measured, shown: &str) -> Vec<String> {
    let mut advice = Vec::new();
    let time = |scheme: usize| median(&measured.uncontended[scheme]).ok();
    if let (Some(a), Some(b), Some(c), Some(other)) =
        (time(LOCKED), time(EPOCHS), time(DONATED), time(CROSSBEAM))
    {
        let show = |time| Unit::Nanoseconds.show(time);
        let sure = if measured.disturbed { "Not sure, run again on an idle machine: alone" } else { "Alone" };
        advice.push(format!(
            "{sure}, entering and exiting takes {} ns with epochs, {} ns with the lock-free list and {} ns with one \
             lock (crossbeam-epoch: {} ns).",
            show(b),
            show(c),
            show(a),
            show(other)
        ));
    }
    let most = most_tasks(measured).and_then(|count| {
        let of = |scheme| rates_ratio(measured, count, [scheme, LOCKED]);
        Some((count, of(EPOCHS)?, of(DONATED)?))
    });
    if let Some((count, epochs, donated)) = most {
        let show = |estimate: &Estimate| {
            let interval = estimate.interval.map_or(String::new(), |interval| {
                format!(" [{}, {}]", Unit::Ratio.show(interval.low), Unit::Ratio.show(interval.high))
            });
            let sure = if order(estimate, ["", ""], measured.disturbed).1 { "" } else { " (not sure)" };
            format!("{} times{interval}{sure}", Unit::Ratio.show(estimate.point))
        };
        advice.push(format!(
            "With {count} tasks epochs do {} the operations of one lock, the list {}{shown}.",
            show(&epochs),
            show(&donated)
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::tasks::Turn;

    /// Measurements in which the lock has a rate of 1, and the others have these.
    pub fn measured(epochs: f64, donated: f64) -> Measured {
        let mut measured = Measured::default();
        let turns = |rate: f64| {
            let turn =
                move |i: usize| Turn { rate: rate * (1.0 + 0.01 * i as f64), cpu: 1.0, longest_wait: None };
            (0..7).map(turn).collect::<Vec<_>>()
        };
        let mut all: [Vec<Turn>; SCHEMES.len()] = std::array::from_fn(|_| turns(1.0));
        (all[EPOCHS], all[DONATED]) = (turns(epochs), turns(donated));
        measured.turns.push((8, all));
        measured.uncontended = std::array::from_fn(|_| vec![10.0; 7]);
        measured
    }

    #[test]
    fn an_order_is_sure_with_a_margin_and_undisturbed() {
        let mut measured = measured(20.0, 1.1);
        let sure = |measured: &Measured| {
            let claims = claims(measured).into_iter().filter(|claim| claim.sure);
            claims.map(|claim| claim.subject).collect::<Vec<_>>()
        };
        let orders = ["reclaim.order.epochs-lock", "reclaim.order.epochs-list"];
        let alone = ["reclaim.alone.lock", "reclaim.alone.epochs", "reclaim.alone.list"];
        assert_eq!(sure(&measured), [&orders[..], &alone[..]].concat());
        let words = advice(&measured, "; more").join(" ");
        assert!(words.contains("epochs do 20.0 times [20.0, 20.0] the operations"), "{words}");
        assert!(words.contains("the list 1.10 times [1.10, 1.10] (not sure); more."), "{words}");
        measured.disturbed = true;
        assert!(sure(&measured).is_empty());
        assert!(advice(&measured, "").iter().all(|words| words.to_lowercase().contains("not sure")));
    }
}
