// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::case::{Case, Measured};
use super::cycle::{Cycle, Touch};
use super::hot::{self, at_work};
use super::keys::{key_cells, key_columns};
use super::tasks::Kind;
use crate::cpus;
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::unit::Unit;
use crate::results::{Column, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};

/// The largest scaling of two tasks that wait for each other.
const SERIAL: f64 = 1.3;

/// The least scaling of processes that shows what threads could reach.
const PARALLEL: f64 = 1.5;

/// The least scaling, divided by the number of threads, of threads that surely do not wait for each other. What
/// lies between it and [`SERIAL`] keeps two runs from contradicting each other: two threads of one machine
/// were seen at 1.0 and at 1.4.
const FREE: f64 = 0.85;

/// One kind of pages is surely faster than another if each sample is, by this factor at least.
const FASTER: f64 = 1.5;

/// The source's result on another kernel.
const FREEBSD: &str = "in the source (FreeBSD, will-it-scale mmap1) processes waited for each other too, for the \
                       accounting of swap reservations; processes on Linux do not";

/// Title of a column.
const CPU: &str = "CPU time per cycle";

/// Returns tables, plots, claims and advice. `disturbed` is whether other programs disturbed the experiment.
pub fn outcome(measured: &[Measured], notes: Vec<String>, alone: bool, disturbed: bool) -> Outcome {
    let mut outcome =
        Outcome { notes, tables: vec![averages(measured), seconds(measured)], ..Outcome::default() };
    outcome.samples = measured.iter().map(sample).collect();
    if alone {
        outcome.listing = measured.iter().flat_map(listing).collect();
    } else {
        outcome.plots = Touch::ALL.into_iter().filter_map(|touch| curves(measured, touch)).collect();
        outcome.notes.extend(asleep(measured));
    }
    outcome.tables.extend(hot::table(measured));
    outcome.notes.extend(hot::note(measured));
    if alone {
        outcome.advice = rates(measured);
    } else {
        outcome.notes.push(format!(
            "time and scaling are in wall time; '{CPU}' leaves out the time of other programs"
        ));
        let found = [serialised(measured, disturbed), cost(measured, disturbed)].into_iter().flatten();
        (outcome.advice, outcome.claims) =
            found.fold((Vec::new(), Vec::new()), |(mut advice, mut claims), (words, more)| {
                advice.push(words);
                claims.extend(more);
                (advice, claims)
            });
        outcome.notes.extend(
            outcome.claims.iter().any(|claim| claim.subject == SERIALISED).then(|| FREEBSD.to_string()),
        );
    }
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

fn averages(measured: &[Measured]) -> Table {
    let mut columns = key_columns();
    columns.extend([
        Column::new("cycles_per_second", "cycles", Unit::PerSecond),
        Column::new("seconds_per_cycle", "time per cycle", Unit::Seconds),
        Column::new("cpu_seconds_per_cycle", CPU, Unit::Seconds),
        Column::new("scaling", "relative to one task", Unit::Ratio),
        Column::new("asleep_in", "most often asleep in", Unit::Text),
        Column::new("asleep_percent", "of checks", Unit::Percent),
        Column::new("at_work_in", "at work in", Unit::Text),
        Column::new("spinning_percent", "spins for locks", Unit::Percent),
    ]);
    let mut table = Table::new("mapping and unmapping 128 MB", columns);
    for one in measured {
        let average = one.average();
        let mut row = key_cells(&one.case);
        row.push(average.into());
        row.push(average.map(|a| one.case.tasks as f64 / a).into());
        row.push(one.cpu().into());
        row.push(scaling(measured, &one.case).into());
        row.push(one.asleep.as_ref().map(|(place, _)| place.as_str()).into());
        row.push(one.asleep.as_ref().map(|(_, share)| 100.0 * share).into());
        let places = one.at_work.as_ref().ok();
        row.push(places.map(at_work).into());
        row.push(places.and_then(|places| places.spinning()).map(|share| 100.0 * share).into());
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
    Sample { name: measured.case.name(), unit: Unit::PerSecond, values: measured.rates() }
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
        let Some(range) = range(&one.rates()) else { continue };
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
        "{}: in {:.0} % of the checks a task was asleep in {place}{why}",
        case.case.name(),
        100.0 * share
    ))
}

