// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::redis::{self, Served, Side};
use super::write::Forked;
use super::{Case, Measured, Pattern};
use crate::latency::Latencies;
use crate::memory::Pages;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Hue, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_core::addr::human_bytes;
use hugelift_measure::stats::median;
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

/// Returns tables, plots and advice.
pub fn outcome(measured: &Measured) -> Outcome {
    let mut outcome = Outcome { notes: measured.notes.clone(), ..Outcome::default() };
    outcome.tables = vec![writes(measured), afterwards(measured)];
    outcome.tables.extend(served(&measured.served));
    outcome.plots = plots(measured);
    outcome.plots.extend(served_plot(&measured.served));
    for (case, runs) in &measured.cases {
        let name = format!("fork {} {} {}", case.huge_pages, case.pages.name(), name(case.pattern));
        let values = runs.iter().map(|run| run.fork_ns * NS).collect();
        outcome.samples.push(Sample { name, unit: Unit::Seconds, values });
    }
    outcome.notes.extend(kernel_behaviour(measured));
    outcome.notes.extend(khugepaged(measured));
    outcome.advice = advice(measured);
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

fn latency_cells(times: &Latencies) -> impl Iterator<Item = Cell> {
    SHARES.map(|(_, _, share)| Cell::from(times.percentile(share).map(|ns| ns * NS))).into_iter()
}

fn writes(measured: &Measured) -> Table {
    let mut columns = case_columns();
    columns.push(Column::new("forks", "forks", Unit::Count));
    columns.push(Column::new("fork_s", "fork", Unit::Seconds));
    columns.push(Column::new("total_s", "all writes", Unit::Seconds));
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
        row.push(middle(runs, |run| Some(total(run))).into());
        row.extend(latency_cells(&latencies(runs)));
        row.push(middle(runs, |run| Some(run.faults as f64)).into());
        row.push(middle(runs, |run| Some(run.copied as f64)).into());
        table.rows.push(row);
    }
    table
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

fn of_side(served: &[Served], side: Side) -> Vec<&Served> {
    served.iter().filter(|s| s.side == side).collect()
}

/// Returns the latencies of all servers of a side, during BGSAVE and before.
fn client(served: &[&Served]) -> [Latencies; 2] {
    let all = |of: fn(&Served) -> &Vec<u32>| {
        Latencies::new(served.iter().flat_map(|s| of(s).iter().copied()).collect())
    };
    [all(|s| &s.saving), all(|s| &s.calm)]
}

fn served(served: &[Served]) -> Option<Table> {
    let mut columns = vec![
        Column::new("side", "redis", Unit::Text),
        Column::new("saves", "saves", Unit::Count),
        Column::new("client_commands", "commands", Unit::Count),
    ];
    columns
        .extend(SHARES.map(|(key, title, _)| Column::new(&format!("client_{key}_s"), title, Unit::Seconds)));
    columns.extend([
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
        let median_of = |value: &dyn Fn(&Served) -> f64| {
            Cell::from(median(&all.iter().map(|s| value(s)).collect::<Vec<f64>>()).ok())
        };
        let [saving, calm] = client(&all);
        let mut row: Vec<Cell> =
            vec![side.name().into(), (all.len() as u64).into(), (saving.count() as u64).into()];
        row.extend(latency_cells(&saving));
        row.push(calm.percentile(0.999).map(|ns| ns * NS).into());
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

fn served_plot(served: &[Served]) -> Option<Plot> {
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

/// Returns the p50 of single writes in nanoseconds, at the largest size.
fn first_write(measured: &Measured, pages: Pages) -> Option<f64> {
    let huge_pages = largest(measured, Pattern::OnePerHuge)?;
    let case = Case { huge_pages, pages, pattern: Pattern::OnePerHuge };
    latencies(runs(measured, case)?).percentile(0.5)
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

fn advice(measured: &Measured) -> Vec<String> {
    let p50 = |pages: Pages| first_write(measured, pages);
    let hugetlb = kinds(measured).into_iter().find(|pages| matches!(pages, Pages::Hugetlb(_)));
    let show = |ns: f64| Unit::Seconds.show(ns * NS);
    let joins = "joins the huge pages that such writes have split once the child has ended (run --after-fork, as root)";
    let mut advice = Vec::new();
    match (p50(Pages::Thp), hugetlb.and_then(p50)) {
        (Some(thp), Some(hugetlb)) => advice.push(format!(
            "After a fork a write to a hugetlb page takes {} here, {:.0} times the {} of a write to a transparent huge \
             page: hugelift puts writable parts on THP unless --data-backing asks for hugetlb, and {joins}.",
            show(hugetlb),
            hugetlb / thp.max(1.0),
            show(thp)
        )),
        (Some(thp), None) => advice.push(format!(
            "After a fork a write to a transparent huge page takes {} here (hugetlb could not be measured), \
             and hugelift {joins}.",
            show(thp)
        )),
        _ => advice.push("There are no figures for transparent huge pages here.".into()),
    }
    let p999 = |side: Side| client(&of_side(&measured.served, side))[0].percentile(0.999);
    let huge_pages = largest(measured, Pattern::Every);
    let fork = |pages: Pages| {
        let case = Case { huge_pages: huge_pages?, pages, pattern: Pattern::Every };
        middle(runs(measured, case)?, |run| Some(run.fork_ns))
    };
    advice.push(match (p999(Side::Off), p999(Side::On), p999(Side::Lifted)) {
        (Some(off), Some(on), Some(lifted)) => format!(
            "While redis saves its data, one command in a thousand takes longer than {} with THP off, {} with THP on \
             and {} under hugelift: this is what --malloc thp costs or brings a server of this kind.",
            show(off),
            show(on),
            show(lifted)
        ),
        _ => match (fork(Pages::Small), fork(Pages::Thp)) {
            (Some(small), Some(thp)) => format!(
                "fork(2) of {} takes {} on small pages and {} on huge ones: a server that saves its data stands still for \
                 this time, and with huge pages the later writes are slower instead.",
                human_bytes(huge_pages.unwrap_or(0) * thp_page().map_or(0, |page| page.bytes())),
                show(small),
                show(thp)
            ),
            _ => "The effect on a server was not measured.".into(),
        },
    });
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
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
        (Case { huge_pages, pages, pattern }, vec![run])
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
        let outcome = outcome(&measured);
        assert!(
            outcome.advice[0].contains("takes 200 µs here, 20 times the 10.0 µs"),
            "{:?}",
            outcome.advice
        );
        assert!(outcome.advice[0].contains("--after-fork"), "{:?}", outcome.advice);
        assert_eq!(outcome.advice.len(), 2);
        assert!(outcome.notes.iter().any(|note| note.contains("copies 4 kB")), "{:?}", outcome.notes);
    }

    #[test]
    fn missing_measurements_are_named() {
        let none = outcome(&Measured::default());
        assert!(none.advice[0].contains("no figures") && none.advice[1].contains("not measured"), "{none:?}");
        assert!(none.plots.is_empty() && none.samples.is_empty(), "{none:?}");
        let thp =
            Measured { cases: vec![forked(Pages::Thp, 4, Pattern::OnePerHuge, 9000)], ..Measured::default() };
        assert!(outcome(&thp).advice[0].contains("hugetlb could not be measured"));
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
    fn redis_is_shown_side_by_side() {
        let one = |side, slow| Served {
            side,
            calm: vec![20_000; 100],
            saving: [vec![30_000; 998], vec![slow; 2]].concat(),
            seconds: 1.5,
            fork_us: 700,
            copied: 1 << 20,
            resident: 1 << 28,
            huge: [1 << 27, 0],
        };
        let served = [(Side::Off, 4_000_000), (Side::On, 2_000_000), (Side::Lifted, 1_000_000)];
        let served = served.into_iter().map(|(side, slow)| one(side, slow)).collect();
        let outcome = outcome(&Measured { served, ..Measured::default() });
        let table = outcome.tables.last().expect("a table");
        assert_eq!(table.rows.len(), 3);
        let at = table.columns.iter().position(|c| c.key == "client_p999_s").expect("a column");
        assert_eq!(table.rows[1][at], Cell::Number(2e-3));
        assert!(
            outcome.advice[1].contains("4.00 ms with THP off, 2.00 ms with THP on"),
            "{:?}",
            outcome.advice
        );
    }
}
