// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift compare --pid` without a counter: what it takes for the work of a process.

use crate::common::huge::{files, pieces};
use crate::common::run::{NO_STORE, PATIENCE};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, fits};
use crate::{need, need_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Starts the program that works in this way.
fn working(way: &str) -> Held {
    let program = fat("hold").build();
    Held::start_favoured(&Cmd::new([&program]).arg(way), &program)
}

fn compare(held: &Held, words: &[&str]) -> Outcome {
    let pid = held.pid().to_string();
    let all = [HUGELIFT, "compare", "--pid", &pid, "--pairs", "6", "--period", "60ms", "--settle", "10ms"];
    let command = Cmd::new(all).args(["--backing", "thp"]).args(words).env("HUGELIFT_STORE", NO_STORE);
    command.patience(2 * PATIENCE).bare()
}

fn json(held: &Held) -> Value {
    let outcome = compare(held, &["--json"]);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{}", outcome.stdout);
    let result = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("compare", &result);
    result
}

/// Its counters need the right to use tracepoints.
#[test]
fn issue_31_6_without_a_counter_the_verdict_is_on_cpu_time_per_system_call() {
    need_root!();
    let held = working("serve");
    let result = json(&held);
    let metric = &result["live"]["metric"];
    assert_eq!(
        (&metric["kind"], &metric["work"]),
        (&"cpu-per-work".into(), &"system-calls".into()),
        "{metric}"
    );
    assert_eq!(result["figure"], "cpu-per-unit");
    for side in [0, 1] {
        for run in result["sides"][side]["runs"].as_array().expect("runs") {
            let [per_second, calls, per_call] =
                ["cpu_per_second", "metric", "server_cpu"].map(|key| run[key].as_f64().expect("a number"));
            assert!(calls > 20.0, "{run}");
            // All three are of the same period.
            assert!((per_second / calls / per_call - 1.0).abs() < 1e-6, "{run}");
        }
    }
    let text = compare(&held, &[]);
    assert_eq!((text.end, text.stderr.as_str()), (End::Code(0), ""), "{}", text.stdout);
    for words in ["CPU time per system call: less is better", "the mix of work was alike"] {
        assert!(text.stdout.contains(words), "no {words:?} in {}", text.stdout);
    }
    assert_eq!(held.finish().end, End::Code(0));
}

/// Before the first pair it is observed in both states.
#[test]
fn issue_31_6_a_process_that_ends_while_it_is_observed_is_too_little() {
    let held = working("serve");
    let pid = held.pid().to_string();
    let words = [HUGELIFT, "compare", "--pid", &pid, "--settle", "1h", "--backing", "thp"];
    let mut command = Cmd::new(words).env("HUGELIFT_STORE", NO_STORE).command(None);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
    // It is lifted once, and then waits for an hour.
    let (program, deadline) = (fat("hold").build(), Instant::now() + PATIENCE);
    let program = program.canonicalize().expect("it is there");
    while pieces(held.pid(), std::slice::from_ref(&program)).iter().all(|piece| piece.huge == 0) {
        assert!(Instant::now() < deadline, "waited for the first lift");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(held.finish().end, End::Code(0));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("kill");
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(
        (output.status.code(), said.lines().count(), &*output.stdout),
        (Some(125), 1, &b""[..]),
        "{said}"
    );
    assert!(said.contains("interrupted") || said.contains("too little"), "{said}");
}

#[test]
fn issue_31_6_a_process_without_steady_work_is_compared_by_its_cpu_time_and_the_reason_is_said() {
    need_root!();
    let held = working("spin");
    let result = json(&held);
    let metric = &result["live"]["metric"];
    assert_eq!((&metric["kind"], &result["figure"]), (&"cpu".into(), &"cpu-per-second".into()), "{metric}");
    let why = metric["why"].as_str().expect("a reason");
    assert!(why.contains("CPU time per system call: "), "{why}");
    assert_eq!(held.finish().end, End::Code(0));
}

/// Whatever its speed, a loop uses a whole CPU: no verdict can be on that.
#[test]
fn issue_31_6_a_process_that_never_waits_has_no_verdict_by_its_cpu_time() {
    let held = working("burn");
    let before = files(held.pid());
    let outcome = compare(&held, &["--json"]);
    assert_eq!((outcome.end, &*outcome.stdout), (End::Code(125), ""), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    for words in ["it never waits", "(CPU time per system call: ", "--cpu-per CMD", "it is left bare"] {
        assert!(outcome.stderr.contains(words), "no {words:?} in {}", outcome.stderr);
    }
    assert_eq!(files(held.pid()), before);
    assert_eq!(held.finish().end, End::Code(0));
}

/// The scheduler takes the CPU from a loop that shares it, at steady intervals, which say nothing of the loop's work.
#[test]
fn issue_31_6_switches_that_the_scheduler_forces_are_no_work() {
    need!("taskset");
    let program = fat("hold").build();
    let on_one_cpu = ["taskset", "--cpu-list", "0"];
    let held = Held::start_busy(&Cmd::new(on_one_cpu).arg(&program).arg("burn"), None, &program);
    let beside = Cmd::new(on_one_cpu).args(["sh", "-c", "while :; do :; done"]);
    let mut beside = beside.command(None).stdin(Stdio::null()).spawn().expect("a shell");
    let outcome = compare(&held, &[]);
    beside.kill().expect("kill");
    beside.wait().expect("wait");
    assert_eq!((outcome.end, &*outcome.stdout), (End::Code(125), ""), "{}", outcome.stderr);
    for words in ["it never waits", "CPU time per voluntary context switch: only 0 in one of the periods"] {
        assert!(outcome.stderr.contains(words), "no {words:?} in {}", outcome.stderr);
    }
    assert_eq!(held.finish().end, End::Code(0));
}

/// Few containers, and not every machine, have tracefs mounted.
#[test]
fn issue_31_6_system_calls_are_counted_where_no_tracefs_is_mounted() {
    need_root!();
    let held = working("serve");
    let pid = held.pid().to_string();
    let hidden = "umount -l /sys/kernel/tracing /sys/kernel/debug 2>/dev/null; test ! -e /sys/kernel/tracing/events && \
                  test ! -e /sys/kernel/debug/tracing/events && exec \"$@\"";
    let compare =
        [HUGELIFT, "compare", "--pid", &pid, "--pairs", "6", "--period", "60ms", "--settle", "10ms"];
    let command = Cmd::new(["unshare", "--mount", "sh", "-c", hidden, "sh"]).args(compare);
    let outcome = command.args(["--backing", "thp", "--json"]).env("HUGELIFT_STORE", NO_STORE);
    let outcome = outcome.patience(2 * PATIENCE).bare();
    assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{}", outcome.stdout);
    let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(result["live"]["metric"]["work"], "system-calls", "{}", result["live"]["metric"]);
    assert_eq!(held.finish().end, End::Code(0));
}
