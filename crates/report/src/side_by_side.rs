// SPDX-License-Identifier: Apache-2.0
//! Counts of several states side by side, as text.

use crate::pmu::{percent, thousands_of};
use hugelift_core::printable::{printable, printable_lines};
use hugelift_core::table::{LEFT, RIGHT, Table};
use hugelift_measure::pmu::metric::Unit;
use hugelift_measure::pmu::report::Origin;
use hugelift_measure::pmu::side_by_side::{Of, Per, Ratio, Row, SideBySide};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Returns the states as text; each line ends with a newline.
pub fn text(all: &SideBySide) -> String {
    printable_lines(&(head(all) + "\n" + &table_text(all)))
}

/// Returns the table alone, and what was not counted.
pub(crate) fn table_text(all: &SideBySide) -> String {
    let mut out = String::new();
    if all.rows.is_empty() {
        out.push_str("nothing was counted\n");
    } else {
        out += &table(all).to_string();
    }
    let mut said = BTreeSet::new();
    for report in &all.reports {
        for note in
            report.no_pmu.iter().map(|why| format!("no hardware counts: {why}")).chain(report.notes.clone())
        {
            if said.insert(note.clone()) {
                let _ = writeln!(out, "{note}");
            }
        }
    }
    bounds(&mut out, all);
    out
}

/// Says what each state is, and on which CPU.
fn head(all: &SideBySide) -> String {
    let mut out = String::new();
    for (name, report) in all.names.iter().zip(&all.reports) {
        let origin = if report.origin == Origin::Given { "given counts, not measured here: " } else { "" };
        let _ = writeln!(out, "{}: {origin}{}", printable(name), printable(&report.subject));
    }
    let mut models: Vec<&str> = all.reports.iter().filter_map(|report| report.model).collect();
    models.dedup();
    if let [model] = models[..] {
        let _ = writeln!(out, "{model}");
    } else if models.len() > 1 {
        let _ = writeln!(out, "of different CPUs: {}", models.join(", "));
    }
    out
}

fn table(all: &SideBySide) -> Table {
    let states = all.names.len();
    let titles = (0..states).map(|_| RIGHT).chain((1..states).map(|_| RIGHT)).chain([LEFT]);
    let mut table = Table::new([LEFT].into_iter().chain(titles));
    let what = match all.per {
        Per::Whole => "",
        Per::Run => "of one run",
        Per::Transaction => "of one transaction",
        Per::Second => "of one second",
    };
    let ratio_of = |name: &String| if states == 2 { "ratio".to_string() } else { format!("{name} ratio") };
    let names = all.names.iter().cloned();
    table.row(
        std::iter::once(what.to_string())
            .chain(names)
            .chain(all.names[1..].iter().map(ratio_of))
            .chain([String::new()]),
    );
    for row in &all.rows {
        let values = row.values.iter().map(|value| value.map_or("-".into(), |value| shown(row.of, value)));
        let ratios = row.ratios.iter().map(|one| one.as_ref().map_or("-".into(), ratio));
        let words = match row.ratios[..] {
            [Some(one)] => times(one.point),
            _ => String::new(),
        };
        table.row(std::iter::once(label(row)).chain(values).chain(ratios).chain([words]));
    }
    table
}

fn label(row: &Row) -> String {
    let unit = match row.of {
        Of::Metric(Unit::Share) => ", share of cycles",
        Of::Metric(Unit::ShareOfLookups) => ", share",
        Of::Metric(Unit::PerThousandInstructions) => " per 1000 instructions",
        _ => "",
    };
    format!("{}{unit}", row.label)
}

fn shown(of: Of, value: f64) -> String {
    match of {
        Of::Events | Of::Kernel if value < 100.0 => format!("{value:.1}"),
        Of::Events | Of::Kernel => thousands_of(value),
        Of::Metric(Unit::Share | Unit::ShareOfLookups) => percent(value),
        Of::Metric(Unit::PerThousandInstructions) => format!("{value:.3}"),
        Of::Metric(Unit::Cycles) => format!("{value:.1}"),
        Of::Metric(Unit::PerCycle) => format!("{value:.2}"),
    }
}

