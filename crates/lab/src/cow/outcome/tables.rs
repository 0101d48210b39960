// SPDX-License-Identifier: Apache-2.0
//! The tables and plots of the measurements.

use super::figures::{NS, SHARES, latencies, middle, name, total};
use crate::cow::case::{Case, Pattern};
use crate::cow::measured::Measured;
use crate::cow::ratios::Ratio;
use crate::cow::redis::{self, Rest, Save, Side};
use crate::cow::write::Forked;
use crate::latency::Latencies;
use crate::memory::Pages;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Hue, Plot, Point, Scale, Series, Shape, Table};
use hugelift_measure::stats::{Estimate, Interval, location, median};

pub(super) fn case_columns() -> Vec<Column> {
    vec![
        Column::new("huge_pages", "huge pages", Unit::Count),
        Column::new("pattern", "written", Unit::Text),
        Column::new("pages", "pages", Unit::Text),
    ]
}

pub(super) fn case_cells(case: &Case) -> Vec<Cell> {
    vec![case.huge_pages.into(), name(case.pattern).into(), case.pages.name().into()]
}

/// Returns the percentiles that the number of times carries, and the longest time.
pub(super) fn latency_cells(times: &Latencies) -> impl Iterator<Item = Cell> {
    let at = |share: f64| if share < 1.0 { times.carried(share) } else { times.percentile(share) };
    SHARES.map(|(_, _, share)| Cell::from(at(share).map(|ns| ns * NS))).into_iter()
}

/// Shows an interval of a figure in `unit`.
pub(super) fn interval_cell(interval: Option<Interval>, unit: Unit, scale: f64) -> Cell {
    interval.map(|i| format!("{} to {}", unit.show(i.low * scale), unit.show(i.high * scale))).into()
}

pub(super) fn writes(measured: &Measured) -> Table {
    let mut columns = case_columns();
    columns.push(Column::new("forks", "forks", Unit::Count));
    columns.push(Column::new("fork_s", "fork", Unit::Seconds));
    columns.push(Column::new("total_s", "all writes", Unit::Seconds));
    columns.push(Column::new("total_interval", "95 %", Unit::Text));
    columns
        .extend(SHARES.map(|(key, title, _)| Column::new(&format!("write_{key}_s"), title, Unit::Seconds)));
    columns.push(Column::new("faults", "faults", Unit::Count));
    columns.push(Column::new("copied_bytes", "copied", Unit::Bytes));
    let mut table = Table::new(
        "writes by the parent while the child has its copy: the time of fork(2), of all writes, and of each write",
        columns,
    );
    for (case, runs) in &measured.cases {
        let mut row = case_cells(case);
        row.push((runs.len() as u64).into());
        row.push(middle(runs, |run| Some(run.fork_ns * NS)).into());
        let totals: Vec<f64> = runs.iter().map(total).collect();
        row.push(median(&totals).ok().into());
        row.push(interval_cell(location(&totals).ok().and_then(|e| e.interval), Unit::Seconds, 1.0));
        row.extend(latency_cells(&latencies(runs)));
        row.push(middle(runs, |run| Some(run.faults as f64)).into());
        row.push(middle(runs, |run| Some(run.copied as f64)).into());
        table.rows.push(row);
    }
    table
}

/// Shows what was compared, round by round, beside what the source has found.
pub(super) fn compared(ratios: &[Ratio]) -> Table {
    let columns = vec![
        Column::new("ratio_of", "time of", Unit::Text),
        Column::new("huge_pages", "huge pages", Unit::Count),
        Column::new("of_pages", "on", Unit::Text),
        Column::new("to_pages", "to", Unit::Text),
        Column::new("ratio", "ratio", Unit::Ratio),
        Column::new("ratio_interval", "95 %", Unit::Text),
        Column::new("pairs", "pairs", Unit::Count),
        Column::new("source_ratio", "source", Unit::Ratio),
    ];
    let mut table = Table::new("one kind of pages to another, in pairs of one round", columns);
    for ratio in ratios {
        table.rows.push(vec![
            ratio.of.clone().into(),
            ratio.huge_pages.into(),
            ratio.names.0.clone().into(),
            ratio.names.1.clone().into(),
            ratio.estimate.point.into(),
            interval_cell(ratio.estimate.interval, Unit::Ratio, 1.0),
            (ratio.estimate.count as u64).into(),
            ratio.source.into(),
        ]);
    }
    table
}

