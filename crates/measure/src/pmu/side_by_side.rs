// SPDX-License-Identifier: Apache-2.0
//! Counts of the same work in several states, side by side: each event, each figure that follows from them, and the ratio to the
//! first state.

use super::metric::Unit;
use super::report::{Scope, StatReport};
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What a row is measured in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// Events of the CPU.
    Events,
    /// Counts of the kernel, of the program.
    Kernel,
    /// What follows from events, in this unit.
    #[serde(untagged)]
    Metric(Unit),
}

/// A ratio to the first state.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The estimate.
    pub point: f64,
    /// The ends of its 95 % interval, where there are enough pairs.
    pub low: Option<f64>,
    /// See `low`.
    pub high: Option<f64>,
}

/// One event or figure of all states.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The maker's name of an event, or a stable name for scripts.
    pub key: String,
    /// Its name in the text.
    pub label: String,
    /// What it is measured in.
    pub of: Of,
    /// The value in each state: of an event or a count, for one unit of `per`.
    pub values: Vec<Option<f64>>,
    /// Of each state but the first.
    pub ratios: Vec<Option<Ratio>>,
}

/// What the counts are given for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// All of it.
    Whole,
    /// One run.
    Run,
    /// One transaction of a server.
    Transaction,
    /// One second of time.
    Second,
}

/// Counts of several states.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SideBySide {
    /// [`VERSION`]
    pub version: u32,
    /// What the counts are given for.
    pub per: Per,
    /// The name of each state.
    pub names: Vec<String>,
    /// The report of each, with its totals.
    pub reports: Vec<StatReport>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One state.
#[derive(Clone, Debug)]
pub struct State {
    /// Its name.
    pub name: String,
    /// Its totals.
    pub report: StatReport,
    /// By how many of [`Per`] the totals are divided.
    pub share: f64,
}

impl SideBySide {
    /// Puts states side by side. `ratio` estimates the ratio of an event or of a count of the kernel, by its key, of the state with
    /// this number (from 1) to the first, where there are pairs for it; without one it is that of the values.
    pub fn new(per: Per, states: Vec<State>, ratio: impl Fn(&str, usize) -> Option<Ratio>) -> SideBySide {
        let mut rows = Vec::new();
        let events = named(&states, |report| {
            let counted = report.counters.iter().filter(|counter| counter.scaled.is_some());
            counted
                .map(|counter| Name {
                    key: counter.event.into(),
                    label: counter.event.into(),
                    of: Of::Events,
                })
                .collect()
        });
        let metrics = named(&states, |report| {
            let one = report.metrics.iter();
            one.map(|metric| Name {
                key: metric.key.into(),
                label: metric.label.into(),
                of: Of::Metric(metric.unit),
            })
            .collect()
        });
        let kernel = named(&states, |report| {
            let of_program = report.kernel.iter().filter(|count| count.scope == Scope::Program);
            of_program
                .map(|count| Name { key: count.key.into(), label: count.label.into(), of: Of::Kernel })
                .collect()
        });
        for Name { key, label, of } in events.into_iter().chain(metrics).chain(kernel) {
            let values: Vec<Option<f64>> = states.iter().map(|state| value(state, &key, of)).collect();
            let estimate = |state: usize| ratio(&key, state).or_else(|| of_values(&values, state));
            let ratios = (1..states.len()).map(estimate).collect();
            rows.push(Row { key, label, of, values, ratios });
        }
        let (names, reports) = states.into_iter().map(|state| (state.name, state.report)).unzip();
        SideBySide { version: VERSION, per, names, reports, rows }
    }
}

/// What a row is about.
struct Name {
    key: String,
    label: String,
    of: Of,
}

/// Returns what any of the states has, each once.
fn named(states: &[State], of: impl Fn(&StatReport) -> Vec<Name>) -> Vec<Name> {
    let mut all: Vec<Name> = Vec::new();
    for name in states.iter().flat_map(|state| of(&state.report)) {
        if all.iter().all(|other| other.key != name.key) {
            all.push(name);
        }
    }
    all
}

