// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift compare --pid`: what it measures of a process that runs, and how it leaves it.

use crate::common::cache;
use crate::common::huge::{files, pieces};
use crate::common::run::{NO_STORE, PATIENCE, finished, until};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, find, fits};
use crate::{need, need_root};
use hugelift_linux::proc::turn::turn;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Short periods: these tests ask what is done, not how precise it is.
const PERIOD: &str = "60ms";
const SHORT: [&str; 4] = ["--backing", "thp", "--settle", "10ms"];
/// A counter that does not depend on pages: the clock.
const CLOCK: &str = "date +%s.%N";

/// Starts a program with megabytes of code and constants that it uses all the time.
fn busy() -> (PathBuf, Held) {
    let program = fat("hold").build();
    let held = Held::start_favoured(&Cmd::new([&program]).arg("serve"), &program);
    (program, held)
}

/// Runs `hugelift compare --pid` with these words.
fn compare(pid: u32, words: &[&str]) -> Outcome {
    let pid = pid.to_string();
    let command = Cmd::new([HUGELIFT, "compare", "--pid", &pid, "--period", PERIOD]);
    command.args(SHORT).args(words).patience(2 * PATIENCE).bare()
}

fn json(pid: u32, words: &[&str]) -> Value {
    let outcome = compare(pid, &[&["--json"], words].concat());
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{}", outcome.stdout);
    let comparison = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("compare", &comparison);
    comparison
}

/// Starts `hugelift compare --pid` with these words, without waiting for its end.
fn started(pid: u32, period: &str, words: &[&str]) -> Child {
    let mut command = Command::new(HUGELIFT);
    command.args(["compare", "--pid", &pid.to_string(), "--period", period]).args(SHORT).args(words);
    command
        .env("HUGELIFT_STORE", NO_STORE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("hugelift")
}

/// Returns the huge bytes of a program's code and constants in a process.
fn huge(pid: u32, program: &Path) -> u64 {
    pieces(pid, &[program.canonicalize().expect("it is there")]).iter().map(|piece| piece.huge).sum()
}

/// Returns the huge bytes of text and rodata in each period of a side.
fn of_periods(result: &Value, side: usize) -> Vec<u64> {
    let runs = result["sides"][side]["runs"].as_array().expect("runs");
    let bytes = |run: &Value, part: &str| run["memory"][part]["huge"].as_u64().expect("bytes");
    runs.iter().map(|run| bytes(run, "text") + bytes(run, "rodata")).collect()
}

/// Asserts that it is refused with one line that has these words, and exit status 125.
fn refused(outcome: &Outcome, words: &[&str]) {
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(125), ""), "{outcome:?}");
    assert_eq!((outcome.own_lines().len(), outcome.other_lines().as_str()), (1, ""), "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
    }
}

#[test]
fn issue_34_6_counters_of_a_process_that_runs() {
    let (_, held) = busy();
    let result = json(held.pid(), &["--pairs", "6", "--metric", CLOCK, "--counters"]);
    assert_eq!(
        (&result["counters"]["per"], &result["counters"]["names"][0]),
        (&"second".into(), &"bare".into())
    );
    let rows = result["counters"]["rows"].as_array().expect("rows");
    let switches = rows.iter().find(|row| row["key"] == "context_switches").expect("the kernel counts them");
    assert!(switches["values"].as_array().expect("values").iter().all(Value::is_number), "{switches}");
    // Each switch maps other pages under the code in use, or a timer interrupts it: something is counted on both sides.
    for side in 0..2 {
        let sum: f64 = rows.iter().filter_map(|row| row["values"][side].as_f64()).sum();
        assert!(sum > 0.0, "{rows:?}");
    }
    let outcome = compare(held.pid(), &["--pairs", "6", "--metric", CLOCK, "--counters"]);
    assert!(outcome.stdout.contains("\nof one second "), "{}", outcome.stdout);
}

