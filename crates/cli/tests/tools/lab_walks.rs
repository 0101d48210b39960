// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift lab walks`: a program whose walks are known, recorded traces, and what a traced program keeps.

use crate::common::{Cmd, End, HUGELIFT, Outcome, fits, plain};
use crate::need;
use serde_json::Value;
use std::fs;

/// Pages of code that are called, and how often each is. They do not fit into the 512 entries of a Zen 3, and fit into the 2048
/// of a Zen 5 and into the 1536 that code and data share on a Skylake.
const PAGES: u64 = 1024;
const ROUNDS: u64 = 40;
/// More walks than the start and the end of a small program need.
const FEW: u64 = 4000;

fn walks(options: &[&str]) -> Cmd {
    Cmd::new([HUGELIFT, "lab", "walks"]).args(options)
}

/// Returns the JSON of a run, which is the only line of `text`.
fn json(text: &str, outcome: &Outcome) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    fits("lab-walks", &value);
    value
}

/// Returns the walks of one side of a CPU with one layout.
fn count(report: &Value, cpu: &str, pages: &str, side: &str) -> u64 {
    let of = |all: &Value, key: &str, name: &str| {
        let found = all.as_array().expect("a list").iter().find(|one| one[key] == name);
        found.unwrap_or_else(|| panic!("no {name}: {all}")).clone()
    };
    let layouts = of(&report["cpus"], "cpu", cpu)["layouts"].clone();
    of(&layouts, "pages", pages)[side]["walks"].as_u64().expect("a number")
}

#[test]
fn each_jump_is_a_walk_where_the_code_does_not_fit() {
    need!("valgrind");
    let program = plain("jumps").build();
    let numbers = ["1024".to_string(), PAGES.to_string(), ROUNDS.to_string()];
    let outcome = walks(&["--on", "zen-3,skylake-sp,zen-5", "--json", "--"])
        .arg(&program)
        .args(&numbers)
        .stdin("kept\n")
        .bare();
    // The program has its own files and its own status.
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(7), "kept\n"), "{outcome:?}");
    let report = json(&outcome.stderr, &outcome);
    assert_eq!((&report["code"], &report["complete"]), (&"mapped".into(), &true.into()));
    let jumps = PAGES * ROUNDS;
    let zen = count(&report, "zen-3", "small", "code");
    assert!((jumps - PAGES..jumps + FEW).contains(&zen), "{zen} of {jumps}: {report}");
    // As blocks of 64 kB in entries of 16 kB, and as pages of 2 MB, they fit.
    for (cpu, pages) in [
        ("zen-3", "code-64k"),
        ("zen-3", "code-2m"),
        ("zen-3", "all-2m"),
        ("skylake-sp", "small"),
        ("zen-5", "small"),
    ] {
        let walks = count(&report, cpu, pages, "code");
        assert!(walks < FEW, "{cpu} {pages}: {walks} of {jumps}: {report}");
    }
    let pages = |name: &str| report["pages"][name].as_u64().expect("a number");
    assert!((PAGES..PAGES + 400).contains(&pages("code")), "{report}");
    // All pages that are called lie in whole huge pages.
    assert!(pages("code_in_2m") >= PAGES && pages("code_in_64k") >= pages("code_in_2m"), "{report}");
}

#[test]
fn a_window_is_printed_and_the_program_goes_on() {
    need!("valgrind");
    let program = plain("jumps").build();
    let traced = |options: &[&str], more: &[&str]| {
        walks(options).arg(&program).args(["1024", "600", "60"]).args(more).stdin("x").bare()
    };
    let options = ["--on", "zen-3", "--skip", "200k", "--window", "20000", "--contiguous", "--json", "--"];
    let outcome = traced(&options, &[]);
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(7), "x"), "{outcome:?}");
    let report = json(&outcome.stderr, &outcome);
    let number = |name: &str| report[name].as_u64().expect("a number");
    assert_eq!((number("instructions"), number("skipped")), (20_000, 200_000));
    assert_eq!((&report["adjacent"], &report["complete"]), (&true.into(), &true.into()));
    // Four pages in an entry: 600 pages fit.
    assert!(count(&report, "zen-3", "small", "code") < 100, "{report}");

    // It ends before the window begins, by a signal.
    let outcome = traced(&["--on", "zen-3", "--skip", "9G", "--window", "1M", "--"], &["by a signal"]);
    assert_eq!(outcome.end, End::Signal(15), "{outcome:?}");
    assert!(
        outcome.stderr.contains("\n0 instructions, ")
            && outcome.stderr.contains("note: the trace ended before")
    );
}

