// SPDX-License-Identifier: Apache-2.0
//! The names and help texts of all series, and the text that scrapers get.
//!
//! Names follow prometheus.io/docs/practices/naming: base units, which are the end of the name. monitoring/README.md
//! lists the series for people. There are [`MAX_SERIES`] at most, whatever runs on the machine.

use super::figures::{Figures, Pool};
use super::labels::{self, Labels};
use super::programs::{self, MAX_PROGRAMS, Name, Sum};
use super::rows::{counters, gauges};
use hugelift_core::service::verify::Verdict;
use hugelift_core::snapshot::Part;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The `Content-Type` of [`open_metrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How many series there are at most.
pub const MAX_SERIES: usize = FIXED
    + Verdict::ALL.len()
    + (MAX_REASONS + 1)
    + 2 * MAX_POOLS
    + (MAX_PROGRAMS + 1) * (1 + PARTS * BACKINGS);

/// The series that have one sample each.
const FIXED: usize = 25;
/// How many reasons have a series of their own.
const MAX_REASONS: usize = 64;
/// How many pools are told. No machine has more page sizes.
const MAX_POOLS: usize = 16;
/// All parts, and the code that programs make themselves.
const PARTS: usize = Part::ALL.len() + 1;
const BACKINGS: usize = 4;

/// Returns the figures as OpenMetrics text (github.com/prometheus/OpenMetrics, version 1.0), for the server.
///
/// # Errors
/// A string takes all text, so there are none. The client library has a result nevertheless.
pub fn open_metrics(figures: &Figures) -> Result<String, fmt::Error> {
    let mut out = String::new();
    text::encode(&mut out, &registry(figures))?;
    Ok(out)
}

/// Returns the figures in the older text format of Prometheus (version 0.0.4), which node_exporter reads: the type of a
/// counter stands at its full name, and there is no `# EOF` and no `# UNIT`.
///
/// # Errors
/// As [`open_metrics`].
pub fn classic(figures: &Figures) -> Result<String, fmt::Error> {
    let mut out = String::new();
    prometheus_text::encode(&mut out, &registry(figures))?;
    Ok(out)
}

fn registry(figures: &Figures) -> Registry {
    let mut registry = Registry::with_prefix("hugelift");
    let out = &mut registry;
    daemon(out, figures);
    work(out, figures);
    verified(out, figures);
    memory(out, figures);
    kernel(out, figures);
    pools(out, &figures.pools);
    of_programs(out, &programs::limited(&figures.programs));
    registry
}

/// Registers what the daemon tells about itself.
fn daemon(out: &mut Registry, figures: &Figures) {
    let version = vec![("version", labels::value(figures.version.as_str()))];
    plain(out, "build", "The version of the hugelift service that runs", Info::new(version));
    let started = one(seconds(figures.started));
    measured(
        out,
        "start_time",
        SECONDS,
        "The time at which the service has started, since 1970",
        gauges(started),
    );
    let scanned = figures.scanned.map(|time| (Labels::new(), seconds(time)));
    let help = "The time at which the service last finished a scan of the machine, since 1970";
    measured(out, "last_scan_timestamp", SECONDS, help, gauges(scanned));
    let cpu = one(finite(figures.cpu_seconds));
    measured(out, "cpu", SECONDS, "CPU time of the service and its helpers", counters(cpu));
    let resident = gauges(one(figures.resident_bytes));
    measured(out, "resident", BYTES, "Resident memory of the service and its helpers", resident);
    plain(out, "scans", "How often the service has scanned the machine", counters(one(figures.scans)));
    let scan = one(finite(figures.scan_seconds));
    measured(out, "scan", SECONDS, "Time that the service has spent on scans of the machine", counters(scan));
}

/// Registers what the daemon has done.
fn work(out: &mut Registry, figures: &Figures) {
    let counts = [
        ("lifts", "How often the service has put a process, or more of it, on huge pages", figures.lifts),
        ("lift_refusals", "How often a lift was due and could not be done", figures.refusals),
        ("restores", "Processes that the service has put back on their own pages", figures.restores),
    ];
    for (name, help, count) in counts {
        plain(out, name, help, counters(one(count)));
    }
    let refused = labels::limited(&figures.refused, MAX_REASONS).into_iter();
    let refused = refused.map(|(reason, count)| (vec![("reason", reason)], count));
    let help = "Processes that a rule takes and that are not lifted now, by the reason";
    plain(out, "processes_refused", help, gauges(refused));
    let seen = gauges(one(figures.processes_seen));
    plain(out, "processes_seen", "Processes that the service found in its last scan", seen);
    let taken = gauges(one(figures.processes_taken));
    plain(out, "processes_taken", "Processes that run and that the service has lifted", taken);
}

/// Registers what experiments have found out, and whether it is written down.
fn verified(out: &mut Registry, figures: &Figures) {
    let verdicts = Verdict::ALL.map(|verdict| {
        let count = figures.verdicts.get(&verdict).copied().unwrap_or(0);
        (vec![("verdict", verdict.key().to_string())], count)
    });
    let help = "Programs in units by the verdict of their experiments, as far as it still holds";
    plain(out, "verdicts", help, gauges(verdicts));
    let ledger = figures.ledger_is_written.map(|is_written| (Labels::new(), u64::from(is_written)));
    plain(out, "ledger_up", "Whether the ledger could be written last time", gauges(ledger));
}

/// Registers what memory the daemon's work takes, and how much the machine has.
fn memory(out: &mut Registry, figures: &Figures) {
    let copies = gauges(one(figures.copies_bytes));
    measured(out, "copies", BYTES, "Memory that copies of code and data take", copies);
    let budget = gauges(figures.copies_budget_bytes.map(|bytes| (Labels::new(), bytes)));
    measured(out, "copies_budget", BYTES, "Memory that copies may take", budget);
    let huge = gauges(one(figures.pagecache_huge_bytes));
    measured(
        out,
        "pagecache_huge",
        BYTES,
        "Files that the service keeps, as far as they are on huge pages of the page cache",
        huge,
    );
    let files = gauges(one(figures.pagecache_file_bytes));
    measured(
        out,
        "pagecache_file",
        BYTES,
        "Files that the service keeps, as far as they could be on huge pages",
        files,
    );
    let tasks = |tasks: &str, percent: f64| (vec![("tasks", tasks.to_string())], finite(percent / 100.0));
    let pressure = figures.pressure.iter();
    let pressure = pressure.flat_map(|p| [tasks("some", p.some_avg10), tasks("full", p.full_avg10)]);
    let help = "Share of the last ten seconds in which some or all tasks have waited for memory";
    plain(out, "memory_pressure_ratio", help, gauges(pressure));
}

/// Registers what the kernel counts since the machine has started.
fn kernel(out: &mut Registry, figures: &Figures) {
    let kernel = &figures.kernel;
    let counts = [
        ("kernel_thp_splits", "Huge pages that the kernel has split", kernel.splits),
        ("kernel_thp_collapses", "Huge pages that the kernel has made of small ones", kernel.collapses),
        (
            "kernel_thp_collapse_failures",
            "Huge pages that the kernel could not make of small ones for lack of memory in one piece",
            kernel.collapse_failures,
        ),
        ("kernel_thp_faults", "Page faults that got a huge page", kernel.faults),
        (
            "kernel_thp_fault_fallbacks",
            "Page faults that wanted a huge page and got small ones",
            kernel.fault_fallbacks,
        ),
        (
            "kernel_compaction_stalls",
            "How often a process has waited until the kernel had moved pages together",
            kernel.compaction_stalls,
        ),
    ];
    for (name, help, count) in counts {
        plain(out, name, help, counters(count.map(|count| (Labels::new(), count))));
    }
}

/// Registers the hugetlb pools.
fn pools(out: &mut Registry, pools: &[Pool]) {
    let by_size: BTreeMap<u64, &Pool> = pools.iter().map(|pool| (pool.page_size, pool)).collect();
    let told: Vec<&Pool> = by_size.into_values().take(MAX_POOLS).collect();
    let row = |pool: &Pool, pages: u64| {
        (vec![("page_size", pool.page_size.to_string())], pool.page_size.saturating_mul(pages))
    };
    let total = gauges(told.iter().map(|pool| row(pool, pool.total)));
    measured(out, "pool", BYTES, "Memory in the hugetlb pool of each page size", total);
    let free = gauges(told.iter().map(|pool| row(pool, pool.free)));
    measured(out, "pool_free", BYTES, "Memory in the hugetlb pool that no process uses", free);
}

/// Registers the figures of programs.
fn of_programs(out: &mut Registry, sums: &BTreeMap<Name, Sum>) {
    let processes = gauges(sums.iter().map(|(name, sum)| (name.labels(), sum.processes)));
    plain(out, "program_processes", "Processes of a lifted program", processes);
    let huge = sums.iter().flat_map(|(name, sum)| {
        sum.huge_bytes.iter().map(|((part, backing), bytes)| {
            let place = [("part", part.to_string()), ("backing", backing.to_string())];
            (name.labels().into_iter().chain(place).collect::<Labels>(), *bytes)
        })
    });
    let help = "Memory of a program on huge pages, by its parts and by where the pages come from";
    measured(out, "program_huge", BYTES, help, gauges(huge));
}

const BYTES: Unit = Unit::Bytes;
const SECONDS: Unit = Unit::Seconds;

/// Registers a series without a unit. The client library adds a full stop to the help text.
fn plain(out: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    out.register(name, help, metric);
}

/// Registers a series with a unit, which becomes the end of its name.
fn measured(out: &mut Registry, name: &str, unit: Unit, help: &str, metric: impl Metric) {
    out.register_with_unit(name, help, unit, metric);
}

/// Returns the sample of a series that has one.
fn one<N>(number: N) -> Option<(Labels, N)> {
    Some((Labels::new(), number))
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns a number that the text format can hold and that is not negative.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number.max(0.0) } else { 0.0 }
}
