// SPDX-License-Identifier: Apache-2.0
//! Tests of comparisons that end too soon, or cannot be made: what was measured is printed, and a process is left as it
//! is said to be.

use crate::common::favoured::Favoured;
use crate::common::huge::{files, pieces};
use crate::common::run::{NO_STORE, finished, until};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, fits};
use crate::need_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Starts a program that works, with these words.
fn working(words: &[&str]) -> (PathBuf, Held) {
    let program = fat("works").build();
    let held = started_busy(&program, words);
    (program, held)
}

fn started_busy(program: &Path, words: &[&str]) -> Held {
    Held::start_favoured(&Cmd::new([program]).args(words), program)
}

/// Starts `hugelift compare` with these words and this store.
fn started(store: &str, words: &[&str]) -> Child {
    let mut command = Command::new(HUGELIFT);
    command.arg("compare").args(words).env("HUGELIFT_STORE", store);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift")
}

/// Starts one of a process, in short periods. `count` is a file: its size is the counter, and grows by a byte a period.
fn of_process(pid: u32, backing: &str, store: &str, count: &Path, more: &[&str]) -> Child {
    let counter = format!("echo >> {0}; stat -c %s {0}", count.display());
    let pid = pid.to_string();
    let words = [
        "--json",
        "--pid",
        &pid,
        "--backing",
        backing,
        "--period",
        "60ms",
        "--settle",
        "5ms",
        "--metric",
        &counter,
    ];
    started(store, &[&words, more].concat())
}

/// Waits until so many periods have begun.
fn periods(count: &Path, many: u64) {
    until("the periods", || count.metadata().is_ok_and(|meta| meta.len() >= 2 * many));
}

/// Asserts that it ends so, with one line that has these words, and with the pairs that it has. Returns the comparison.
fn cut(outcome: &Outcome, status: i32, reached: &str, says: &[&str]) -> Value {
    assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(status), 1), "{outcome:?}");
    let result: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    fits("compare", &result);
    assert_eq!(result["reached"], reached, "{outcome:?}");
    let runs = |side: usize| result["sides"][side]["runs"].as_array().expect("runs").len();
    assert!(runs(0) == runs(1) && runs(0) > 0, "{result}");
    let pairs = if runs(0) == 1 { "the pair".into() } else { format!("the {} pairs", runs(0)) };
    for word in [says, &[pairs.as_str()]].concat() {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
    }
    result
}

/// Returns the huge bytes of a program's code and constants in a process.
fn huge(pid: u32, program: &Path) -> u64 {
    pieces(pid, &[program.canonicalize().expect("it is there")]).iter().map(|piece| piece.huge).sum()
}

fn attached(pid: u32, backing: &str) {
    let outcome = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", backing, &pid.to_string()]).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
}

#[test]
fn issue_29_b6_a_counter_that_stands_still_costs_one_pair() {
    let (_, held) = working(&[]);
    let (before, dir) = (files(held.pid()), TempDir::new().expect("a folder"));
    let count = dir.path().join("count");
    let still = format!(
        "s=$(stat -c %s {0} 2>/dev/null || echo 0); [ $s -ge 20 ] || echo >> {0}; echo $s",
        count.display()
    );
    let pid = held.pid().to_string();
    let words = ["--json", "--pid", &pid, "--backing", "thp", "--period", "60ms", "--settle", "5ms"];
    let child = started(NO_STORE, &[&words[..], &["--metric", &still, "--pairs", "1000"]].concat());
    cut(&finished(child), 0, "no-work", &["stayed 20 for"]);
    assert_eq!(files(held.pid()), before);
}