fn ratio(ratio: &Ratio) -> String {
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!("{:.3} [{low:.3}, {high:.3}]", ratio.point),
        _ => format!("{:.3}", ratio.point),
    }
}

/// Returns a ratio as publications give it; nothing if it is nearly 1.
fn times(ratio: f64) -> String {
    match ratio {
        r if r <= 0.0 => String::new(),
        r if r < 0.67 => format!("{:.1} times fewer", 1.0 / r),
        r if r > 1.5 => format!("{r:.1} times as many"),
        _ => String::new(),
    }
}

/// Says how much of the cycles the walks take in each state.
fn bounds(out: &mut String, all: &SideBySide) {
    let bounds = all.names.iter().zip(&all.reports).filter_map(|(name, report)| Some((name, report.bound?)));
    let words: Vec<String> =
        bounds.map(|(name, bound)| format!("{} of cycles {}", percent(bound), printable(name))).collect();
    if !words.is_empty() {
        let _ = writeln!(out, "walks take {}", words.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_measure::pmu::given::Given;
    use hugelift_measure::pmu::report::StatReport;
    use hugelift_measure::pmu::side_by_side::State;

    fn given(name: &str, json: &str) -> State {
        let given: Given = serde_json::from_str(json).unwrap();
        let mut report = StatReport::new(Origin::Given, given.note.clone());
        report.add(&given.sample().unwrap());
        given.literature(&mut report);
        State { name: name.into(), report, share: 1.0 }
    }

    const CPU: &str = r#"{"vendor": "GenuineIntel", "family": 6, "model": 85, "stepping": 4}"#;

    #[test]
    fn issue_34_6_before_and_after_in_one_table() {
        let counts = |walks: u64, hits: u64| {
            format!(
                r#"{{"note": "n", "cpu": {CPU}, "counters": {{"cycles": 1000000, "instructions": 2000000,
                "ITLB_MISSES.WALK_DURATION": {walks}, "iTLB-loads": {hits}, "iTLB-load-misses": {walks}}}}}"#
            )
        };
        let (before, after) = (given("before", &counts(7100, 10_000)), given("after", &counts(1000, 10_000)));
        let shown = text(&SideBySide::new(Per::Whole, vec![before, after], |_, _| None));
        let line = |begin: &str| {
            shown.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{shown}"))
        };
        let words = |begin: &str| line(begin).split_whitespace().map(String::from).collect::<Vec<_>>();
        // The article's name, on its own CPU, whose table has another one for the same code.
        assert_eq!(
            words("ITLB_MISSES.WALK_PENDING")[1..],
            ["7", "100", "1", "000", "0.141", "7.1", "times", "fewer"]
        );
        assert_eq!(words("iTLB misses, share")[3..6], ["71.0", "%", "10.0"]);
        assert_eq!(words("CPU_CLK_UNHALTED.THREAD_P")[1..], ["1", "000", "000", "1", "000", "000", "1.000"]);
        assert!(shown.starts_with("before: given counts, not measured here: n\n"), "{shown}");
        assert!(shown.contains("\nIntel Skylake\n"), "{shown}");
    }

    #[test]
    fn what_others_have_written_is_shown_escaped() {
        let state =
            given("a\u{1b}[31m", &format!(r#"{{"note": "x\u001b[2J", "cpu": {CPU}, "counters": {{}}}}"#));
        let shown = text(&SideBySide::new(Per::Whole, vec![state.clone(), state], |_, _| None));
        assert!(!shown.contains('\u{1b}'), "{shown}");
        assert!(shown.contains("nothing was counted"), "{shown}");
    }

    #[test]
    fn ratios_in_words() {
        assert_eq!(times(0.1297), "7.7 times fewer");
        assert_eq!(times(2.0), "2.0 times as many");
        assert_eq!((times(1.01), times(0.0)), (String::new(), String::new()));
    }
}
