// SPDX-License-Identifier: Apache-2.0
//! A [`StatReport`] as text.

use hugelift_core::printable::{printable, thousands};
use hugelift_core::table::{Column, LEFT, RIGHT, Table};
use hugelift_measure::pmu::metric::{Metric, Unit};
use hugelift_measure::pmu::report::{Counter, Origin, Scope, StatReport};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The column of counts, which has the same width in each table.
const COUNT: Column = RIGHT.at_least(20);
/// The share of cycles below which there is little to gain.
const LITTLE: f64 = 0.01;

/// Returns the report as text; each line ends with a newline.
pub fn text(report: &StatReport) -> String {
    let mut out = String::new();
    head(&mut out, report);
    counters(&mut out, report);
    metrics(&mut out, report);
    kernel(&mut out, report);
    for note in &report.notes {
        let _ = writeln!(out, "{note}");
    }
    end(&mut out, report);
    out
}

fn head(out: &mut String, report: &StatReport) {
    let seconds = report.seconds.map_or(String::new(), |s| format!(", {s:.3} s"));
    let subject = printable(&report.subject);
    let _ = match report.origin {
        Origin::Measured => writeln!(out, "{subject}{seconds}"),
        Origin::Given => writeln!(out, "given counts, not measured here: {subject}"),
    };
    if let (Some(model), Some(source)) = (report.model, report.source) {
        let cpu = report.cpu.as_ref().map_or(String::new(), |c| format!(" ({c})"));
        let pmu = report.pmu.as_ref().map_or(String::new(), |p| format!(", PMU {}", printable(p)));
        let _ = writeln!(out, "{model}{cpu}{pmu}; events: {source}");
    }
    if report.user_only {
        out.push_str(
            "only user space was counted; to count the kernel too: echo 1 > /proc/sys/kernel/perf_event_paranoid, or be root\n",
        );
    }
    if let Some(why) = &report.no_pmu {
        let _ = writeln!(out, "no hardware counts: {}", printable(why));
    }
}

fn counters(out: &mut String, report: &StatReport) {
    let mut shown = BTreeSet::new();
    let (mut table, mut skipped) = (Table::new([COUNT, LEFT, LEFT]), Vec::new());
    // Cycles and instructions are in several groups, but have one row each.
    for counter in report.counters.iter().filter(|c| shown.insert(c.event)) {
        match counter.scaled {
            Some(scaled) => table.row([thousands_of(scaled), counter.event.into(), multiplexed(counter)]),
            None => skipped.push(counter.event),
        }
    }
    let text = table.to_string();
    if !text.is_empty() {
        let _ = write!(out, "\n{text}");
    }
    if !skipped.is_empty() {
        let word = if report.origin == Origin::Given { "not given" } else { "not counted" };
        let mut table = Table::new([COUNT, LEFT]);
        table.row([word, &skipped.join(", ")]);
        *out += &table.to_string();
    }
}

fn multiplexed(counter: &Counter) -> String {
    if counter.running_share >= 0.9995 {
        return String::new();
    }
    format!("counted {} of the time, scaled", percent(counter.running_share))
}

fn metrics(out: &mut String, report: &StatReport) {
    if !report.metrics.is_empty() {
        out.push('\n');
    }
    let mut table = Table::new([LEFT, LEFT]);
    for metric in &report.metrics {
        table.row([metric.label.into(), shown(metric)]);
    }
    let _ = writeln!(out, "{table}");
}

fn shown(metric: &Metric) -> String {
    match metric.unit {
        Unit::Share if metric.key == "page_walks_utilization" => {
            format!("{} of their time", percent(metric.value))
        }
        Unit::ShareOfLookups => percent(metric.value),
        Unit::Share => format!("{} of cycles", percent(metric.value)),
        Unit::PerThousandInstructions => format!("{:.3} per 1000 instructions", metric.value),
        Unit::Cycles => format!("{:.1}", metric.value),
        Unit::PerCycle => format!("{:.2}", metric.value),
    }
}

fn kernel(out: &mut String, report: &StatReport) {
    let mut table = Table::new([COUNT, LEFT]);
    for each in &report.kernel {
        let scope = match each.scope {
            Scope::Program => "",
            Scope::Machine => " (whole machine)",
        };
        table.row([thousands(each.value), format!("{}{scope}", each.label)]);
    }
    if !report.kernel.is_empty() {
        let _ = writeln!(out, "{table}");
    }
}

fn end(out: &mut String, report: &StatReport) {
    if let Some(bound) = report.bound {
        let little = if bound < LITTLE { "; there is little to gain" } else { "" };
        let _ = writeln!(
            out,
            "walks take {} of cycles: huge pages can save at most that{little}",
            percent(bound)
        );
    }
    if report.origin == Origin::Measured {
        out.push_str("measure what huge pages save: hugelift compare -- CMD\n");
    }
}

/// Returns a count with its digits in groups of three.
pub(crate) fn thousands_of(count: f64) -> String {
    thousands(format_args!("{count:.0}"))
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_measure::pmu::given::Given;
    use hugelift_measure::pmu::tables::models;
    use hugelift_measure::pmu::{Count, Sample};
    use std::path::Path;

    fn given(name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../measure/tests/fixtures/pmu");
        let json = std::fs::read_to_string(folder.join(name)).unwrap();
        let given: Given = serde_json::from_str(&json).unwrap();
        let mut report = StatReport::new(Origin::Given, given.note.clone());
        report.add(&given.sample().unwrap());
        text(&report)
    }

    #[test]
    fn multiplexed_counts_say_so() {
        let shown = given("sapphire-rapids-by-hand.json");
        assert!(shown.contains("counted 25.0 % of the time, scaled"), "{shown}");
    }

    #[test]
    fn without_walk_cycles_there_is_no_bound() {
        let shown = given("zen4-by-hand.json");
        assert!(shown.contains("AMD has no event for the cycles of page walks"), "{shown}");
        assert!(!shown.contains("huge pages can save at most"), "{shown}");
    }

    #[test]
    fn published_mysql_counts() {
        for (name, share) in
            [("mysql-published-before.json", "4.3 %"), ("mysql-published-after.json", "0.6 %")]
        {
            let shown = given(name);
            assert!(shown.contains(&format!("iTLB walks  {share} of cycles\n")), "{shown}");
            assert!(shown.starts_with("given counts, not measured here: published for MySQL"), "{shown}");
            assert!(!shown.contains("huge pages can save at most"), "{shown}");
        }
    }

    #[test]
    fn events_that_were_never_counted_are_named() {
        let shown = |count: Option<Count>| {
            let model = models().next().expect("a model");
            let groups = model.groups.iter().map(|g| vec![count; g.len()]).collect();
            let mut report = StatReport::new(Origin::Measured, "test".into());
            report.add(&Sample { model, groups });
            text(&report)
        };
        assert!(shown(None).contains("not counted"));
        assert!(!shown(Some(Count::whole(0))).contains("not counted"));
    }

    #[test]
    fn percents_of_the_published_counts() {
        assert_eq!(percent(139.2 / 3213.4), "4.3 %");
        assert_eq!(percent(18.0 / 3213.0), "0.6 %");
    }
}