/// Says how fast each case is.
fn rates(measured: &[Measured]) -> Vec<String> {
    let rates = measured.iter().filter_map(|m| Some((m, m.average()?)));
    rates
        .map(|(m, rate)| {
            let time = Unit::Seconds.show(m.case.tasks as f64 / rate);
            format!("{}: {} cycles per second, {time} each.", m.case.name(), Unit::PerSecond.show(rate))
        })
        .collect()
}

/// Returns the least and the greatest value; `None` if there is none.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    Some((least, values.iter().copied().max_by(f64::total_cmp)?))
}

/// How much faster tasks are than one alone.
struct Scaling {
    point: f64,
    /// The least and the greatest scaling of any two samples.
    range: (f64, f64),
    disturbed: bool,
}

/// Returns the scaling of a case.
fn scaling_of(measured: &[Measured], case: &Case) -> Option<Scaling> {
    let find = |case: Case| measured.iter().find(|m| m.case == case);
    let (one, many) = (find(Case { tasks: 1, ..*case })?, find(*case)?);
    let ((one_low, one_high), (low, high)) = (range(&one.rates())?, range(&many.rates())?);
    Some(Scaling {
        point: scaling(measured, case)?,
        range: (low / one_high, high / one_low),
        disturbed: one.disturbed || many.disturbed,
    })
}

/// The subject of the claim about threads.
const SERIALISED: &str = "munmap.threads-serialised";

/// Says whether threads wait for each other while processes do not.
fn serialised(measured: &[Measured], disturbed: bool) -> Option<(String, Vec<Claim>)> {
    let cycle = Cycle { pages: Pages::Small, touch: Touch::None };
    let case = |kind, tasks| Case { kind, cycle, tasks };
    let scalings = |tasks| {
        let scaled = |kind| scaling_of(measured, &case(kind, tasks));
        Some((tasks, scaled(Kind::Processes)?, scaled(Kind::Threads)?))
    };
    // More tasks than CPUs take turns, with or without locks.
    let most = cpus::count().max(2);
    let (tasks, processes, threads) = (2..=most).rev().find_map(scalings)?;
    let calm = !(disturbed || processes.disturbed || threads.disturbed);
    let yes = threads.range.1 < SERIAL && processes.range.0 > PARALLEL;
    let no = threads.range.0 > FREE * tasks as f64;
    let seen = threads.point < SERIAL && processes.point > threads.point * SERIAL;
    let sure = calm && (yes || no);
    let (p, t) = (Unit::Ratio.show(processes.point), Unit::Ratio.show(threads.point));
    let figures =
        format!("{tasks} processes map and unmap {p} times as fast as one, {tasks} threads {t} times");
    let words = if !sure {
        format!(
            "Not sure whether threads of one process wait for each other at mmap_lock, the lock of their address \
             space: {figures}; {AGAIN}."
        )
    } else if yes {
        format!(
            "{figures}: threads of one process wait for each other at mmap_lock, the lock of their address space, \
             which both calls take for writing, so an allocator that unmaps often should keep its memory, or the \
             program should use processes."
        )
    } else {
        format!("{figures}: mmap_lock, the lock of an address space, does not make threads wait long here.")
    };
    let is_serialised = if sure { yes } else { seen };
    let word = if is_serialised { "yes" } else { "no" };
    Some((words, vec![Claim::word(SERIALISED, word, sure)]))
}

/// Ends a sentence that is not sure.
const AGAIN: &str = "run again on an idle machine";

/// Says what touching memory costs on each kind of pages.
fn cost(measured: &[Measured], disturbed: bool) -> Option<(String, Vec<Claim>)> {
    let of = |pages: Pages| {
        let case = Case { kind: Kind::Processes, cycle: Cycle { pages, touch: Touch::All }, tasks: 1 };
        let found = measured.iter().find(|m| m.case == case)?;
        Some((found, found.cpu()?, range(&found.cpu)?))
    };
    let (small, small_time, (small_least, small_most)) = of(Pages::Small)?;
    let mut others: Vec<Pages> = Vec::new();
    for pages in measured.iter().map(|m| m.case.cycle.pages).filter(|pages| *pages != Pages::Small) {
        if !others.contains(&pages) {
            others.push(pages);
        }
    }
    let (mut words, mut claims) = (Vec::new(), Vec::new());
    for (pages, (found, time, (least, most))) in others.into_iter().filter_map(|p| Some((p, of(p)?))) {
        words.push(format!(
            "{} on {} ({} times as fast)",
            Unit::Seconds.show(time),
            pages.name(),
            Unit::Ratio.show(small_time / time)
        ));
        let calm = !(disturbed || small.disturbed || found.disturbed);
        let sure = calm && (small_least > FASTER * most || least > FASTER * small_most);
        let kind = if pages == Pages::Thp { "thp" } else { "hugetlb" };
        let word = if time < small_time { "faster" } else { "slower" };
        claims.push(Claim::word(format!("munmap.touch.{kind}"), word, sure));
    }
    if words.is_empty() {
        return None;
    }
    let sentence = format!(
        "apping 128 MB, touching all of it and unmapping it takes {} of CPU time on {}, and {}",
        Unit::Seconds.show(small_time),
        Pages::Small.name(),
        words.join(", ")
    );
    let sentence = if claims.iter().all(|claim| claim.sure) {
        format!("M{sentence}.")
    } else {
        format!("Not sure: m{sentence}; {AGAIN}.")
    };
    Some((sentence, claims))
}

