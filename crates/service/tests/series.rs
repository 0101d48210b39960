// SPDX-License-Identifier: Apache-2.0
//! The text for scrapers, read back by a strict parser: names, help texts, and the limits on what hostile names can do.

mod common;

use common::{Format, Sample, full, parse, program};
use hugelift_service::metrics::series::{MAX_SERIES, classic, open_metrics};
use hugelift_service::metrics::{Figures, Pool, Pressure, ProgramFigures};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

fn parsed(figures: &Figures) -> Vec<Sample> {
    parse(&open_metrics(figures).unwrap(), Format::Open)
}

/// Returns the value of the sample with these labels.
fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |sample: &&Sample| {
        labels.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|v| v == value))
    };
    let found: Vec<&Sample> = samples.iter().filter(|sample| sample.name == name).filter(has).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0].value
}

#[test]
fn issue_33_the_text_has_all_figures() {
    let samples = parsed(&full());
    let value = |name, labels: &[_]| value(&samples, name, labels);
    assert_eq!(value("hugelift_build_info", &[("version", "0.1.0")]), 1.0);
    assert_eq!(value("hugelift_start_time_seconds", &[]), 1_700_000_000.25);
    assert_eq!(value("hugelift_last_scan_timestamp_seconds", &[]), 1_700_000_060.25);
    assert_eq!(value("hugelift_cpu_seconds_total", &[]), 1.5);
    assert_eq!(value("hugelift_lifts_total", &[]), 3.0);
    assert_eq!(value("hugelift_lift_refusals_total", &[]), 2.0);
    assert_eq!(value("hugelift_restores_total", &[]), 1.0);
    assert_eq!(value("hugelift_processes_refused", &[("reason", "pool-short")]), 1.0);
    assert_eq!(value("hugelift_memory_pressure_ratio", &[("tasks", "some")]), 0.125);
    assert_eq!(value("hugelift_pool_free_bytes", &[("page_size", "2097152")]), f64::from(80 << 20));
    assert_eq!(value("hugelift_kernel_compaction_stalls_total", &[]), 4.0);
    let place = [("program", "/usr/bin/node"), ("part", "text"), ("backing", "pagecache")];
    assert_eq!(value("hugelift_program_huge_bytes", &place), f64::from(2 << 20));
    assert_eq!(value("hugelift_program_processes", &place[..1]), 6.0);
}

#[test]
fn issue_33_both_formats_have_the_same_samples() {
    let classic = classic(&full()).unwrap();
    assert!(!classic.contains("# EOF") && !classic.contains("# UNIT"));
    assert!(classic.contains("\n# TYPE hugelift_lifts_total counter\n"));
    assert_eq!(parse(&classic, Format::Classic), parsed(&full()));
}

#[test]
fn issue_33_the_same_figures_make_the_same_text() {
    assert_eq!(open_metrics(&full()).unwrap(), open_metrics(&full()).unwrap());
}

#[test]
fn issue_33_what_the_kernel_does_not_tell_has_no_sample() {
    let samples = parsed(&Figures::new("0.1.0", UNIX_EPOCH));
    let absent =
        ["kernel", "pool", "program", "memory_pressure", "copies_budget", "last_scan", "processes_refused"];
    for sample in &samples {
        assert!(
            !absent.iter().any(|name| sample.name.starts_with(&format!("hugelift_{name}"))),
            "{sample:?}"
        );
    }
    assert_eq!(value(&samples, "hugelift_copies_bytes", &[]), 0.0);
}

#[test]
fn issue_33_numbers_that_are_none_do_not_break_the_text() {
    let mut figures = full();
    figures.cpu_seconds = f64::NAN;
    figures.scan_seconds = -1.0;
    figures.pressure = Some(Pressure { some_avg10: f64::INFINITY, full_avg10: f64::MIN_POSITIVE });
    figures.copies_bytes = u64::MAX;
    figures.pools = vec![Pool { page_size: u64::MAX, total: u64::MAX, free: 1 }; 3];
    assert_eq!(value(&parsed(&figures), "hugelift_cpu_seconds_total", &[]), 0.0);
}

/// Figures with 10,000 programs, reasons and pools, all with as many parts as can be and with hostile names.
static HOSTILE: LazyLock<Figures> = LazyLock::new(|| {
    let mut figures = full();
    let name = |number: usize| {
        let mut name: Vec<u8> = (0..number % 400).map(|at| (at * 7 + number) as u8).collect();
        name.extend(format!("\"}} 1\n# EOF\n\\{number}\u{202e}\0").into_bytes());
        name
    };
    let programs = (0..10_000).map(|number| ProgramFigures {
        unit: Some(name(number + 1)[..].into()),
        ..program(&name(number), number as u64)
    });
    figures.programs = programs.collect();
    figures.refused = (0..10_000).map(|number| (format!("\u{1b}\"\n{number}"), number)).collect();
    figures.pools = (0..10_000).map(|size| Pool { page_size: size, total: 1, free: 1 }).collect();
    figures
});

#[test]
fn issue_33_hostile_names_cannot_add_series_or_lines() {
    let figures = &*HOSTILE;
    let samples = parsed(figures);
    assert_eq!(samples.len(), MAX_SERIES);
    for (name, value) in samples.iter().flat_map(|sample| &sample.labels) {
        assert!(value.len() <= 128, "{name}: {value:?}");
        assert!(!value.chars().any(|c| c.is_control() || c == '\u{202e}'), "{name}: {value:?}");
    }
    parse(&classic(figures).unwrap(), Format::Classic);
}

#[test]
fn issue_33_nothing_is_lost_by_the_limit() {
    let figures = &*HOSTILE;
    let samples = parsed(figures);
    let sum = |name: &str| {
        samples.iter().filter(|sample| sample.name == name).map(|sample| sample.value).sum::<f64>()
    };
    let processes: u64 = figures.programs.iter().map(|program| program.processes).sum();
    assert_eq!(sum("hugelift_program_processes"), processes as f64);
    let bytes: u64 = figures.programs.iter().flat_map(|program| program.huge_bytes.values()).sum();
    assert_eq!(sum("hugelift_program_huge_bytes"), bytes as f64);
    assert_eq!(sum("hugelift_processes_refused"), figures.refused.values().sum::<u64>() as f64);
    let programs: BTreeSet<_> = samples.iter().filter_map(|sample| sample.labels.get("program")).collect();
    assert!(programs.len() <= 65 && programs.contains(&"other".to_string()));
}