#[test]
fn a_recorded_trace() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace");
    let page = |n: u64| format!("I  {:08x},4\n L 1ffefff{:03x},8\n", 0x40_0000 + (n << 12), n & 0xff0);
    let round: String = (0..PAGES).map(page).collect();
    fs::write(&file, format!("==7== Lackey\nprinted by the program\n{}", round.repeat(3))).unwrap();
    let path = file.to_str().unwrap();
    let outcome = walks(&["--trace", path, "--json"]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let report = json(&outcome.stdout, &outcome);
    assert_eq!((&report["code"], &report["lines"]["foreign"]), (&"all".into(), &1.into()));
    assert_eq!(report["cpus"].as_array().map(Vec::len), Some(8));
    for (cpu, walks) in
        [("zen-3", 3 * PAGES), ("skylake-sp", PAGES), ("neoverse-n1", PAGES), ("zen-5", PAGES)]
    {
        assert_eq!(count(&report, cpu, "small", "code"), walks, "{cpu}");
        assert_eq!(count(&report, cpu, "code-2m", "code"), 2, "{cpu}");
        assert_eq!(count(&report, cpu, "all-2m", "data"), 1, "{cpu}");
    }
    // The same as text, from standard input.
    let bytes = fs::read(&file).unwrap();
    let outcome = walks(&["--on", "zen-3", "--trace", "-"]).stdin(bytes).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    for line in [
        "3 072 instructions, 3 072 loads and stores",
        "4 kB pages in use: 1 024 of code, 1 of data",
        "note: 1 of 6 146 lines are no accesses and were left out; the first is line 2",
    ] {
        assert!(outcome.stdout.lines().any(|shown| shown == line), "{line}: {outcome:?}");
    }
}

#[test]
fn what_cannot_be_done_is_said_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("no-trace");
    fs::write(&file, "x\ny\n").unwrap();
    let path = file.to_str().unwrap();
    let failed = |cmd: Cmd, status: i32, why: &str| {
        let outcome = cmd.bare();
        assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(status), ""), "{outcome:?}");
        assert!(outcome.stderr.contains(why), "{why}: {outcome:?}");
        outcome.stderr.lines().count()
    };
    for (cmd, status, why) in [
        (walks(&["--trace", path]), 125, "no-trace is no trace: none of its 2 lines is an instruction"),
        (walks(&["--trace", "/nowhere"]), 125, "cannot read the trace /nowhere: "),
        (walks(&["--trace", "/"]), 125, "cannot read the trace /: "),
        (walks(&["--", "no-such-program"]), 127, "no-such-program"),
        (
            walks(&["--", "/bin/true"]).env("PATH", dir.path()),
            125,
            "there is no valgrind on PATH, under which the command would be traced: install the package valgrind",
        ),
    ] {
        assert_eq!(failed(cmd, status, why), 1, "{why}");
    }
    for (options, why) in [
        (&["--on", "zen-9", "--trace", path][..], "'zen-9' is not one of skylake-sp, ice-lake-sp, zen-2"),
        (&["--window", "0", "--trace", path], "at least 1 instruction"),
        (&["--skip", "much", "--trace", path], "'much' is not a number of instructions"),
        (&["--on", "zen-3"], "--trace"),
        (&["--trace", path, "--", "true"], "cannot be used with"),
    ] {
        failed(walks(options), 125, why);
    }
}