pub(super) fn afterwards(measured: &Measured) -> Table {
    let mut columns = case_columns();
    columns.extend([
        Column::new("huge_before_bytes", "huge before", Unit::Bytes),
        Column::new("huge_written_bytes", "after the writes", Unit::Bytes),
        Column::new("huge_alone_bytes", "child ended", Unit::Bytes),
        Column::new("huge_joined_bytes", "joined", Unit::Bytes),
        Column::new("load_before_ns", "load before", Unit::Nanoseconds),
        Column::new("load_alone_ns", "child ended", Unit::Nanoseconds),
        Column::new("load_joined_ns", "joined", Unit::Nanoseconds),
        Column::new("join_s", "joining", Unit::Seconds),
    ]);
    let mut table = Table::new(
        "memory on huge pages, and the CPU time of a random load (joining: MADV_COLLAPSE of all memory)",
        columns,
    );
    for (case, runs) in &measured.cases {
        let mut row = case_cells(case);
        row.extend((0..3).map(|i| Cell::from(middle(runs, |run| Some(run.huge[i] as f64)))));
        row.push(middle(runs, |run| Some(run.joined?.huge as f64)).into());
        row.extend((0..2).map(|i| Cell::from(middle(runs, |run| Some(run.load_ns[i])))));
        row.push(middle(runs, |run| Some(run.joined?.load_ns)).into());
        row.push(middle(runs, |run| Some(run.joined?.took_ns * NS)).into());
        table.rows.push(row);
    }
    table
}

pub(super) fn of_side(served: &[Save], side: Side) -> Vec<&Save> {
    served.iter().filter(|s| s.side == side).collect()
}

/// Returns the latencies of all saves of a side, during BGSAVE and before.
pub(super) fn client(served: &[&Save]) -> [Latencies; 2] {
    let all = |of: fn(&Save) -> &Vec<u32>| {
        Latencies::new(served.iter().flat_map(|s| of(s).iter().copied()).collect())
    };
    [all(|s| &s.saving), all(|s| &s.calm)]
}

/// Estimates the percentile of a save, in nanoseconds. One slow command delays those behind it, so commands of
/// one save are not independent, and saves are what an interval rests on. Saves in which
/// no command can lie beyond the percentile are left out.
pub(super) fn over_saves(saves: &[&Save], share: f64) -> Option<Estimate> {
    let enough = |save: &&&Save| save.saving.len() as f64 * (1.0 - share) >= 1.0 - 1e-9;
    let times = saves.iter().filter(enough).map(|save| Latencies::new(save.saving.clone()).percentile(share));
    location(&times.collect::<Option<Vec<f64>>>()?).ok()
}

/// The largest ratio of the ends of an interval that carries a statement.
pub(super) const NARROW: f64 = 3.0;

/// Returns whether the interval carries a statement about the value.
pub(super) fn is_narrow(estimate: &Estimate) -> bool {
    estimate.interval.is_some_and(|i| i.low > 0.0 && i.high <= NARROW * i.low)
}

