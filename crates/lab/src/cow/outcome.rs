// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::ratios::{Ratio, SOURCE_WHOLE, ratios};
use super::redis::{self, Rest, Save, Side};
use super::whole::Whole;
use super::write::Forked;
use super::{Case, Measured, Pattern};
use crate::latency::Latencies;
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Hue, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_core::addr::human_bytes;
use hugelift_measure::stats::{Estimate, Interval, location, median};
use hugelift_os::machine::tree::Tree;
use hugelift_os::machine::{base_page, thp_page};

const NS: f64 = 1e-9;

/// The percentiles of a latency table: key, title and share.
const SHARES: [(&str, &str, f64); 4] =
    [("p50", "p50", 0.5), ("p99", "p99", 0.99), ("p999", "p99.9", 0.999), ("max", "max", 1.0)];

fn name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::OnePerHuge => "one write per huge page",
        Pattern::Random => "an eighth, at random",
        Pattern::Every => "every page",
    }
}

/// Returns the median over the runs of a case.
fn middle(runs: &[Forked], of: impl Fn(&Forked) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(of).collect::<Vec<f64>>()).ok()
}

fn latencies(runs: &[Forked]) -> Latencies {
    Latencies::new(runs.iter().flat_map(|run| run.writes.iter().copied()).collect())
}

/// Returns the time of all writes of a run in seconds.
fn total(run: &Forked) -> f64 {
    run.writes.iter().map(|ns| f64::from(*ns)).sum::<f64>() * NS
}

/// Returns tables, plots, claims and advice. `disturbed` says whether other programs disturbed the
/// measurements: then only what does not depend on times is sure.
pub fn outcome(measured: &Measured, disturbed: bool) -> Outcome {
    let ratios = ratios(measured);
    let mut outcome = Outcome { notes: measured.notes.clone(), ..Outcome::default() };
    outcome.tables = vec![writes(measured), compared(&ratios)];
    outcome.tables.extend(whole(measured));
    outcome.tables.push(afterwards(measured));
    outcome.tables.extend(served(&measured.served.saves));
    outcome.tables.extend(rested(&measured.served.rests));
    outcome.plots = plots(measured);
    outcome.plots.extend(served_plot(&measured.served.saves));
    for (case, runs) in &measured.cases {
        let name = format!("fork {} {} {}", case.huge_pages, case.pages.name(), name(case.pattern));
        let values = runs.iter().map(|run| run.fork_ns * NS).collect();
        outcome.samples.push(Sample { name, unit: Unit::Seconds, values });
    }
    for (pages, runs) in &measured.whole {
        let name = format!("whole process {} {}", measured.whole_pages, pages.name());
        let values = runs.iter().map(|run| run.wall).collect();
        outcome.samples.push(Sample { name, unit: Unit::Seconds, values });
    }
    outcome.notes.extend(source(measured, &ratios));
    outcome.notes.extend(few(measured));
    outcome.notes.extend(kernel_behaviour(measured));
    outcome.notes.extend(joined(measured));
    outcome.notes.extend(measured.served.rests.iter().map(joined_again));
    outcome.notes.extend(khugepaged(measured));
    outcome.claims = claims(measured, &ratios, disturbed);
    outcome.advice = advice(measured, &ratios, disturbed);
    outcome
}

fn case_columns() -> Vec<Column> {
    vec![
        Column::new("huge_pages", "huge pages", Unit::Count),
        Column::new("pattern", "written", Unit::Text),
        Column::new("pages", "pages", Unit::Text),
    ]
}

fn case_cells(case: &Case) -> Vec<Cell> {
    vec![case.huge_pages.into(), name(case.pattern).into(), case.pages.name().into()]
}

/// Returns the percentiles that the number of times carries, and the longest time.
fn latency_cells(times: &Latencies) -> impl Iterator<Item = Cell> {
    let at = |share: f64| if share < 1.0 { times.carried(share) } else { times.percentile(share) };
    SHARES.map(|(_, _, share)| Cell::from(at(share).map(|ns| ns * NS))).into_iter()
}

