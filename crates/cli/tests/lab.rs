// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab`: each experiment in a small form, what it prints, and what it leaves behind.

mod common;

use common::guard::Exclusive;
use common::run::PATIENCE;
use common::{End, HUGELIFT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A lab whose results are kept in `state`.
fn command(state: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(HUGELIFT);
    command.arg("lab").args(args).env("XDG_STATE_HOME", state).stdin(Stdio::null());
    command
}

fn lab(state: &Path, args: &[&str]) -> Output {
    command(state, args).output().expect("hugelift runs")
}

fn good(state: &Path, args: &[&str]) -> String {
    let out = lab(state, args);
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {out:?}");
    String::from_utf8(out.stdout).expect("text")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// What every report must be.
fn check(report: &Value, experiment: &str) {
    assert_eq!((&report["version"], &report["experiment"]), (&1.into(), &experiment.into()));
    assert!(report["machine"]["cpus"].as_u64().is_some_and(|n| n > 0), "{report}");
    assert!(report["machine"]["kernel"].is_string() && report["date"].is_string(), "{report}");
    for table in report["tables"].as_array().expect("tables") {
        let columns = table["columns"].as_array().expect("columns").len();
        for row in table["rows"].as_array().expect("rows") {
            assert_eq!(row.as_array().map(Vec::len), Some(columns), "{row}");
        }
    }
    for plot in report["plots"].as_array().expect("plots") {
        for axis in ["x", "y"] {
            assert!(plot[axis]["name"].as_str().is_some_and(|n| !n.is_empty()), "{plot}");
        }
        for series in plot["series"].as_array().expect("series") {
            let x: Vec<f64> = series["points"]
                .as_array()
                .expect("points")
                .iter()
                .map(|p| p["x"].as_f64().expect("x"))
                .collect();
            assert!(!x.is_empty() && x.windows(2).all(|pair| pair[0] < pair[1]), "{series}");
        }
    }
}

/// The lines of a CSV without its titles, each by its titles.
fn records(text: &str) -> Vec<std::collections::HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().expect("CSV")
}

/// A setting that an experiment may change.
fn pool() -> String {
    std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default()
}

#[test]
fn munmap_lists_what_will_it_scale_does() {
    let dir = tempfile::tempdir().unwrap();
    let text = good(dir.path(), &["munmap", "-t", "2", "-s", "1"]);
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("testcase:")).collect();
    assert_eq!(lines[0], "testcase:Anonymous memory mmap/munmap of 128MB");
    assert_eq!((lines[1], lines[8]), ("warmup", "measurement"));
    let numbers = |line: &str| -> Vec<u64> {
        let word = |word: &str| word.split_once(':').and_then(|(_, n)| n.parse().ok()).expect("name:number");
        line.split(' ').map(word).collect()
    };
    for line in lines[2..8].iter().chain([&lines[9]]) {
        let [min, max, total] = numbers(line)[..] else { panic!("{line}") };
        // Each is rounded.
        assert!(min <= max && total.abs_diff(min + max) <= 1 && total > 0, "{line}");
    }
    assert_eq!(numbers(lines[10])[0], numbers(lines[9])[2]);
}

#[test]
fn munmap_as_json_csv_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html").display().to_string();
    let args = ["munmap", "--quick", "--pages", "small", "--touch", "first"];
    let report = json(&good(dir.path(), &[&args[..], &["--json", "--html", &page]].concat()));
    check(&report, "munmap");
    assert_eq!(report["ended"], "complete");
    let cpus = report["machine"]["cpus"].as_u64().unwrap();
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    // One task and twice as many as there are CPUs, as processes and as threads.
    for kind in ["processes", "threads"] {
        for tasks in [1, 2 * cpus] {
            let row = rows.iter().find(|r| r[2] == kind && r[3].as_f64() == Some(tasks as f64));
            let rate = row.and_then(|r| r[4].as_f64());
            assert!(rate.is_some_and(|rate| rate > 10.0), "{kind}, {tasks}: {rows:?}");
        }
    }
    assert_eq!(report["plots"][0]["series"].as_array().map(Vec::len), Some(2));
    assert!(std::fs::read_to_string(&page).unwrap().contains("</svg>"));
    // It is kept as it was printed.
    let kept = std::fs::read_to_string(dir.path().join("hugelift/lab/munmap.json")).unwrap();
    assert_eq!(json(&kept), report);
    let records = records(&good(dir.path(), &["munmap", "-s", "1", "--csv"]));
    let average = &records[0];
    assert_eq!((average["experiment"].as_str(), average["tasks"].as_str()), ("munmap", "1"));
    assert!(average["cycles_per_second"].parse::<f64>().unwrap() > 10.0, "{average:?}");
    assert_eq!(records.iter().filter(|r| r["phase"] == "measurement").count(), 1);
}

#[test]
fn an_interrupt_shows_a_part_and_leaves_nothing_behind() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let before = pool();
    let mut child = command(dir.path(), &["munmap", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its tasks are running, and the pool is enlarged where it may be.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let deadline = Instant::now() + PATIENCE;
    let root = nix::unistd::geteuid().is_root();
    while std::fs::read_to_string(&children).unwrap_or_default().is_empty() || root && pool() == before {
        assert!(Instant::now() < deadline, "it does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs(5));
    let tasks = std::fs::read_to_string(&children).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let end = common::run::wait(&mut child, deadline).expect("it ends");
    let outcome = child.wait_with_output().unwrap();
    assert_eq!(end, End::Code(130), "{outcome:?}");
    let report = json(std::str::from_utf8(&outcome.stdout).unwrap());
    check(&report, "munmap");
    assert_eq!(report["ended"], "interrupted");
    assert!(!report["tables"][0]["rows"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(pool(), before);
    for task in tasks.split_whitespace() {
        assert!(!Path::new("/proc").join(task).exists(), "task {task} is left");
    }
    // A part does not take the place of a whole.
    assert!(!dir.path().join("hugelift").exists());
}

#[test]
fn what_cannot_be_done_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for (args, what) in [
        (&["nothing"][..], "unrecognized subcommand"),
        (&["munmap", "-t", "0"], "0 is not in 1..=1024"),
        (&["munmap", "--html", "/nonexistent/page.html"], "--html: there is no folder /nonexistent"),
        (&["all", "--html", "/nonexistent/page.html"], "--html: there is no folder /nonexistent"),
    ] {
        let out = lab(dir.path(), args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{args:?}: {out:?}");
        assert!(said.contains(what) && out.stdout.is_empty(), "{args:?}: {said}");
    }
}
