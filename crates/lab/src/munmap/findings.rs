// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::cycle::{Cycle, Touch};
use super::tasks::Kind;
use super::{Case, Measured};
use crate::cpus;
use crate::memory::Pages;
use crate::results::unit::Unit;
use crate::results::{Column, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};

/// The largest scaling of two tasks that wait for each other.
const SERIAL: f64 = 1.3;

/// The share of runnable time lost to other programs above which a note warns.
const BUSY: f64 = 0.05;

/// Title of a column.
const CPU: &str = "CPU time per cycle";

pub fn outcome(measured: &[Measured], notes: Vec<String>, alone: bool) -> Outcome {
    let mut outcome =
        Outcome { notes, tables: vec![averages(measured), seconds(measured)], ..Outcome::default() };
    outcome.samples = measured.iter().map(sample).collect();
    if alone {
        outcome.listing = measured.iter().flat_map(listing).collect();
    } else {
        outcome.plots = Touch::ALL.into_iter().filter_map(|touch| curves(measured, touch)).collect();
        outcome.notes.extend(asleep(measured));
    }
    outcome.notes.extend(busy(measured));
    if !alone {
        outcome.notes.push(format!(
            "time and scaling are in wall time; '{CPU}' leaves out the time of other programs"
        ));
    }
    outcome.advice = advice(measured, alone);
    outcome
}

/// Returns the lines that will-it-scale prints: counts of whole cycles per second.
fn listing(measured: &Measured) -> Vec<String> {
    let mut lines = vec!["testcase:Anonymous memory mmap/munmap of 128MB".to_string(), "warmup".into()];
    let mut measurement = false;
    for sample in &measured.samples {
        if sample.measured && !measurement {
            lines.push("measurement".into());
            measurement = true;
        }
        lines.push(format!("min:{:.0} max:{:.0} total:{:.0}", sample.min, sample.max, sample.total));
    }
    lines.extend(measured.average().map(|average| format!("average:{average:.0}")));
    lines
}

fn key_columns() -> Vec<Column> {
    vec![
        Column::new("pages", "pages", Unit::Text),
        Column::new("touched", "touched", Unit::Text),
        Column::new("kind", "tasks are", Unit::Text),
        Column::new("tasks", "tasks", Unit::Count),
    ]
}

fn key_cells(case: &Case) -> Vec<crate::results::Cell> {
    vec![
        case.cycle.pages.name().into(),
        case.cycle.touch.name().into(),
        case.kind.name().into(),
        (case.tasks as u64).into(),
    ]
}

fn averages(measured: &[Measured]) -> Table {
    let mut columns = key_columns();
    columns.extend([
        Column::new("cycles_per_second", "cycles", Unit::PerSecond),
        Column::new("seconds_per_cycle", "time per cycle", Unit::Seconds),
        Column::new("cpu_seconds_per_cycle", CPU, Unit::Seconds),
        Column::new("scaling", "relative to one task", Unit::Ratio),
        Column::new("asleep_in", "most often asleep in", Unit::Text),
        Column::new("asleep_percent", "of checks", Unit::Percent),
    ]);
    let mut table = Table::new("mapping and unmapping 128 MB", columns);
    for one in measured {
        let average = one.average();
        let mut row = key_cells(&one.case);
        row.push(average.into());
        row.push(average.map(|a| one.case.tasks as f64 / a).into());
        row.push(one.cpu.into());
        row.push(scaling(measured, &one.case).into());
        row.push(one.asleep.as_ref().map(|(place, _)| place.as_str()).into());
        row.push(one.asleep.as_ref().map(|(_, share)| 100.0 * share).into());
        table.rows.push(row);
    }
    table
}

fn seconds(measured: &[Measured]) -> Table {
    let mut columns = key_columns();
    columns.extend([
        Column::new("sample", "sample", Unit::Count),
        Column::new("phase", "phase", Unit::Text),
        Column::new("min_per_second", "min", Unit::PerSecond),
        Column::new("max_per_second", "max", Unit::PerSecond),
        Column::new("total_per_second", "total", Unit::PerSecond),
    ]);
    let mut table = Table::detail("each sample: the slowest task, the fastest task, all tasks", columns);
    for one in measured {
        for (i, sample) in one.samples.iter().enumerate() {
            let mut row = key_cells(&one.case);
            row.push((i as u64 + 1).into());
            row.push(if sample.measured { "measurement" } else { "warmup" }.into());
            row.extend([sample.min, sample.max, sample.total].map(Into::into));
            table.rows.push(row);
        }
    }
    table
}

fn sample(measured: &Measured) -> Sample {
    let counted = measured.samples.iter().filter(|s| s.measured);
    Sample { name: measured.case.name(), unit: Unit::PerSecond, values: counted.map(|s| s.total).collect() }
}

fn rate(measured: &[Measured], case: &Case) -> Option<f64> {
    measured.iter().find(|m| m.case == *case)?.average()
}