pub(super) fn served(served: &[Save]) -> Option<Table> {
    let mut columns = vec![
        Column::new("side", "redis", Unit::Text),
        Column::new("saves", "saves", Unit::Count),
        Column::new("client_commands", "commands", Unit::Count),
    ];
    columns
        .extend(SHARES.map(|(key, title, _)| Column::new(&format!("client_{key}_s"), title, Unit::Seconds)));
    columns.extend([
        Column::new("client_interval", "p99.9 by save, 95 %", Unit::Text),
        Column::new("calm_p999_s", "p99.9 before", Unit::Seconds),
        Column::new("bgsave_fork_s", "fork", Unit::Seconds),
        Column::new("bgsave_s", "BGSAVE", Unit::Seconds),
        Column::new("bgsave_copied_bytes", "copied", Unit::Bytes),
        Column::new("resident_bytes", "resident", Unit::Bytes),
        Column::new("huge_before_save_bytes", "huge before", Unit::Bytes),
        Column::new("huge_after_save_bytes", "after", Unit::Bytes),
    ]);
    let mut table = Table::new("redis: latency of the client's commands during BGSAVE", columns);
    for side in Side::ALL {
        let all = of_side(served, side);
        if all.is_empty() {
            continue;
        }
        let median_of = |value: &dyn Fn(&Save) -> f64| {
            Cell::from(median(&all.iter().map(|s| value(s)).collect::<Vec<f64>>()).ok())
        };
        let [saving, calm] = client(&all);
        let mut row: Vec<Cell> =
            vec![side.name().into(), (all.len() as u64).into(), (saving.count() as u64).into()];
        row.extend(latency_cells(&saving));
        row.push(interval_cell(over_saves(&all, 0.999).and_then(|e| e.interval), Unit::Seconds, NS));
        row.push(calm.carried(0.999).map(|ns| ns * NS).into());
        row.push(median_of(&|s| s.fork_us as f64 * 1e-6));
        row.push(median_of(&|s| s.seconds));
        row.push(median_of(&|s| s.copied as f64));
        row.push(median_of(&|s| s.resident as f64));
        row.push(median_of(&|s| s.huge[0] as f64));
        row.push(median_of(&|s| s.huge[1] as f64));
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then_some(table)
}

pub(super) fn rested(rests: &[Rest]) -> Option<Table> {
    let columns = vec![
        Column::new("rest_side", "redis", Unit::Text),
        Column::new("rest_first_bytes", "huge before the first save", Unit::Bytes),
        Column::new("rest_after_bytes", "after the last", Unit::Bytes),
        Column::new("rest_later_bytes", "later", Unit::Bytes),
        Column::new("rest_s", "after", Unit::Seconds),
    ];
    let mut table =
        Table::new("redis: huge pages of each server, and whether they are joined again", columns);
    for rest in rests {
        let [first, after, later] = rest.huge.map(Cell::from);
        table.rows.push(vec![rest.side.name().into(), first, after, later, rest.seconds.into()]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns the curve of a histogram: the share of each bin in percent. The axis is logarithmic, since the few
/// slow writes matter most, so an empty bin is drawn with half of the share of a single write.
pub(super) fn histogram(name: String, hue: Hue, times: &Latencies) -> Series {
    let bins = times.histogram();
    let none = 50.0 / times.count().max(1) as f64;
    let share = |count: u64| if count == 0 { none } else { 2.0 * none * count as f64 };
    let point = |x: f64, y: f64| Point { x: x * NS, y, range: None };
    // The curve begins and ends with an empty bin.
    let start = bins.first().map(|bin| point(bin.low * bin.low / bin.high, none));
    let end = bins.last().map(|bin| point(bin.high, none));
    let middle = bins.iter().map(|bin| point(bin.low, share(bin.count)));
    Series { name, hue, shape: Shape::Steps, points: start.into_iter().chain(middle).chain(end).collect() }
}

pub(super) fn latency_plot(title: String, series: Vec<Series>) -> Option<Plot> {
    let series: Vec<Series> = series.into_iter().filter(|s| !s.points.is_empty()).collect();
    let (x, y) = (Scale::logarithmic("latency", Unit::Seconds), Scale::logarithmic("share", Unit::Percent));
    (!series.is_empty()).then_some(Plot { title, x, y, series, marks: vec![] })
}

pub(super) fn served_plot(served: &[Save]) -> Option<Plot> {
    let series = Side::ALL.into_iter().map(|side| {
        let [saving, _] = client(&of_side(served, side));
        histogram(side.name().into(), redis::hue(side), &saving)
    });
    latency_plot("redis during BGSAVE: the client's commands by latency".into(), series.collect())
}

pub(super) fn kinds(measured: &Measured) -> Vec<Pages> {
    let mut kinds: Vec<Pages> = Vec::new();
    for (case, _) in &measured.cases {
        if !kinds.contains(&case.pages) {
            kinds.push(case.pages);
        }
    }
    kinds
}

/// Returns the largest size, in huge pages, that a pattern was measured with on every kind of pages.
pub(super) fn largest(measured: &Measured, pattern: Pattern) -> Option<u64> {
    let has =
        |huge_pages, pages| measured.cases.iter().any(|(c, _)| *c == Case { huge_pages, pages, pattern });
    let kinds = kinds(measured);
    let sizes = measured.cases.iter().map(|(case, _)| case.huge_pages);
    sizes.filter(|&size| kinds.iter().all(|&pages| has(size, pages))).max()
}

pub(super) fn runs(measured: &Measured, case: Case) -> Option<&[Forked]> {
    measured.cases.iter().find(|(c, _)| *c == case).map(|(_, runs)| &runs[..])
}

pub(super) fn plots(measured: &Measured) -> Vec<Plot> {
    let curve = |pattern: Option<Pattern>, y: &dyn Fn(&Forked) -> f64| -> Vec<Series> {
        let one = |pages: Pages| {
            let cases = measured.cases.iter().filter(|(case, _)| {
                // The time of fork(2) does not depend on the later writes.
                case.pages == pages && case.pattern == pattern.unwrap_or(Pattern::OnePerHuge)
            });
            let points = cases.filter_map(|(case, runs)| {
                Some(Point { x: case.huge_pages as f64, y: middle(runs, |run| Some(y(run)))?, range: None })
            });
            Series { name: pages.name(), hue: pages.hue(), shape: Shape::Line, points: points.collect() }
        };
        kinds(measured).into_iter().map(one).filter(|series| !series.points.is_empty()).collect()
    };
    let x = || Scale::logarithmic("huge pages of memory", Unit::Count);
    let seconds = |name: &str| Scale::logarithmic(name, Unit::Seconds);
    let mut plots = Vec::new();
    for pattern in Pattern::ALL {
        let title = format!("all writes together: {}", name(pattern));
        plots.push(Plot {
            title,
            x: x(),
            y: seconds("time"),
            series: curve(Some(pattern), &total),
            marks: vec![],
        });
    }
    for pattern in Pattern::ALL {
        let Some(huge_pages) = largest(measured, pattern) else { continue };
        let one = |pages: Pages| {
            let runs = runs(measured, Case { huge_pages, pages, pattern })?;
            Some(histogram(pages.name(), pages.hue(), &latencies(runs)))
        };
        let title = format!("each write by latency: {}, {huge_pages} huge pages", name(pattern));
        plots.extend(latency_plot(title, kinds(measured).into_iter().filter_map(one).collect()));
    }
    let series = curve(None, &|run| run.fork_ns * NS);
    plots.push(Plot { title: "fork(2) itself".into(), x: x(), y: seconds("time"), series, marks: vec![] });
    plots.retain(|plot| plot.series.iter().any(|s| !s.points.is_empty()));
    plots
}