/// A process that waits for a CPU on a busy machine does no work in a short period.
#[test]
fn issue_31_6_a_moment_without_work_does_not_end_the_experiment() {
    let (_, held) = working(&[]);
    let dir = TempDir::new().expect("a folder");
    // The file grows by two bytes a reading. The number stays the same from the 20th byte to the 30th.
    let count = format!(
        "echo x >> {0}; s=$(stat -c %s {0}); [ $s -lt 20 ] && echo $s || {{ [ $s -lt 30 ] && echo 20 || echo $s; }}",
        dir.path().join("count").display()
    );
    let pid = held.pid().to_string();
    let words = ["--json", "--pid", &pid, "--backing", "thp", "--period", "60ms", "--settle", "5ms"];
    let child = started(NO_STORE, &[&words[..], &["--metric", &count, "--pairs", "8"]].concat());
    let outcome = finished(child);
    assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{}", outcome.stdout);
    let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(result["reached"], "pairs", "{result}");
    assert_eq!(result["sides"][0]["runs"].as_array().map(Vec::len), Some(8), "{result}");
}

#[test]
fn issue_29_b6_a_load_that_ends_leaves_the_result() {
    let (_, mut held) = working(&[]);
    let (before, dir) = (files(held.pid()), TempDir::new().expect("a folder"));
    let count = dir.path().join("count");
    let child = of_process(held.pid(), "thp", NO_STORE, &count, &["--pairs", "1000"]);
    periods(&count, 8);
    held.write(b"r");
    cut(&finished(child), 0, "no-work", &["used no CPU time"]);
    assert_eq!(files(held.pid()), before);
    assert_eq!(held.finish().end, End::Code(0));
}

#[test]
fn issue_29_b6_ctrl_c_prints_what_was_measured() {
    let (_, held) = working(&[]);
    let (before, dir) = (files(held.pid()), TempDir::new().expect("a folder"));
    let count = dir.path().join("count");
    let interrupt =
        |child: &Child| kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("kill");
    let child = of_process(held.pid(), "thp", NO_STORE, &count, &["--pairs", "1000", "--leave", "lifted"]);
    periods(&count, 8);
    interrupt(&child);
    cut(&finished(child), 130, "interrupted", &["interrupted", &held.pid().to_string()]);
    assert_eq!(files(held.pid()), before, "after ctrl-C it is as it was found");
    assert_eq!(held.finish().end, End::Code(0));

    // A command, and what cleans up after it.
    let [runs, cleaned] = ["runs", "cleaned"].map(|name| dir.path().join(name));
    let (prepare, cleanup) =
        (format!("echo >> {}", runs.display()), format!("sleep 0.1; touch {}", cleaned.display()));
    let words = ["--json", "--force", "--prepare", &prepare, "--cleanup", &cleanup, "--pairs", "100000"];
    let child = started(NO_STORE, &[&words[..], &["--", "/bin/true"]].concat());
    until("some rounds", || runs.metadata().is_ok_and(|meta| meta.len() > 12));
    interrupt(&child);
    cut(&finished(child), 130, "interrupted", &["interrupted"]);
    assert!(cleaned.exists(), "--cleanup is run to its end");
}

#[test]
fn issue_29_b6_a_run_that_fails_leaves_the_result_of_those_before() {
    let dir = TempDir::new().expect("a folder");
    let runs = dir.path().join("runs");
    let script = format!("echo >> {0}; [ $(stat -c %s {0}) -lt 12 ]", runs.display());
    let child = started(NO_STORE, &["--json", "--force", "--pairs", "100", "--", "sh", "-c", &script]);
    cut(&finished(child), 125, "failed", &["ended with exit status: 1"]);

    let (_, held) = working(&[]);
    let pid = held.pid().to_string();
    let metric = format!("echo >> {0}; s=$(stat -c %s {0}); [ $s -lt 40 ] && echo $s", runs.display());
    let words = [
        "--json",
        "--pid",
        &pid,
        "--backing",
        "thp",
        "--period",
        "60ms",
        "--settle",
        "5ms",
        "--leave",
        "lifted",
    ];
    let before = files(held.pid());
    let child = started(NO_STORE, &[&words[..], &["--metric", &metric, "--pairs", "100"]].concat());
    cut(&finished(child), 125, "failed", &["exit status: 1"]);
    assert_eq!(files(held.pid()), before, "after a failure it is as it was found");
}