#[test]
fn a_clock_runs_alike_in_both_states_and_the_process_is_left_as_it_was() {
    let (program, held) = busy();
    let before = files(held.pid());
    let words = ["--pairs", "10", "--seed", "3", "--metric", CLOCK];
    let result = json(held.pid(), &words);
    assert_eq!(files(held.pid()), before);
    assert_eq!(huge(held.pid(), &program), 0);
    assert_eq!(
        (&result["figure"], &result["live"]["found"], &result["live"]["left"]),
        (&"rate".into(), &"bare".into(), &"bare".into())
    );
    // The clock advances by a second each second. What date(1) has read is of a moment while it ran.
    let runs = [0, 1].iter().flat_map(|side| result["sides"][side]["runs"].as_array().expect("runs"));
    for run in runs {
        let [rate, wall, error] = ["metric", "wall", "wall_error"].map(|key| run[key].as_f64().expect(key));
        // A millisecond is for a clock that is being adjusted.
        assert!((rate * wall - wall).abs() <= error + 1e-3, "{run}");
        assert!(wall >= 0.06, "{run}");
    }
    let (bare, lifted) = (of_periods(&result, 0), of_periods(&result, 1));
    assert_eq!((bare.len(), lifted.len()), (10, 10));
    // Libraries may be huge in the page cache, in both states.
    let most = bare.iter().max().expect("a period");
    assert!(lifted.iter().all(|bytes| *bytes >= most + (8 << 20)), "{bare:?} {lifted:?}");
    // Within a pair each state has one period, and both orders occur.
    let positions = |result: &Value, side: usize| -> Vec<u64> {
        let runs = result["sides"][side]["runs"].as_array().expect("runs");
        runs.iter().map(|run| run["position"].as_u64().expect("a position")).collect()
    };
    let (first, second) = (positions(&result, 0), positions(&result, 1));
    assert!(first.iter().zip(&second).all(|(a, b)| a + b == 3), "{first:?} {second:?}");
    assert!(first.contains(&1) && first.contains(&2), "{first:?}");
    assert_eq!(positions(&json(held.pid(), &words), 0), first, "the same seed gives the same orders");
    assert_eq!(held.finish().end, End::Code(0));
}

#[test]
fn the_text_says_what_was_measured_what_it_cost_and_how_it_is_left() {
    let (_, held) = busy();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let page = file.path().display().to_string();
    let outcome = compare(held.pid(), &["--pairs", "6", "--cpu-per", CLOCK, "--html", &page]);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{}", outcome.stdout);
    for words in [
        "CPU time per unit of work",
        "6 pairs, with 95 % interval",
        "less is better",
        "The first lift took ",
        "A thread was stopped ",
        "is left bare",
        "\nlifted",
    ] {
        assert!(outcome.stdout.contains(words), "no {words:?} in {}", outcome.stdout);
    }
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(
        html.contains("class=\"pair\"") && html.contains("lifted and restored in random order"),
        "{html}"
    );
}

#[test]
fn a_lifted_process_is_left_lifted_unless_bare_is_asked_for() {
    need_root!();
    let (program, held) = busy();
    let before = files(held.pid());
    let pid = held.pid().to_string();
    let attached = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp", &pid]).bare();
    assert_eq!(attached.end, End::Code(0), "{attached:?}");
    let lifted = huge(held.pid(), &program);
    assert!(lifted >= 8 << 20, "{lifted}");

    let result = json(held.pid(), &["--pairs", "6"]);
    assert_eq!(result["live"]["found"], "lifted");
    assert!(of_periods(&result, 0).iter().max() < of_periods(&result, 1).iter().min(), "{result}");
    assert_eq!(huge(held.pid(), &program), lifted);

    json(held.pid(), &["--pairs", "6", "--leave", "bare"]);
    assert_eq!((huge(held.pid(), &program), files(held.pid())), (0, before.clone()));
    json(held.pid(), &["--pairs", "6", "--leave", "lifted"]);
    assert_eq!(huge(held.pid(), &program), lifted);
}

/// Also in the first lift, and while a metric runs that ignores SIGTERM.
#[test]
fn an_interrupt_leaves_the_process_as_it_was() {
    let (_, held) = busy();
    let before = files(held.pid());
    let stubborn = "trap '' TERM; echo 1; sleep 0.3";
    for (after, metric) in [(30, CLOCK), (150, CLOCK), (400, CLOCK), (700, CLOCK), (500, stubborn)] {
        let child = started(held.pid(), PERIOD, &["--pairs", "1000", "--metric", metric]);
        std::thread::sleep(Duration::from_millis(after));
        let signal = if after == 400 { Signal::SIGTERM } else { Signal::SIGINT };
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("kill");
        let outcome = finished(child);
        // A signal may come before there is a handler for it.
        if outcome.end == End::Code(130) {
            // There was a pair already, which is printed.
            assert!(outcome.stderr.contains("interrupted"), "{outcome:?}");
        } else if outcome.end != End::Signal(signal as i32) {
            refused(&outcome, &["interrupted", "left bare", &held.pid().to_string()]);
        }
        assert_eq!(files(held.pid()), before, "{after} ms: {outcome:?}");
    }
    assert_eq!(held.finish().end, End::Code(0));
}