#[cfg(test)]
mod tests {
    use super::super::at_work::Places;
    use super::super::case::Sample as OneSample;
    use super::*;

    fn case(kind: Kind, touch: Touch, pages: Pages, tasks: usize, total: f64) -> Measured {
        let sample = |measured| OneSample { measured, min: total / 2.0, max: total, total };
        Measured {
            case: Case { kind, cycle: Cycle { pages, touch }, tasks },
            samples: vec![OneSample { total: 1.0, ..sample(false) }, sample(true), sample(true)],
            asleep: None,
            at_work: Ok(Places::default()),
            cpu: vec![1.0 / total; 2],
            disturbed: false,
        }
    }

    fn two(processes: f64, threads: f64) -> (String, Claim) {
        let of = |kind, tasks, total| case(kind, Touch::None, Pages::Small, tasks, total);
        let measured = [
            of(Kind::Processes, 1, 100.0),
            of(Kind::Processes, 2, 100.0 * processes),
            of(Kind::Threads, 1, 100.0),
            of(Kind::Threads, 2, 100.0 * threads),
        ];
        let (words, claims) = serialised(&measured, false).unwrap();
        let (disturbed, unsure) = serialised(&measured, true).unwrap();
        assert!(disturbed.starts_with("Not sure whether") && !unsure[0].sure, "{disturbed}");
        (words, claims[0].clone())
    }

    #[test]
    fn what_threads_wait_for() {
        let claim = |word, sure| Claim::word(SERIALISED, word, sure);
        let (words, yes) = two(1.95, 0.98);
        assert!(words.contains("wait for each other at mmap_lock") && yes == claim("yes", true), "{words}");
        let (words, neither) = two(1.0, 0.9);
        assert!(
            words.starts_with("Not sure whether threads") && words.contains("2 threads 0.90 times;"),
            "{words}"
        );
        assert_eq!(neither, claim("no", false));
        assert_eq!(two(1.4, 0.9).1, claim("yes", false));
        assert_eq!(two(1.95, 1.6).1, claim("no", false));
        let (words, no) = two(1.95, 1.8);
        assert!(words.contains("does not make threads wait long") && no == claim("no", true), "{words}");
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
        let (words, claims) = cost(&[of(Pages::Small, 20.0), of(Pages::Thp, 50.0)], false).unwrap();
        assert_eq!(
            words,
            "Mapping 128 MB, touching all of it and unmapping it takes 50.0 ms of CPU time on 4 kB, and 20.0 ms on THP \
             (2.50 times as fast)."
        );
        assert_eq!(claims, [Claim::word("munmap.touch.thp", "faster", true)]);
        let (words, claims) = cost(&[of(Pages::Small, 20.0), of(Pages::Thp, 25.0)], false).unwrap();
        assert!(words.starts_with("Not sure: mapping 128 MB") && !claims[0].sure, "{words}");
        let busy = Measured { disturbed: true, ..of(Pages::Thp, 50.0) };
        assert!(!cost(&[of(Pages::Small, 20.0), busy], false).unwrap().1[0].sure);
        assert_eq!(cost(&[of(Pages::Small, 20.0)], false), None);
    }

    #[test]
    fn where_tasks_sleep() {
        let places = ["", "a", "b", "b"].map(String::from);
        assert_eq!(most_common(&places), Some(("b".into(), 0.5)));
        assert_eq!(most_common(&["".to_string()]), None);
    }
}