fn of_values(values: &[Option<f64>], state: usize) -> Option<Ratio> {
    let first = values.first().copied().flatten().filter(|first| *first > 0.0)?;
    Some(Ratio { point: values.get(state).copied().flatten()? / first, low: None, high: None })
}

fn value(state: &State, key: &str, of: Of) -> Option<f64> {
    let report = &state.report;
    let share = (state.share > 0.0).then_some(state.share)?;
    match of {
        // Cycles and instructions are in several groups: the first that was counted has them, as in the text of one report.
        Of::Events => {
            let mut all = report.counters.iter().filter(|counter| counter.event == key);
            Some(all.find_map(|counter| counter.scaled)? / share)
        }
        Of::Metric(_) => Some(report.metrics.iter().find(|metric| metric.key == key)?.value),
        Of::Kernel => Some(report.kernel.iter().find(|count| count.key == key)?.value as f64 / share),
    }
}

#[cfg(test)]
mod tests {
    use super::super::given::Given;
    use super::super::report::Origin;
    use super::*;

    fn published(which: &str) -> State {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pmu");
        let json = std::fs::read_to_string(folder.join(format!("mysql-published-{which}.json"))).unwrap();
        let given: Given = serde_json::from_str(&json).unwrap();
        let mut report = StatReport::new(Origin::Given, given.note.clone());
        report.add(&given.sample().unwrap());
        State { name: which.into(), report, share: 1.0 }
    }

    fn row<'a>(all: &'a SideBySide, key: &str) -> &'a Row {
        all.rows.iter().find(|row| row.key == key).unwrap()
    }

    #[test]
    fn issue_34_6_the_published_counts_of_mysql_before_and_after() {
        let all = SideBySide::new(Per::Whole, vec![published("before"), published("after")], |_, _| None);
        assert_eq!(all.names, ["before", "after"]);
        let walks = row(&all, "ITLB_MISSES.WALK_ACTIVE");
        assert_eq!(walks.values, [Some(139.2e9), Some(18e9)]);
        // 7.7 times fewer.
        let ratio = walks.ratios[0].unwrap();
        assert!((1.0 / ratio.point - 7.733).abs() < 0.001 && ratio.low.is_none(), "{ratio:?}");
        let share = row(&all, "itlb_walk_share");
        assert_eq!(share.of, Of::Metric(Unit::Share));
        assert!((share.values[0].unwrap() - 0.0433).abs() < 0.0001, "{share:?}");
        assert!(all.rows.iter().all(|row| row.values.len() == 2 && row.ratios.len() == 1));
    }

    #[test]
    fn issue_34_6_what_one_state_has_not_counted_has_no_ratio() {
        let mut after = published("after");
        after.report.counters.clear();
        let all = SideBySide::new(Per::Whole, vec![published("before"), after], |_, _| None);
        let walks = row(&all, "ITLB_MISSES.WALK_ACTIVE");
        assert_eq!((walks.values[1], walks.ratios[0]), (None, None));
        // Nor has one that the first state counts as 0.
        assert_eq!(of_values(&[Some(0.0), Some(3.0)], 1), None);
    }

    #[test]
    fn issue_34_6_totals_are_divided_and_ratios_of_pairs_have_intervals() {
        let states = ["before", "after"].map(|which| State { share: 10.0, ..published(which) });
        let of_pairs = Ratio { point: 0.5, low: Some(0.4), high: Some(0.6) };
        let ratio =
            |key: &str, state: usize| (key == "ITLB_MISSES.WALK_ACTIVE" && state == 1).then_some(of_pairs);
        let all = SideBySide::new(Per::Run, states.into(), ratio);
        let walks = row(&all, "ITLB_MISSES.WALK_ACTIVE");
        assert_eq!(walks.values, [Some(13.92e9), Some(1.8e9)]);
        assert_eq!(walks.ratios, [Some(of_pairs)]);
        // A share is not divided.
        assert!((row(&all, "itlb_walk_share").values[0].unwrap() - 0.0433).abs() < 0.0001);
    }
}
