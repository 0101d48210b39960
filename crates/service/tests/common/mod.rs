// SPDX-License-Identifier: Apache-2.0
//! What the tests of the metrics share: figures in which nothing is missing, and a strict parser of both text formats.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use hugelift_service::metrics::{Figures, Kernel, Pool, Pressure, ProgramFigures};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

/// Returns figures with at least one sample of each series.
pub fn full() -> Figures {
    let time = UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    let mut figures = Figures::new("0.1.0", time);
    figures.scanned = Some(time + Duration::from_secs(60));
    figures.programs =
        vec![program(b"/usr/lib/postgresql/17/bin/postgres", 3 << 21), program(b"/usr/bin/node", 1 << 21)];
    (figures.lifts, figures.refusals, figures.restores) = (3, 2, 1);
    figures.refused = [("pool-short".to_string(), 1)].into();
    figures.processes_seen = 200;
    figures.processes_taken = 12;
    figures.copies_bytes = 4 << 21;
    figures.copies_budget_bytes = Some(512 << 20);
    figures.pagecache_huge_bytes = 1 << 30;
    figures.pagecache_file_bytes = 2 << 30;
    figures.cpu_seconds = 1.5;
    figures.resident_bytes = 9 << 20;
    figures.scan_seconds = 0.25;
    figures.scans = 10;
    figures.pressure = Some(Pressure { some_avg10: 12.5, full_avg10: 1.0 });
    let count = |number| Some(number);
    figures.kernel = Kernel {
        splits: count(1),
        collapses: count(2),
        collapse_failures: count(3),
        compaction_stalls: count(4),
        faults: count(5),
        fault_fallbacks: count(6),
    };
    figures.ledger_is_written = Some(true);
    figures.pools = vec![
        Pool { page_size: 2 << 20, total: 100, free: 40 },
        Pool { page_size: 1 << 30, total: 0, free: 0 },
    ];
    figures
}

/// Returns the figures of a program with all parts on all backings.
pub fn program(path: &[u8], bytes: u64) -> ProgramFigures {
    let parts = Part::ALL.into_iter().chain([Part::Jit]);
    let backings = [Backing::Thp, Backing::Hugetlb, Backing::Pagecache, Backing::Shared];
    ProgramFigures {
        program: path.into(),
        unit: Some("postgresql@17-main.service".into()),
        processes: 6,
        huge_bytes: parts.flat_map(|part| backings.map(|backing| ((part, backing), bytes))).collect(),
    }
}

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    Open,
    /// Prometheus, version 0.0.4.
    Classic,
}

/// A parsed line.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The state of the parser at a line.
struct Family {
    name: String,
    kind: String,
}

/// Parses a text. It panics at the first line that the format does not permit.
pub fn parse(text: &str, format: Format) -> Vec<Sample> {
    let body = match format {
        Format::Open => text.strip_suffix("# EOF\n").expect("the text ends with # EOF"),
        Format::Classic => text,
    };
    assert!(body.is_empty() || body.ends_with('\n'), "the last line has no end");
    let (mut samples, mut families, mut seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let (mut helped, mut family): (Option<String>, Option<Family>) = (None, None);
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(help.ends_with('.') && help.len() > 10 && !help.ends_with(".."), "{line}");
            assert!(families.insert(name.to_string()), "{line}: it comes twice");
            helped = Some(name.into());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(helped.as_deref(), Some(name), "HELP is before TYPE: {line}");
            family = Some(Family { name: name.into(), kind: kind.into() });
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect(line);
            assert_eq!(format, Format::Open, "{line}");
            assert!(name.ends_with(&format!("_{unit}")), "{line}");
            assert_eq!(family.as_ref().map(|family| &family.name[..]), Some(name), "{line}");
        } else {
            let sample = parse_sample(line);
            let family = family.as_ref().expect("a sample follows TYPE");
            assert_eq!(sample.name, full_name(family, format), "{line}");
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_string()), "{line}: it comes twice");
            samples.push(sample);
        }
    }
    samples
}

/// Returns the name that the samples of a family have.
fn full_name(family: &Family, format: Format) -> String {
    let name = &family.name;
    match (format, &family.kind[..]) {
        (Format::Open, "counter") => format!("{name}_total"),
        (Format::Open, "info") => format!("{name}_info"),
        (Format::Open, "gauge") => name.clone(),
        (Format::Classic, "counter") => {
            assert!(name.ends_with("_total"), "{name}");
            name.clone()
        }
        (Format::Classic, "gauge") => name.clone(),
        (_, kind) => panic!("{name}: {kind}"),
    }
}

static SAMPLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(hugelift_[a-z0-9_]+)(?:\{(.+)\})? ([0-9.eE+-]+)$").unwrap());
static LABEL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"^([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)"#).unwrap());

fn parse_sample(line: &str) -> Sample {
    let captures = SAMPLE.captures(line).unwrap_or_else(|| panic!("no sample: {line:?}"));
    let mut rest = captures.get(2).map_or("", |labels| labels.as_str());
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let captures = LABEL.captures(rest).unwrap_or_else(|| panic!("no label: {rest:?}"));
        let value = captures[2].replace("\\\"", "\"").replace("\\\\", "\\");
        assert!(labels.insert(captures[1].into(), value).is_none(), "{line}: a label comes twice");
        rest = &rest[captures[0].len()..];
    }
    let value: f64 = captures[3].parse().unwrap();
    assert!(value.is_finite() && value >= 0.0, "{line}");
    Sample { name: captures[1].into(), labels, value }
}