/// Returns the rate of the case divided by that of one task alone.
fn scaling(measured: &[Measured], case: &Case) -> Option<f64> {
    let one = rate(measured, &Case { tasks: 1, ..*case }).filter(|&one| one > 0.0)?;
    Some(rate(measured, case)? / one)
}

fn curves(measured: &[Measured], touch: Touch) -> Option<Plot> {
    let mut series: Vec<Series> = Vec::new();
    for one in measured.iter().filter(|m| m.case.cycle.touch == touch) {
        let (pages, kind) = (one.case.cycle.pages, one.case.kind);
        let name = format!("{}, {}", pages.name(), kind.name());
        let shape = if kind == Kind::Threads { Shape::Dashed } else { Shape::Line };
        let counted = || one.samples.iter().filter(|s| s.measured).map(|s| s.total);
        let range = (counted().fold(f64::INFINITY, f64::min), counted().fold(0.0, f64::max));
        let Some(y) = one.average() else { continue };
        let point = Point { x: one.case.tasks as f64, y, range: Some(range) };
        match series.iter_mut().find(|s| s.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, hue: pages.hue(), shape, points: vec![point] }),
        }
    }
    (!series.is_empty()).then(|| Plot {
        title: format!("mapping and unmapping 128 MB, {}, by number of tasks", touch.name()),
        x: Scale::linear("tasks", Unit::Count),
        y: Scale::linear("cycles of all tasks", Unit::PerSecond),
        series,
        marks: Vec::new(),
    })
}

/// Returns the kernel function in which tasks were asleep most often, and its share of all checks.
pub fn most_common(places: &[String]) -> Option<(String, f64)> {
    let named: Vec<&String> = places.iter().filter(|p| !p.is_empty()).collect();
    let count = |place: &String| named.iter().filter(|p| **p == place).count();
    let most = named.iter().max_by_key(|place| count(place))?;
    Some(((*most).clone(), count(most) as f64 / places.len() as f64))
}

fn asleep(measured: &[Measured]) -> Option<String> {
    let of_threads = measured.iter().filter(|m| m.case.kind == Kind::Threads && m.case.tasks > 1);
    let most = of_threads.filter_map(|m| m.asleep.as_ref().map(|(place, share)| (m, place, share)));
    let (case, place, share) = most.max_by(|a, b| a.2.total_cmp(b.2))?;
    let why = if place.starts_with("rwsem") { ": a sleeping reader-writer lock, here mmap_lock" } else { "" };
    Some(format!(
        "{}: in {:.0} % of the checks a task was asleep in {place}{why}; tasks that spin for a lock are not \
         counted",
        case.case.name(),
        100.0 * share
    ))
}

fn advice(measured: &[Measured], alone: bool) -> Vec<String> {
    if alone {
        let rates = measured.iter().filter_map(|m| Some((m, m.average()?)));
        return rates
            .map(|(m, rate)| {
                let time = Unit::Seconds.show(m.case.tasks as f64 / rate);
                format!("{}: {} cycles per second, {time} each.", m.case.name(), Unit::PerSecond.show(rate))
            })
            .collect();
    }
    [serialised(measured), cost(measured)].into_iter().flatten().collect()
}

/// Says whether threads wait for each other while processes do not.
fn serialised(measured: &[Measured]) -> Option<String> {
    let cycle = Cycle { pages: Pages::Small, touch: Touch::None };
    let case = |kind, tasks| Case { kind, cycle, tasks };
    let scalings = |tasks| {
        let scaled = |kind| scaling(measured, &case(kind, tasks));
        Some((tasks, scaled(Kind::Processes)?, scaled(Kind::Threads)?))
    };
    // More tasks than CPUs take turns, with or without locks.
    let most = cpus::count().max(2);
    let (tasks, processes, threads) = (2..=most).rev().find_map(scalings)?;
    let (p, t) = (Unit::Ratio.show(processes), Unit::Ratio.show(threads));
    let words = if threads < SERIAL && processes > threads * SERIAL {
        format!(
            "{tasks} processes map and unmap {p} times as fast as one, {tasks} threads {t} times: threads of one \
             process wait for each other at mmap_lock, the lock of their address space, which both calls take for \
             writing, so an allocator that unmaps often should keep its memory, or the program should use \
             processes."
        )
    } else if processes < SERIAL {
        format!(
            "{tasks} processes map and unmap {p} times as fast as one, and {tasks} threads {t} times: they do \
             not wait for the lock of an address space but for something that all share, perhaps CPUs that are \
             busy with other work."
        )
    } else {
        format!(
            "{tasks} processes map and unmap {p} times as fast as one, {tasks} threads {t} times: mmap_lock, the lock \
             of an address space, costs threads {} % here.",
            Unit::Percent.show(100.0 * (1.0 - threads / processes).max(0.0))
        )
    };
    Some(words)
}