/// A later one would take the copies of the first for what it has found, and leave them. A lift or a restoring would change what is
/// compared.
#[test]
fn during_a_comparison_no_other_command_changes_the_process() {
    let (program, held) = busy();
    let before = files(held.pid());
    let first = started(held.pid(), PERIOD, &["--pairs", "1000", "--metric", CLOCK]);
    until("the first lift", || huge(held.pid(), &program) > 0);
    refused(&compare(held.pid(), &[]), &["another hugelift compares or changes it just now", "fuser -v"]);
    for verb in ["attach", "restore"] {
        let change = Cmd::new([HUGELIFT, verb, &held.pid().to_string()]).bare();
        refused(&change, &["another hugelift compares it just now", "fuser -v"]);
    }
    kill(Pid::from_raw(first.id().cast_signed()), Signal::SIGINT).expect("kill");
    let first = finished(first);
    assert_ne!(first.end, End::Code(0), "{first:?}");
    assert_eq!(files(held.pid()), before, "{first:?}");
    // As if it were compared, and not switched: a dry run changes nothing. A watch waits for the end.
    let comparison = turn(held.pid()).expect("its maps");
    assert!(comparison.is_some());
    let preview = Cmd::new([HUGELIFT, "attach", "--dry-run", &held.pid().to_string()]).bare();
    assert_eq!(preview.end, End::Code(0), "{preview:?}");
    let mut watch = Command::new(HUGELIFT);
    watch.args(["attach", "--watch", "--eager", "--backing", "thp", &held.pid().to_string()]);
    let mut watch = watch.stdout(Stdio::null()).spawn().expect("hugelift");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(files(held.pid()), before, "a watch has lifted it");
    drop(comparison);
    until("the lift of the watch", || huge(held.pid(), &program) > 0);
    kill(Pid::from_raw(watch.id().cast_signed()), Signal::SIGINT).expect("kill");
    watch.wait().expect("wait");
    assert_eq!(held.finish().end, End::Code(0));
}

/// hugelift blocks some for its own threads.
#[test]
fn a_metric_finds_no_signal_blocked() {
    let (_, held) = busy();
    let metric = format!("grep -q 'SigBlk:.0*$' /proc/self/status && {CLOCK}");
    json(held.pid(), &["--pairs", "6", "--metric", &metric]);
    assert_eq!(held.finish().end, End::Code(0));
}

#[test]
fn a_metric_that_is_none_gives_one_line() {
    let (_, held) = busy();
    let before = files(held.pid());
    for (metric, says) in [
        ("echo many", "printed 'many', which is not one number"),
        ("echo 5 6", "'5 6'"),
        ("printf '\\033[2J'", "\\x1b[2J"),
        ("true", "printed nothing"),
        ("echo oh >&2; exit 3", "ended with exit status: 3: oh"),
        ("no-such-command-here", "not found"),
        ("echo 5", "stayed 5 for"),
        ("echo $((-$(date +%s%N)))", "fell from"),
    ] {
        refused(&compare(held.pid(), &["--metric", metric]), &[says, "left bare, as it was found"]);
        assert_eq!(files(held.pid()), before, "{metric}");
    }
    let gauge = ["--metric-kind", "gauge", "--metric", "echo 0"];
    refused(&compare(held.pid(), &gauge), &["printed 0", "above 0"]);
    let result = json(held.pid(), &["--pairs", "6", "--metric-kind", "gauge", "--metric", "echo 7"]);
    assert_eq!(result["variants"][0]["verdict"], "no-difference", "all values are 7");
}