/// Shows an interval of a figure in `unit`.
fn interval_cell(interval: Option<Interval>, unit: Unit, scale: f64) -> Cell {
    interval.map(|i| format!("{} to {}", unit.show(i.low * scale), unit.show(i.high * scale))).into()
}

fn writes(measured: &Measured) -> Table {
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
fn compared(ratios: &[Ratio]) -> Table {
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

fn whole(measured: &Measured) -> Option<Table> {
    let columns = vec![
        Column::new("whole_pages", "pages", Unit::Text),
        Column::new("whole_runs", "runs", Unit::Count),
        Column::new("whole_s", "whole process", Unit::Seconds),
        Column::new("whole_interval", "95 %", Unit::Text),
        Column::new("whole_cpu_s", "CPU", Unit::Seconds),
        Column::new("whole_fill_s", "fill", Unit::Seconds),
        Column::new("whole_fork_s", "fork", Unit::Seconds),
        Column::new("whole_write_s", "write", Unit::Seconds),
        Column::new("whole_rest_s", "rest", Unit::Seconds),
    ];
    let size = human_bytes(measured.whole_pages * thp_page().map_or(0, |page| page.bytes()));
    let caption = format!(
        "whole processes: fill {size}, fork, write every byte while the child lives, end (medians; the rest is start \
         and end)"
    );
    let mut table = Table::new(caption, columns);
    for (pages, runs) in &measured.whole {
        let all = |of: fn(&Whole) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
        let middle = |of: fn(&Whole) -> f64| Cell::from(median(&all(of)).ok());
        let interval = location(&all(|run| run.wall)).ok().and_then(|e| e.interval);
        table.rows.push(vec![
            pages.name().into(),
            (runs.len() as u64).into(),
            middle(|run| run.wall),
            interval_cell(interval, Unit::Seconds, 1.0),
            middle(|run| run.cpu),
            middle(|run| run.phases[0]),
            middle(|run| run.phases[1]),
            middle(|run| run.phases[2]),
            middle(Whole::rest),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn afterwards(measured: &Measured) -> Table {
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

fn of_side(served: &[Save], side: Side) -> Vec<&Save> {
    served.iter().filter(|s| s.side == side).collect()
}

/// Returns the latencies of all saves of a side, during BGSAVE and before.
fn client(served: &[&Save]) -> [Latencies; 2] {
    let all = |of: fn(&Save) -> &Vec<u32>| {
        Latencies::new(served.iter().flat_map(|s| of(s).iter().copied()).collect())
    };
    [all(|s| &s.saving), all(|s| &s.calm)]
}

/// Estimates the percentile of a save, in nanoseconds. One slow command delays those behind it, so commands of
/// one save are not independent, and saves are what an interval rests on. Saves in which
/// no command can lie beyond the percentile are left out.
fn over_saves(saves: &[&Save], share: f64) -> Option<Estimate> {
    let enough = |save: &&&Save| save.saving.len() as f64 * (1.0 - share) >= 1.0 - 1e-9;
    let times = saves.iter().filter(enough).map(|save| Latencies::new(save.saving.clone()).percentile(share));
    location(&times.collect::<Option<Vec<f64>>>()?).ok()
}

/// The largest ratio of the ends of an interval that carries a statement.
const NARROW: f64 = 3.0;

/// Returns whether the interval carries a statement about the value.
fn is_narrow(estimate: &Estimate) -> bool {
    estimate.interval.is_some_and(|i| i.low > 0.0 && i.high <= NARROW * i.low)
}

fn served(served: &[Save]) -> Option<Table> {
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

fn rested(rests: &[Rest]) -> Option<Table> {
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
fn histogram(name: String, hue: Hue, times: &Latencies) -> Series {
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

fn latency_plot(title: String, series: Vec<Series>) -> Option<Plot> {
    let series: Vec<Series> = series.into_iter().filter(|s| !s.points.is_empty()).collect();
    let (x, y) = (Scale::logarithmic("latency", Unit::Seconds), Scale::logarithmic("share", Unit::Percent));
    (!series.is_empty()).then_some(Plot { title, x, y, series, marks: vec![] })
}

fn served_plot(served: &[Save]) -> Option<Plot> {
    let series = Side::ALL.into_iter().map(|side| {
        let [saving, _] = client(&of_side(served, side));
        histogram(side.name().into(), redis::hue(side), &saving)
    });
    latency_plot("redis during BGSAVE: the client's commands by latency".into(), series.collect())
}

fn kinds(measured: &Measured) -> Vec<Pages> {
    let mut kinds: Vec<Pages> = Vec::new();
    for (case, _) in &measured.cases {
        if !kinds.contains(&case.pages) {
            kinds.push(case.pages);
        }
    }
    kinds
}

/// Returns the largest size, in huge pages, that a pattern was measured with on every kind of pages.
fn largest(measured: &Measured, pattern: Pattern) -> Option<u64> {
    let has =
        |huge_pages, pages| measured.cases.iter().any(|(c, _)| *c == Case { huge_pages, pages, pattern });
    let kinds = kinds(measured);
    let sizes = measured.cases.iter().map(|(case, _)| case.huge_pages);
    sizes.filter(|&size| kinds.iter().all(|&pages| has(size, pages))).max()
}

fn runs(measured: &Measured, case: Case) -> Option<&[Forked]> {
    measured.cases.iter().find(|(c, _)| *c == case).map(|(_, runs)| &runs[..])
}

fn plots(measured: &Measured) -> Vec<Plot> {
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

/// Returns how many bytes one write to a transparent huge page has copied.
fn thp_copies(measured: &Measured) -> Option<u64> {
    let cases = measured.cases.iter();
    let one = cases.filter(|(case, _)| case.pages == Pages::Thp && case.pattern == Pattern::OnePerHuge);
    let (case, runs) = one.max_by_key(|(case, _)| case.huge_pages)?;
    let copied = middle(runs, |run| Some(run.copied as f64))? / case.huge_pages as f64;
    Some(copied.round() as u64)
}

fn kernel_behaviour(measured: &Measured) -> Option<String> {
    let copied = thp_copies(measured)?;
    let huge = thp_page()?.bytes();
    let shown = human_bytes(copied);
    Some(if copied < huge / 2 {
        format!(
            "this kernel: the first write to a transparent huge page that a child has too splits it and copies {shown} \
             (Linux 5.8 and newer copy {})",
            base_page()
        )
    } else {
        format!(
            "this kernel: the first write to a transparent huge page that a child has too copies {shown}, the whole \
             page (as Linux before 5.8)"
        )
    })
}

/// Says how long khugepaged takes to join the pages, by its settings.
fn khugepaged(measured: &Measured) -> Option<String> {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
    let number = |name: &str| Tree::default().read(format!("{FOLDER}/{name}"))?.trim().parse::<f64>().ok();
    let (pages, pause) = (number("pages_to_scan")?, number("scan_sleep_millisecs")?);
    let huge_pages =
        measured.cases.iter().filter(|(c, _)| c.pages == Pages::Thp).map(|(c, _)| c.huge_pages).max()?;
    let base_pages = huge_pages as f64 * (thp_page()?.bytes() / base_page().bytes()) as f64;
    let seconds = base_pages / pages.max(1.0) * pause / 1e3;
    Some(format!(
        "khugepaged, which joins small pages to huge ones, scans {pages:.0} of them every {:.0} s here ({FOLDER}): \
         it takes at least {seconds:.0} s for the {base_pages:.0} small pages of {huge_pages} huge pages",
        pause / 1e3
    ))
}

/// Returns the ratio with this subject.
fn about<'a>(ratios: &'a [Ratio], subject: &str) -> Option<&'a Ratio> {
    ratios.iter().find(|ratio| ratio.subject == subject)
}

/// Compares what was found for programs that write everything with what the source found.
fn source(measured: &Measured, ratios: &[Ratio]) -> Option<String> {
    let whole = about(ratios, "cow.dense.whole-process")?;
    let alone = about(ratios, "cow.dense.writes-alone").map_or("?".into(), Ratio::shown);
    let cpu = about(ratios, "cow.dense.whole-process.cpu").map_or("?".into(), Ratio::shown);
    let runs =
        |name: &str| measured.whole.iter().find(|(pages, _)| pages.name() == name).map(|(_, runs)| runs);
    let wall = |name: &str| median(&runs(name)?.iter().map(|run| run.wall).collect::<Vec<f64>>()).ok();
    let (hugetlb, small) = (wall(&whole.names.0)?, wall(&whole.names.1)?);
    // (hugetlb + more) / (small + more) = source
    let more = (SOURCE_WHOLE * small - hugetlb) / (1.0 - SOURCE_WHOLE);
    let why = if more > 0.0 {
        format!(
            ". That would be the ratio of a process that also works for {} on something else: what the pages bring or \
             cost is the same, and a smaller part of the time",
            Unit::Seconds.show(more)
        )
    } else {
        String::new()
    };
    Some(format!(
        "hugetlb to small pages where every page is written: the writes alone take {alone} of the time, whole \
         processes {} (CPU time {cpu}); the source found {SOURCE_WHOLE} for whole processes on its machine and \
         kernel{why}",
        whole.shown()
    ))
}

/// Says why some percentiles are missing.
fn few(measured: &Measured) -> Option<String> {
    let lacks = |(_, runs): &(Case, Vec<Forked>)| latencies(runs).carried(0.999).is_none();
    measured.cases.iter().any(lacks).then(|| {
        "p99 is shown from 368 writes on, p99.9 from 3688 on: fewer give no interval of 95 %".to_string()
    })
}

/// Returns for how many forks the memory was as huge as before after `MADV_COLLAPSE`, of how many.
fn collapsed(measured: &Measured) -> (usize, usize) {
    let thp = measured.cases.iter().filter(|(case, _)| case.pages == Pages::Thp).flat_map(|(_, runs)| runs);
    let tried = thp.filter_map(|run| Some((run.huge[0], run.joined?.huge))).filter(|(before, _)| *before > 0);
    tried.fold((0, 0), |(joined, all), (before, after)| (joined + usize::from(after >= before), all + 1))
}

fn joined(measured: &Measured) -> Option<String> {
    let (joined, all) = collapsed(measured);
    (all > 0).then(|| {
        format!(
            "MADV_COLLAPSE after the end of the child: in {joined} of {all} forks all pages that were huge before \
             were huge again"
        )
    })
}

/// Says whether the huge pages of a server were joined again.
fn joined_again(rest: &Rest) -> String {
    let [first, after, later] = rest.huge.map(human_bytes);
    let name = rest.side.name();
    let within = Unit::Seconds.show(rest.seconds);
    let what = match (rest.were_split(), rest.is_joined()) {
        (false, _) => "so there was nothing to join".to_string(),
        (true, true) => format!("joined again within {within} ({later})"),
        (true, false) => format!("not joined within {within} ({later})"),
    };
    format!("redis, {name}: {first} on huge pages before its first save, {after} after its last one, {what}")
}

/// Returns what can be compared with other reports.
fn claims(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> Vec<Claim> {
    let of_ratio = |ratio: &Ratio| {
        let (word, carried) = ratio.word();
        Claim::word(ratio.subject, word, carried && !disturbed)
    };
    let mut claims: Vec<Claim> = ratios.iter().map(of_ratio).collect();
    if let (Some(copied), Some(page)) = (thp_copies(measured), thp_page()) {
        let word = if copied < page.bytes() / 2 { "splits-the-page" } else { "copies-the-page" };
        // The kernel counts this. It does not depend on the time that anything takes.
        claims.push(Claim::word("cow.first-write.thp", word, true));
    }
    let (joined, all) = collapsed(measured);
    if all > 0 {
        let word = if joined == all { "joins-all" } else { "joins-some" };
        // It depends on how much free memory is in large blocks, so only one of the answers is certain.
        claims.push(Claim::word("cow.collapse", word, joined == all && !disturbed));
    }
    let rests = measured.served.rests.iter().filter(|rest| rest.side == Side::Lifted && rest.were_split());
    let rests: Vec<bool> = rests.map(Rest::is_joined).collect();
    if !rests.is_empty() {
        let joined = rests.iter().all(|joined| *joined);
        let word = if joined { "joined" } else { "not-joined-in-time" };
        claims.push(Claim::word("cow.redis.joined.hugelift", word, joined && !disturbed));
    }
    claims
}

/// Marks a sentence whose figures are not certain.
fn marked(sentence: String, carried: bool, disturbed: bool) -> String {
    match (carried, disturbed) {
        (true, false) => format!("{sentence}."),
        (_, true) => format!("not sure: {sentence}; run again on an idle machine."),
        (false, false) => format!("not sure: {sentence}; more rounds may tell."),
    }
}

fn advice(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> Vec<String> {
    let server = if measured.served.saves.is_empty() {
        forks_of_servers(measured, ratios, disturbed)
    } else {
        redis_advice(&measured.served.saves, ratios, disturbed)
    };
    vec![writes_advice(measured, ratios, disturbed), server]
}

fn writes_advice(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> String {
    let joins = "joins the huge pages that such writes have split once the child has ended (run --after-fork, as root)";
    let p50 = |name: &str, huge_pages: Option<u64>| {
        let mut cases = measured.cases.iter();
        let (_, runs) = cases.find(|(case, _)| {
            case.pages.name() == name
                && case.pattern == Pattern::OnePerHuge
                && huge_pages.is_none_or(|huge_pages| case.huge_pages == huge_pages)
        })?;
        latencies(runs).percentile(0.5).map(|ns| Unit::Seconds.show(ns * NS))
    };
    let whole = about(ratios, "cow.dense.whole-process");
    if let Some(ratio) = about(ratios, "cow.first-write.hugetlb-to-thp")
        && let (Some(hugetlb), Some(thp)) =
            (p50(&ratio.names.0, ratio.huge_pages), p50(&ratio.names.1, ratio.huge_pages))
    {
        let dense = whole.map_or(String::new(), |whole| {
            format!(
                "; a process that writes all of its memory and ends takes {} of the time on hugetlb that it takes on \
                 small pages (the source: {SOURCE_WHOLE})",
                whole.shown()
            )
        });
        let sentence = format!(
            "After a fork a write to a hugetlb page takes {hugetlb} here, {} times the {thp} of a write to a transparent \
             huge page: hugelift puts writable parts on THP unless --data-backing asks for hugetlb, and {joins}{dense}",
            ratio.shown()
        );
        return marked(sentence, ratio.word().1 && whole.is_none_or(|whole| whole.word().1), disturbed);
    }
    match p50(&Pages::Thp.name(), None) {
        Some(thp) => marked(
            format!(
                "After a fork a write to a transparent huge page takes {thp} here (hugetlb could not be measured), and \
                 hugelift {joins}"
            ),
            true,
            disturbed,
        ),
        None => "There are no figures for transparent huge pages here.".into(),
    }
}

fn redis_advice(saves: &[Save], ratios: &[Ratio], disturbed: bool) -> String {
    let of = |share: f64| {
        let one = |side: Side| over_saves(&of_side(saves, side), share);
        Some([one(Side::Off)?, one(Side::On)?, one(Side::Lifted)?])
    };
    let (p999, p99) = (of(0.999), of(0.99));
    // p99.9 is stated only if its intervals carry it.
    let (estimates, words, subjects) = match (p999.filter(|all| all.iter().all(is_narrow)), p99) {
        (Some(all), _) => (all, "thousand", ["cow.redis.p999.thp-on", "cow.redis.p999.hugelift"]),
        (None, Some(all)) => (all, "hundred", ["cow.redis.p99.thp-on", "cow.redis.p99.hugelift"]),
        (None, None) => return "redis: too few commands for p99 on every side.".into(),
    };
    let shown = estimates.map(|estimate| {
        let show = |ns: f64| Unit::Seconds.show(ns * NS);
        match estimate.interval {
            Some(i) => format!("{} [{}, {}]", show(estimate.point), show(i.low), show(i.high)),
            None => show(estimate.point),
        }
    });
    let to_off = |subject: &str, p99: &str| {
        let ratio = about(ratios, subject).or(about(ratios, p99));
        ratio.map_or(("not compared".into(), false), |ratio| match ratio.word() {
            ("no-difference" | "unknown", _) => (format!("no difference seen, {}", ratio.shown()), false),
            (word, carried) => (format!("{word}, {} of THP off", ratio.shown()), carried),
        })
    };
    let [off, on, lifted] = shown;
    let ((to_on, on_carried), (to_lifted, lifted_carried)) =
        (to_off(subjects[0], "cow.redis.p99.thp-on"), to_off(subjects[1], "cow.redis.p99.hugelift"));
    let sentence = format!(
        "While redis saves its data, one command in a {words} takes longer than {off} with THP off, {on} with THP on \
         ({to_on}) and {lifted} under hugelift ({to_lifted}): this is what --malloc thp costs or brings a server of \
         this kind"
    );
    let carried = on_carried && lifted_carried && estimates.iter().all(is_narrow);
    marked(sentence, carried, disturbed)
}

/// Says what fork(2) itself costs, where redis was not measured.
fn forks_of_servers(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> String {
    let huge_pages = largest(measured, Pattern::Every);
    let fork = |pages: Pages| {
        let case = Case { huge_pages: huge_pages?, pages, pattern: Pattern::Every };
        middle(runs(measured, case)?, |run| Some(run.fork_ns * NS))
    };
    match (fork(Pages::Small), fork(Pages::Thp)) {
        (Some(small), Some(thp)) => marked(
            format!(
                "fork(2) of {} takes {} on small pages and {} on huge ones: a server that saves its data stands still \
                 for this time, and with huge pages the later writes are slower instead",
                human_bytes(huge_pages.unwrap_or(0) * thp_page().map_or(0, |page| page.bytes())),
                Unit::Seconds.show(small),
                Unit::Seconds.show(thp)
            ),
            about(ratios, "cow.fork.thp-to-small").is_some_and(|ratio| ratio.word().1),
            disturbed,
        ),
        _ => "The effect on a server was not measured.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cow::redis::Served;
    use crate::results::claim::Answer;
    use hugelift_core::addr::PageSize;

    const HUGETLB: Pages = Pages::Hugetlb(PageSize::MB2);

    /// A fork of `huge_pages` after which each write took `write` nanoseconds.
    fn forked(pages: Pages, huge_pages: u64, pattern: Pattern, write: u32) -> (Case, Vec<Forked>) {
        let run = Forked {
            fork_ns: 1e6,
            writes: vec![write; huge_pages as usize],
            faults: huge_pages,
            copied: huge_pages * 4096,
            huge: [huge_pages << 21, 0, 0],
            load_ns: [100.0, 200.0],
            joined: None,
        };
        (Case { huge_pages, pages, pattern }, vec![run; 6])
    }

    fn claim<'a>(outcome: &'a Outcome, subject: &str) -> Option<(&'a Answer, bool)> {
        outcome.claims.iter().find(|c| c.subject == subject).map(|c| (&c.answer, c.sure))
    }

    fn word(word: &str) -> Answer {
        Answer::Word(word.into())
    }

    #[test]
    fn the_ratio_is_that_of_the_largest_size_measured_on_all_pages() {
        let one = Pattern::OnePerHuge;
        let cases = vec![
            forked(Pages::Thp, 16, one, 10_000),
            forked(HUGETLB, 16, one, 200_000),
            forked(Pages::Thp, 64, one, 40_000),
        ];
        let measured = Measured { cases, ..Measured::default() };
        assert_eq!(largest(&measured, one), Some(16));
        let said = "takes 200 µs here, 20 [20, 20] times the 10.0 µs";
        let busy = super::outcome(&measured, true);
        assert!(
            busy.advice[0].starts_with("not sure: ") && busy.advice[0].contains(said),
            "{:?}",
            busy.advice
        );
        assert!(busy.advice[0].ends_with("; run again on an idle machine."), "{:?}", busy.advice);
        let subject = "cow.first-write.hugetlb-to-thp";
        assert_eq!(claim(&busy, subject), Some((&word("slower"), false)));
        let outcome = outcome(&measured, false);
        assert!(outcome.advice[0].starts_with("After a fork"), "{:?}", outcome.advice);
        assert!(outcome.advice[0].contains(said), "{:?}", outcome.advice);
        assert_eq!(claim(&outcome, subject), Some((&word("slower"), true)));
        assert_eq!(claim(&outcome, "cow.first-write.hugetlb-to-small"), None);
        assert_eq!(claim(&outcome, "cow.first-write.thp"), Some((&word("splits-the-page"), true)));
        assert!(outcome.advice[0].contains("--after-fork"), "{:?}", outcome.advice);
        assert_eq!(outcome.advice.len(), 2);
        assert!(outcome.notes.iter().any(|note| note.contains("copies 4 kB")), "{:?}", outcome.notes);
    }

    #[test]
    fn missing_measurements_are_named() {
        let none = outcome(&Measured::default(), false);
        assert!(none.advice[0].contains("no figures") && none.advice[1].contains("not measured"), "{none:?}");
        assert!(none.plots.is_empty() && none.samples.is_empty(), "{none:?}");
        let thp =
            Measured { cases: vec![forked(Pages::Thp, 4, Pattern::OnePerHuge, 9000)], ..Measured::default() };
        assert!(outcome(&thp, false).advice[0].contains("hugetlb could not be measured"));
    }

    #[test]
    fn a_histogram_adds_up_to_100_percent() {
        let points = histogram("x".into(), Hue::Thp, &Latencies::new(vec![10, 12, 1000, 1000])).points;
        let none = 12.5;
        assert_eq!(points.iter().map(|p| p.y).filter(|y| *y > none).sum::<f64>(), 100.0);
        assert_eq!([points.first(), points.last()].map(|p| p.expect("a point").y), [none, none]);
        assert!(points.windows(2).all(|pair| pair[0].x < pair[1].x), "{points:?}");
    }

    #[test]
    fn whole_processes_are_shown_beside_the_source() {
        let one = |wall: f64| Whole { wall, cpu: wall / 2.0, phases: [wall / 2.0, 0.01, wall / 4.0] };
        let whole = vec![(Pages::Small, vec![one(0.2); 6]), (HUGETLB, vec![one(0.1); 6])];
        let every = Pattern::Every;
        let cases = vec![forked(Pages::Small, 16, every, 40_000), forked(HUGETLB, 16, every, 4_000)];
        let measured = Measured { cases, whole, whole_pages: 32, ..Measured::default() };
        let outcome = outcome(&measured, false);
        let note = outcome.notes.iter().find(|note| note.contains("source")).expect("a note");
        assert!(note.contains("the writes alone take 0.10 [0.10, 0.10]"), "{note}");
        assert!(note.contains("whole processes 0.50 [0.50, 0.50]") && note.contains("found 0.93"), "{note}");
        // (0.1 + 1.23) / (0.2 + 1.23) = 0.93
        assert!(note.contains("works for 1.23 s"), "{note}");
        assert_eq!(claim(&outcome, "cow.dense.whole-process"), Some((&word("faster"), true)));
        assert_eq!(claim(&outcome, "cow.dense.writes-alone"), Some((&word("faster"), true)));
        let has = |key: &str| outcome.tables.iter().find(|t| t.columns.iter().any(|c| c.key == key));
        assert_eq!(has("whole_cpu_s").map(|table| table.rows.len()), Some(2));
        let rows = &has("source_ratio").expect("a table").rows;
        assert!(rows.iter().any(|row| row.last() == Some(&Cell::Number(0.93))), "{rows:?}");
    }

    /// Saves of each side, `slow` of whose commands take the given time.
    fn saves(commands: usize, slow: usize) -> Vec<Save> {
        let one = |side, time| Save {
            side,
            calm: vec![20_000; 100],
            saving: [vec![30_000; commands - slow], vec![time; slow]].concat(),
            seconds: 1.5,
            fork_us: 700,
            copied: 1 << 20,
            resident: 1 << 28,
            huge: [1 << 27, 0],
        };
        let sides = [(Side::Off, 4_000_000), (Side::On, 2_000_000), (Side::Lifted, 1_000_000)];
        std::iter::repeat_n(sides, 6).flatten().map(|(side, time)| one(side, time)).collect()
    }

    #[test]
    fn redis_is_shown_side_by_side() {
        let rest = |side, huge, seconds| Rest { side, huge, seconds };
        let rests = vec![
            rest(Side::On, [64 << 20, 2 << 20, 2 << 20], 4.1),
            rest(Side::Lifted, [64 << 20, 2 << 20, 64 << 20], 2.5),
        ];
        let served = Served { saves: saves(1000, 20), rests };
        let outcome = outcome(&Measured { served, ..Measured::default() }, false);
        let has = |key: &str| {
            let at = |t: &Table| t.columns.iter().position(|c| c.key == key);
            outcome.tables.iter().find_map(|t| Some((t, at(t)?))).expect("a table with this column")
        };
        let (table, at) = has("client_p999_s");
        assert_eq!((table.rows.len(), &table.rows[1][at]), (3, &Cell::Number(2e-3)));
        let said = &outcome.advice[1];
        assert!(said.starts_with("While redis saves its data, one command in a thousand takes"), "{said}");
        assert!(said.contains("4.00 ms [4.00 ms, 4.00 ms] with THP off, 2.00 ms [2.00 ms,"), "{said}");
        assert!(said.contains("with THP on (faster, 0.50 [0.50, 0.50] of THP off)"), "{said}");
        assert_eq!(claim(&outcome, "cow.redis.p99.thp-on"), Some((&word("faster"), true)));
        // A thousand commands of one save have no p99.9.
        assert_eq!(claim(&outcome, "cow.redis.p999.thp-on"), None);
        assert_eq!(claim(&outcome, "cow.redis.joined.hugelift"), Some((&word("joined"), true)));
        assert_eq!(has("rest_s").0.rows.len(), 2);
        let says = |text: &str| outcome.notes.iter().any(|note| note.contains(text));
        assert!(says(
            "THP on: 64 MB on huge pages before its first save, 2 MB after its last one, not joined within 4.10 s"
        ));
        assert!(says("hugelift: 64 MB") && says("joined again within 2.50 s (64 MB)"), "{:?}", outcome.notes);
    }

    #[test]
    fn too_few_commands_give_no_p999() {
        let said = |saves: Vec<Save>| {
            let served = Served { saves, rests: vec![] };
            outcome(&Measured { served, ..Measured::default() }, false).advice[1].clone()
        };
        let of = |commands, slow| said(saves(commands, slow));
        // Saves that differ much carry no p99.9 either.
        let mut spread = saves(1000, 20);
        for save in &mut spread[9..] {
            save.saving.iter_mut().filter(|ns| **ns > 30_000).for_each(|ns| *ns *= 10);
        }
        let spread = said(spread);
        assert!(
            spread.starts_with("not sure: While redis saves its data, one command in a hundred"),
            "{spread}"
        );
        assert!(
            of(400, 10).contains("one command in a hundred takes longer than 4.00 ms"),
            "{}",
            of(400, 10)
        );
        assert!(of(50, 1).contains("too few commands"), "{}", of(50, 1));
    }
}