/// Returns a note if other programs had the CPUs. Cases with more tasks than CPUs do not count, since their
/// tasks wait for each other.
fn busy(measured: &[Measured]) -> Option<String> {
    let alone = measured.iter().filter(|m| m.case.tasks <= cpus::count());
    let most = alone.filter_map(|m| m.kept_waiting).max_by(f64::total_cmp)?;
    (most > BUSY).then(|| {
        format!(
            "this machine is busy: for up to {:.0} % of the time in which a task could run, another program had \
             its CPU; repeat the experiment on an idle machine",
            100.0 * most
        )
    })
}

/// Says what touching memory costs on each kind of pages.
fn cost(measured: &[Measured]) -> Option<String> {
    let time = |pages: Pages| {
        let case = Case { kind: Kind::Processes, cycle: Cycle { pages, touch: Touch::All }, tasks: 1 };
        measured.iter().find(|m| m.case == case)?.cpu
    };
    let small = time(Pages::Small)?;
    let others: Vec<(Pages, f64)> = measured
        .iter()
        .map(|m| m.case.cycle.pages)
        .filter(|pages| *pages != Pages::Small)
        .fold(Vec::new(), |mut all, pages| {
            if !all.contains(&pages) {
                all.push(pages);
            }
            all
        })
        .into_iter()
        .filter_map(|pages| Some((pages, time(pages)?)))
        .collect();
    if others.is_empty() {
        return None;
    }
    let words = |(pages, t): &(Pages, f64)| {
        format!(
            "{} on {} ({} times as fast)",
            Unit::Seconds.show(*t),
            pages.name(),
            Unit::Ratio.show(small / t)
        )
    };
    let words: Vec<String> = others.iter().map(words).collect();
    Some(format!(
        "Mapping 128 MB, touching all of it and unmapping it takes {} of CPU time on {}, and {}.",
        Unit::Seconds.show(small),
        Pages::Small.name(),
        words.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Sample as OneSample;
    use super::*;

    fn case(kind: Kind, touch: Touch, pages: Pages, tasks: usize, total: f64) -> Measured {
        let sample = |measured| OneSample { measured, min: total / 2.0, max: total, total };
        Measured {
            case: Case { kind, cycle: Cycle { pages, touch }, tasks },
            samples: vec![OneSample { total: 1.0, ..sample(false) }, sample(true), sample(true)],
            asleep: None,
            cpu: Some(1.0 / total),
            kept_waiting: Some(0.01),
        }
    }

    fn two(processes: f64, threads: f64) -> String {
        let of = |kind, tasks, total| case(kind, Touch::None, Pages::Small, tasks, total);
        let measured = [
            of(Kind::Processes, 1, 100.0),
            of(Kind::Processes, 2, 100.0 * processes),
            of(Kind::Threads, 1, 100.0),
            of(Kind::Threads, 2, 100.0 * threads),
        ];
        serialised(&measured).unwrap()
    }

    #[test]
    fn what_threads_wait_for() {
        assert!(two(1.95, 0.98).contains("wait for each other at mmap_lock"));
        assert!(two(1.0, 0.9).contains("not wait for the lock of an address space"));
        assert!(two(1.95, 1.56).contains("costs threads 20.0 % here"));
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let one = case(Kind::Processes, Touch::None, Pages::Small, 1, 500.0);
        assert_eq!(one.average(), Some(500.0));
        assert_eq!(sample(&one).values, [500.0, 500.0]);
        assert_eq!(
            listing(&one)[1..],
            [
                "warmup",
                "min:250 max:500 total:1",
                "measurement",
                "min:250 max:500 total:500",
                "min:250 max:500 total:500",
                "average:500"
            ]
        );
        assert_eq!(seconds(&[one]).rows.len(), 3);
    }

    #[test]
    fn what_touching_costs() {
        let of = |pages, total| case(Kind::Processes, Touch::All, pages, 1, total);
        let words = cost(&[of(Pages::Small, 20.0), of(Pages::Thp, 50.0)]).unwrap();
        assert!(
            words.contains("50.0 ms of CPU time on 4 kB, and 20.0 ms on THP (2.50 times as fast)"),
            "{words}"
        );
        assert_eq!(cost(&[of(Pages::Small, 20.0)]), None);
    }

    #[test]
    fn a_busy_machine_is_reported() {
        let mut one = case(Kind::Processes, Touch::None, Pages::Small, 1, 500.0);
        assert_eq!(busy(std::slice::from_ref(&one)), None);
        one.kept_waiting = Some(0.42);
        assert!(busy(&[one]).unwrap().contains("up to 42 %"));
    }

    #[test]
    fn where_tasks_sleep() {
        let places = ["", "a", "b", "b"].map(String::from);
        assert_eq!(most_common(&places), Some(("b".into(), 0.5)));
        assert_eq!(most_common(&["".to_string()]), None);
    }
}
