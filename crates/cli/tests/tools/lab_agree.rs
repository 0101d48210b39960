// SPDX-License-Identifier: Apache-2.0
//! No two reports of one machine contradict each other in what they state as sure, however busy the machine
//! is.
//!
//! By default each experiment runs in a short form, alone and beside eight busy processes. `make lab-agree`
//! runs `hugelift lab all --quick` ten times beside none, two and eight.

#[path = "../../../lab/src/results/claim/contradictions.rs"]
mod contradictions;

use crate::common::HUGELIFT;
use crate::common::guard::Exclusive;
use contradictions::contradictions;
use hugelift_lab::results::Report;
use hugelift_lab::results::claim::{Answer, Claim};
use std::process::{Child, Command, Stdio};

/// The variable with the number of runs of `lab all --quick`.
const RUNS: &str = "LAB_AGREE_RUNS";
/// The variable with the folder that the reports are kept in.
const KEEP: &str = "LAB_AGREE_DIR";

/// Processes that compute all the time. They end when the value is dropped.
struct Load(Vec<Child>);

impl Load {
    fn of(count: usize) -> Load {
        // The limit of CPU time ends it should this process be killed.
        let script = "ulimit -t 3600; while :; do :; done";
        let busy = || Command::new("sh").args(["-c", script]).spawn().expect("sh runs");
        Load((0..count).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `hugelift lab` with these words. The processes of the load are not its descendants, so they count as
/// other programs.
fn lab(words: &str) -> Vec<Report> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = Command::new(HUGELIFT)
        .arg("lab")
        .args(words.split(' '))
        .args(["--quick", "--json"])
        .env("XDG_STATE_HOME", dir.path())
        .env("TMPDIR", dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("hugelift runs");
    assert!(out.status.success(), "lab {words}: {out:?}");
    if let Some(folder) = std::env::var_os(KEEP) {
        let name = format!("{:?}-{}.json", std::time::SystemTime::now(), words.replace(' ', "_"));
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
        std::fs::write(std::path::Path::new(&folder).join(name), &out.stdout).expect("write the report");
    }
    let value: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    // With one report, the JSON is that report and not a list.
    match value.get("reports") {
        Some(all) => serde_json::from_value(all.clone()).expect("reports"),
        None => vec![serde_json::from_value(value).expect("a report")],
    }
}

/// Adds the report to those of the same experiment. Fails if it contradicts one of them.
fn add(all: &mut Vec<(String, Report)>, load: usize, report: Report) {
    let name = format!("lab {} beside {load} processes", report.experiment);
    assert!(report.disturbance.is_some(), "{name} does not say how disturbed it was");
    assert!(!report.outcome.claims.is_empty(), "{name} states nothing that can be compared");
    for (earlier, other) in all.iter().filter(|(_, other)| other.experiment == report.experiment) {
        let found = contradictions(&other.outcome.claims, &report.outcome.claims);
        assert!(found.is_empty(), "{earlier} and {name} contradict each other: {found:#?}");
    }
    let sure = report.outcome.claims.iter().filter(|claim| claim.sure).count();
    println!("{name}: {sure} of {} claims are sure", report.outcome.claims.len());
    all.push((name, report));
}

#[test]
#[ignore = "long: all experiments, several times, beside busy processes"]
fn reports_of_a_busy_machine_do_not_contradict_those_of_an_idle_one() {
    let _alone = Exclusive::take().unwrap();
    let runs: Option<usize> = std::env::var(RUNS).ok().map(|runs| runs.parse().expect("a number of runs"));
    let mut all = Vec::new();
    match runs {
        Some(runs) => {
            for run in 0..runs {
                let load = [0, 2, 8][run % 3];
                let _load = Load::of(load);
                lab("all").into_iter().for_each(|report| add(&mut all, load, report));
            }
            // What is never sure contradicts nothing.
            for experiment in hugelift_lab::ALL {
                let of = |report: &&Report| report.experiment == experiment.name && report.is_sure();
                let sure = all.iter().map(|(_, report)| report).filter(of).count();
                assert!(
                    sure > 0,
                    "no run of lab {} was sure: is this machine idle otherwise?",
                    experiment.name
                );
            }
        }
        None => {
            for load in [0, 8] {
                let _load = Load::of(load);
                for words in SHORT {
                    lab(words).into_iter().for_each(|report| add(&mut all, load, report));
                }
            }
        }
    }
}

/// Each experiment in a short form.
const SHORT: [&str; 5] = [
    "tlb --largest 8M",
    "memcpy --sizes 256k,4M",
    "cow --only writes --huge-pages 4 --rounds 6",
    "munmap --touch none",
    "reclaim",
];
