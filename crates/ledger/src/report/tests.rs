// SPDX-License-Identifier: Apache-2.0
//! Tests of the report and of its text.

use super::*;
use crate::entry::{Program as Key, Use};
use crate::text::text;

const NOW: u64 = 1_800_000_000;

fn known(unit: Option<&str>, verdict: Option<Verdict>, ratio: Option<[f64; 3]>, hours: u64) -> Known {
    let lifted_us = hours * 3_600_000_000;
    let used = Use { cpu_us: 2 * lifted_us, lifted_us, copies: 24 << 20 };
    let experiment = |verdict| Experiment {
        path: "/a".into(),
        measure: "CPU time per system call".into(),
        ratio: ratio.map(|[point, low, high]| Ratio { point, low, high }),
        pairs: 40,
        verdict,
        until: NOW + 29 * 24 * 3600,
    };
    Known {
        program: Key { build_id: "ab".into(), unit: unit.map(String::from) },
        path: "/usr/bin/a\u{1b}".into(),
        used,
        used_since: used,
        lifts: 1,
        refusals: 0,
        found: verdict.map(|verdict| (NOW - 100, experiment(verdict))),
    }
}

const COST: Cost = Cost { span: 1000, cpu_us: 400_000, copies: 310 << 20 };

#[test]
fn issue_33_4_of_nothing_the_sums_are_zero() {
    let report = Report::new(&[], COST, NOW - 1000, NOW);
    for sum in [report.machine.measured_cpu_seconds, report.machine.unmeasured_cpu_seconds] {
        assert!(sum == 0.0 && sum.is_sign_positive(), "{sum}");
    }
}

#[test]
fn issue_33_4_only_what_was_measured_is_summed_up() {
    let pays = Some(Verdict::Pays);
    let all = [
        known(Some("a.service"), pays, Some([0.5, 0.4, 0.8]), 1),
        known(Some("a.service"), pays, Some([0.9, 0.8, 1.0 - 1e-9]), 9),
        known(None, pays, Some([0.5, 0.4, 0.8]), 0),
        known(Some("b.service"), None, None, 5),
        known(Some("c.service"), Some(Verdict::PaysNot), Some([0.5, 0.4, 1.8]), 1000),
        known(Some("d.service"), Some(Verdict::Harms), Some([1.5, 1.4, 1.8]), 1),
        known(Some("e.service"), pays, Some([f64::NAN, 0.4, 0.8]), 1),
    ];
    let report = Report::new(&all, COST, NOW - 1000, NOW);
    let gain = report.machine.gain.expect("a gain");
    // Of 1 h and 9 h lifted, bare 2 h and 10 h.
    assert!((gain.point - (1.0 - 10.0 / 12.0)).abs() < 1e-12, "{gain:?}");
    assert!((gain.low - (1.0 - 10.0 / (1.25 + 9.0))).abs() < 1e-6, "{gain:?}");
    assert!((gain.high - (1.0 - 10.0 / (2.5 + 11.25))).abs() < 1e-12, "{gain:?}");
    assert_eq!((report.machine.units, report.machine.measured_cpu_seconds), (1, 36_000.0));
    assert_eq!(report.machine.unmeasured_cpu_seconds, 1007.0 * 3600.0);
    let said = text(&report);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        [lines[0], lines[2]],
        [
            "this machine: 16.7 % [2.4, 27.3] less CPU time in 1 unit, for 0.04 % of a CPU and 310 MB",
            "not measured, and in no sum: 1007 h of CPU time of lifted processes"
        ]
    );
    assert!(
        lines[3]
            .starts_with("a.service (/usr/bin/a\\x1b): 50.0 % [20.0, 60.0] less CPU time per system call"),
        "{said}"
    );
    assert!(lines[3].contains("tried again in 29 days") && lines[3].ends_with("24 MB of copies"), "{said}");
    assert!(lines[6].contains("lifted, and not measured"), "{said}");
    assert!(lines[8].contains("50.0 % [40.0, 80.0] more CPU time"), "{said}");
}

#[test]
fn issue_33_4_without_a_measured_gain_there_is_none() {
    let report = Report::new(&[], Cost::default(), 0, NOW);
    assert_eq!((report.machine.gain, report.machine.cpu_share), (None, None));
    assert_eq!(text(&report), "this machine: no gain was measured, for an unknown share of a CPU and 0 B\n");
    let start = Cost { span: 3, cpu_us: 600_000, copies: 0 };
    let report = Report::new(&[], start, 0, NOW);
    assert_eq!((report.machine.span_seconds, report.machine.cpu_share), (3, None));
    let said = "for 0.6 s of CPU time in 3.0 s, which is too short for a share of it, and 0 B\n";
    assert!(text(&report).ends_with(said), "{}", text(&report));
    let report = Report::new(&[known(None, Some(Verdict::Unmeasured), None, 1)], COST, 0, NOW);
    assert_eq!(report.machine.gain, None);
    assert!(text(&report).contains("an experiment gave no result"));
}