#[test]
fn issue_29_b6_a_lift_that_cannot_be_made_again_is_not_taken_away() {
    let program = fat("works").build();
    let (_, held) = working(&[]);
    let pid = held.pid();
    attached(pid, "thp");
    let (lifted, before) = (huge(pid, &program), files(pid));
    assert!(lifted >= 8 << 20, "{lifted}");
    // There is no store here.
    for more in [&["--exclude", "*"][..], &["--parts", "rodata"], &["--backing", "shared"]] {
        let words = ["--pid", &pid.to_string(), "--pairs", "6", "--period", "60ms"];
        let outcome = finished(started(NO_STORE, &[&words[..], more].concat()));
        assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(125), 1), "{outcome:?}");
        for word in ["could not be made again", "is left lifted", &format!("hugelift restore {pid}")] {
            assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
        }
        assert_eq!((huge(pid, &program), files(pid)), (lifted, before.clone()), "{more:?}");
    }
}

/// The store is gone in the middle of the experiment: what was lifted before cannot be lifted again.
#[test]
fn issue_29_b6_a_state_that_was_not_reached_is_not_claimed() {
    // At fixed addresses: other processes can have the same huge pages.
    let program = fat("works").flags(&["-no-pie"]).build();
    let held = started_busy(&program, &[]);
    let dir = TempDir::new_in("/dev/shm").expect("/dev/shm");
    let (store, count) = (dir.path().join("store"), dir.path().join("count"));
    let child = of_process(
        held.pid(),
        "shared",
        &store.display().to_string(),
        &count,
        &["--pairs", "1000", "--leave", "lifted"],
    );
    periods(&count, 8);
    std::fs::rename(&store, dir.path().join("gone")).expect("the store");
    std::fs::write(&store, "").expect("no store");
    let result = cut(&finished(child), 125, "failed", &["lifted"]);
    let left = if huge(held.pid(), &program) > 0 { "lifted" } else { "bare" };
    assert_eq!(result["live"]["left"], left);
    assert_eq!(held.finish().end, End::Code(0));
}

#[test]
fn issue_29_b6_of_a_server_that_forks_the_parent_is_not_measured_alone() {
    need_root!();
    let refused = |words: &[&str], says: &[&str]| {
        let (_, held) = working(words);
        let (before, pid) = (files(held.pid()), held.pid().to_string());
        let words = ["--pid", &pid, "--backing", "thp", "--pairs", "6"];
        let outcome = finished(started(NO_STORE, &words));
        assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(125), 1), "{outcome:?}");
        for word in [says, &["its children used"]].concat() {
            assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
        }
        assert_eq!(files(held.pid()), before);
        (outcome.stderr, held)
    };
    refused(&["short"], &["--server CMD"]);
    let (said, _held) = refused(&["children", "2"], &["measures the busiest"]);
    // The command that it names is the one that helps.
    let child = said.split("--pid ").last().and_then(|rest| rest.split('\'').next()).expect("a process");
    let words = ["--json", "--pid", child, "--backing", "thp", "--pairs", "6", "--period", "100ms"];
    let favoured = Favoured::take();
    favoured.favour(child.parse().expect("a process id"));
    let outcome = finished(started(NO_STORE, &[&words[..], &["--settle", "20ms"]].concat()));
    let result: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    assert_ne!(result["variants"][0]["verdict"], "not-switched", "{result}");
}

/// As under nohup(1): what is ignored does not end it.
#[test]
fn an_ignored_signal_does_not_end_it() {
    use crate::common::run::{PATIENCE, has_signal, wait};
    let mut command = Command::new("env");
    command.args([
        "--ignore-signal=HUP",
        HUGELIFT,
        "compare",
        "--force",
        "--pairs",
        "6",
        "--",
        "sleep",
        "0.1",
    ]);
    command
        .env("HUGELIFT_STORE", NO_STORE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("env");
    until("it has seen to its signals", || has_signal(child.id(), "SigCgt", Signal::SIGTERM));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGHUP).expect("kill");
    let end = wait(&mut child, std::time::Instant::now() + PATIENCE);
    let out = child.wait_with_output().expect("its output");
    assert_eq!(end, Some(End::Code(0)), "{out:?}");
}
