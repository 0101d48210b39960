// SPDX-License-Identifier: Apache-2.0
//! Tests `hugelift lab reclaim` with a whole quick run and with an interrupted run.

use crate::common::HUGELIFT;
use crate::common::browser::{Page, VIEWS, browser};
use crate::common::run::{has_signal, until};
use crate::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const SCHEMES: [&str; 5] = ["one lock", "epochs", "lock-free list", "crossbeam-epoch", "seize"];

fn table<'a>(report: &'a Value, caption: &str) -> &'a Vec<Value> {
    let tables = report["tables"].as_array().expect("tables");
    let table = tables.iter().find(|table| table["caption"].as_str().is_some_and(|c| c.contains(caption)));
    table.unwrap_or_else(|| panic!("{caption}: {tables:?}"))["rows"].as_array().expect("rows")
}

/// The report has every scheme with every number of tasks, the waits of schemes that wait, the model beside
/// what was measured and what is published, and two sentences of advice.
#[test]
fn a_quick_run_has_all_figures() {
    let state = tempfile::tempdir().expect("a directory");
    let page = state.path().join("page.html");
    let out = Command::new(HUGELIFT)
        .args(["lab", "reclaim", "--quick", "--json", "--html"])
        .arg(&page)
        .env("XDG_STATE_HOME", state.path())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&report["experiment"], &report["quick"]), (&"reclaim".into(), &true.into()));
    let alone = table(&report, "one task alone");
    assert_eq!(alone.iter().map(|row| row[0].as_str().unwrap()).collect::<Vec<_>>(), SCHEMES);
    assert!(alone.iter().all(|row| row[1].as_f64().is_some_and(|time| time > 0.0)), "{alone:?}");
    if report["ended"] == "complete" {
        let rates = table(&report, "a waiter");
        assert!(rates.len().is_multiple_of(SCHEMES.len()) && rates.len() >= 3 * SCHEMES.len(), "{rates:?}");
        for row in rates {
            let waits = row[0] != "crossbeam-epoch" && row[0] != "seize";
            assert!(row[2].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
            assert_eq!(row[5].is_number(), waits, "{row}");
        }
        assert_eq!(report["advice"].as_array().map(Vec::len), Some(2), "{}", report["advice"]);
    }
    let mut is_shown = false;
    if report["machine"]["cpus"].as_u64() > Some(1) && report["ended"] == "complete" {
        let checks = table(&report, "model against measurement");
        assert!(
            checks.iter().any(|row| row[1] == 1.0) && checks.iter().any(|row| row[1] == 2.0),
            "{checks:?}"
        );
        // A scheme is shown for more cores if the model is not off by more than 2 on these.
        let names = ["one lock", "epochs", "lock-free list", "one lock, spinning"];
        let shown = names.map(|name| {
            let mut own = checks.iter().filter(|row| row[0] == name).peekable();
            assert!(own.peek().is_some(), "{name}: {checks:?}");
            own.all(|row| row[4].as_f64().is_some_and(|ratio| (0.5..=2.0).contains(&ratio)))
        });
        is_shown = shown.contains(&true);
        let notes = report["notes"].to_string();
        assert_eq!(
            notes.matches("not shown for more").count(),
            shown.iter().filter(|shown| !**shown).count()
        );
        if is_shown {
            let model = table(&report, "model of more cores");
            assert!(model.iter().any(|row| row[2] == 96.0) && model.len().is_multiple_of(3), "{model:?}");
            for row in model {
                let numbers: Vec<bool> = (3..7).map(|i| row[i].is_number()).collect();
                assert_eq!(numbers, shown, "{row}");
            }
        }
        let publication = table(&report, "prediction and publication");
        let published = |scheme: &str| {
            let row = publication.iter().find(|row| row[2] == scheme && row[3] == 96.0);
            row.unwrap_or_else(|| panic!("{scheme}: {publication:?}"))[5].as_f64()
        };
        assert_eq!(published("epochs"), Some(3.551e6));
        assert_eq!((published("one lock"), published("lock-free list")), (Some(1.009e6), None));
        assert_eq!(table(&report, "has its maximum")[0][3], 12.0);
        assert!(notes.contains("252.0 %"), "{notes}");
        let claims = report["claims"].as_array().expect("claims");
        assert!(claims.iter().any(|claim| claim["subject"] == "reclaim.order.epochs-lock"), "{claims:?}");
    }
    let text = fs::read_to_string(&page).expect("a page");
    assert_eq!(text.contains("model: operations by number of cores"), is_shown);
    if browser().is_none() {
        skip!("needs chromium, to look at the pictures");
    }
    let mut shown = Page::blank();
    for view in VIEWS {
        shown.view(&page, view);
        shown.check_plots(&report);
        shown.save("lab-reclaim", view);
    }
}

#[test]
fn an_interrupted_run_reports_what_it_has() {
    let state = tempfile::tempdir().expect("a directory");
    let child = Command::new(HUGELIFT)
        .args(["lab", "reclaim", "--json"])
        .env("XDG_STATE_HOME", state.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    until("it begins", || ["SigBlk", "SigCgt"].iter().any(|set| has_signal(child.id(), set, Signal::SIGINT)));
    sleep(Duration::from_secs(2));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("it still runs");
    let out = child.wait_with_output().expect("it ends");
    assert_eq!(out.status.code(), Some(130), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(report["ended"], "interrupted");
    assert!(!state.path().join("hugelift/lab/reclaim.json").exists(), "a part of a run was kept");
}
