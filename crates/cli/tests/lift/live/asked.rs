// SPDX-License-Identifier: Apache-2.0
//! What the options of `hugelift attach` ask for, and what is said where it cannot be had.

use super::{Running, done, files, segments, victim};
use crate::common::huge::assert_lifted;
use crate::common::{Cmd, End, HUGELIFT, Outcome};

fn attach(options: &[&str], pid: u32) -> Outcome {
    let outcome = Cmd::new([HUGELIFT, "attach", "--whole"]).args(options).arg(pid.to_string()).bare();
    assert_eq!(outcome.end, End::Code(0), "{options:?}: {outcome:?}");
    outcome
}

#[test]
fn a_dry_run_changes_nothing() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    let (pid, before) = (running.pid(), files(running.pid()));
    let store = tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm");
    let place = store.path().join("store");
    let words = ["--dry-run", "--json", "--backing", "shared", "--parts", "text,heap"];
    let cmd = Cmd::new([HUGELIFT, "attach", "--whole"]).args(words).arg(pid.to_string());
    let outcome = cmd.env("HUGELIFT_STORE", &place).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let said: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let process = &said["processes"][0];
    assert_eq!(process["borrowed"], 0, "{outcome:?}");
    let lines = process["lines"].as_array().expect("lines");
    let has = |words: &[&str]| {
        lines.iter().filter_map(|line| line.as_str()).any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(has(&["would lift", "of text of", "on shared pages of 2 MB"]), "{outcome:?}");
    assert!(
        has(&["would collapse heap with at most 1.0 s of CPU time, and add at most 64 MB"]),
        "{outcome:?}"
    );
    assert!(!has(&["of rodata"]), "{outcome:?}");
    assert_eq!(files(pid), before);
    assert!(!place.exists(), "a store was made");

    // It says what a lift then does, and nothing is left to do afterwards.
    done("attach", pid);
    assert!(assert_lifted(&segments(pid, &program), "thp", "attach") >= 2);
    let outcome = attach(&["--dry-run", "--backing", "thp"], pid);
    assert!(!outcome.stdout.contains("would lift"), "{outcome:?}");
    running.report();
}

#[test]
fn the_edges_of_a_part_are_for_a_start() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    for span in ["outer", "auto"] {
        for more in [&["--dry-run"][..], &[]] {
            let outcome = attach(&[&["--backing", "thp", "--span", span], more].concat(), running.pid());
            let lines = outcome.own_lines();
            assert_eq!(lines.len(), 1, "{outcome:?}");
            assert!(lines[0].contains("'hugelift run --span outer' lifts them at the start"), "{outcome:?}");
        }
    }
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "attach") >= 2);
    running.report();
}

/// Where nothing becomes huge a reason is said, also if it is the user's own choice.
#[test]
fn nothing_is_explained() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    for (options, why) in [
        (&["--page-size", "1G"][..], "1 GB"),
        (&["--object", "none"], "excluded by a pattern"),
        (&["--exclude", "*"], "excluded by a pattern"),
    ] {
        let outcome = attach(options, running.pid());
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(said.contains(why), "{options:?}: {outcome:?}");
    }
    running.report();
}