#[test]
fn what_cannot_be_undone_or_lifted_is_refused() {
    let (_, held) = busy();
    let before = files(held.pid());
    for (words, says) in [
        (&["--backing", "pagecache"][..], "cannot undo it"),
        (&["--parts", "text,heap"], "--parts heap"),
        (&["--higher-is-better"], "--metric-kind gauge"),
        (&["--metric-kind", "gauge"], "--metric"),
        (&["--variant", "thp"], "--variant"),
        (&["--", "true"], "--pid"),
    ] {
        let pid = held.pid().to_string();
        let outcome = Cmd::new([HUGELIFT, "compare", "--pid", &pid]).args(words).bare();
        refused(&outcome, &[says]);
    }
    // Without --pid they mean nothing.
    let server = ["--server", "true", "--ready", "1", "--load", "true", "--metric", "x"];
    for words in [&["--period", "1s", "true"][..], &["--metric", "x", "true"], &["--backing", "thp", "true"]]
    {
        refused(&Cmd::new([HUGELIFT, "compare"]).args(words).bare(), &["cannot be used with", words[0]]);
    }
    refused(
        &Cmd::new([HUGELIFT, "compare", "--leave", "bare"]).args(server).bare(),
        &["cannot be used with"],
    );
    for nothing in [&["--exclude", "*"][..], &["--object", "none*", "--seccomp", "try"]] {
        refused(&compare(held.pid(), nothing), &["nothing to compare", "left bare"]);
    }
    let signal = |signal| kill(Pid::from_raw(held.pid().cast_signed()), signal).expect("kill");
    signal(Signal::SIGSTOP);
    while !held.proc("stat").contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    refused(&compare(held.pid(), &[]), &["not lifted", "SIGCONT", "left bare"]);
    signal(Signal::SIGCONT);
    assert_eq!(files(held.pid()), before);
    let mut gone = Cmd::new(["true"]).command(None).spawn().expect("true");
    gone.wait().expect("its end");
    refused(&compare(gone.id(), &[]), &["no process"]);
}

#[test]
fn a_process_that_ends_gives_what_was_measured_until_then() {
    let (_, held) = busy();
    let dir = tempfile::tempdir().expect("a folder");
    let read = dir.path().join("read");
    // The file grows by a byte each time the clock is read, which is at both ends of each period.
    let clock = format!("echo >> {}; {CLOCK}", read.display());
    let child = started(held.pid(), PERIOD, &["--pairs", "100000", "--cpu-per", &clock]);
    until("two pairs", || read.metadata().is_ok_and(|meta| meta.len() >= 10));
    assert_eq!(held.finish().end, End::Code(0));
    let outcome = finished(child);
    assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(0), 1), "{outcome:?}");
    assert!(outcome.stderr.contains("has ended") && outcome.stdout.contains("lifted"), "{outcome:?}");

    let (program, held) = busy();
    let child = started(held.pid(), "1m", &[]);
    until("the first lift", || huge(held.pid(), &program) > 0);
    assert_eq!(held.finish().end, End::Code(0));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("kill");
    let outcome = finished(child);
    refused(&outcome, &[]);
    assert!(outcome.stderr.contains("interrupted") || outcome.stderr.contains("too little"), "{outcome:?}");
}

/// A server with a JIT compiler and many threads: node counts what it does in a file.
#[test]
fn node_goes_on_working() {
    need!("node");
    // Other tests prime the page cache of node itself, which is huge in the bare periods too then.
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on the disk");
    let node = own.path().join("node");
    cache::copy(find("node").expect("node").canonicalize().expect("node"), &node);
    // In memory: on a disk that others write to, a rename may take as long as a period.
    let dir = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let file = dir.path().join("count");
    let script = "let n = 0, stop = false; process.stdin.on('end', () => { stop = true }).resume();\n\
        const fs = require('fs'), file = process.argv[1], work = () => {\n\
        for (let i = 0; i < 500; i++) { JSON.parse(JSON.stringify({ a: [i, 'x'.repeat(i)] })); n++ }\n\
        fs.writeFileSync(file + '~', String(n)); fs.renameSync(file + '~', file);\n\
        if (stop) console.log('done'); else setImmediate(work) }; work()";
    let held = Held::start_busy(&Cmd::new([&node]).args(["-e", script]).arg(&file), None, &node);
    // V8 maps a part of its code a second time when it starts.
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < deadline, "node does not begin to work");
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = files(held.pid());
    let count = format!("cat {}", file.display());
    let words = ["--pairs", "6", "--period", "500ms", "--settle", "20ms", "--cpu-per", &count];
    let pid = held.pid().to_string();
    let command = Cmd::new([HUGELIFT, "compare", "--pid", &pid, "--backing", "thp", "--json"]).args(words);
    let outcome = command.patience(2 * PATIENCE).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert!(of_periods(&result, 0).iter().max() < of_periods(&result, 1).iter().min(), "{result}");
    assert_eq!(files(held.pid()), before);
    assert_eq!(held.finish().stdout, "done\n");
}
