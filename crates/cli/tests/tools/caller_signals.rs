// SPDX-License-Identifier: Apache-2.0
//! A caller that ignores SIGCHLD and SIGPIPE: hugelift learns the end of its children all the same, and the programs that it starts
//! ignore both too.

use crate::common::{Cmd, End, HUGELIFT, fat};
use std::fs;
use tempfile::TempDir;

const BOTH: [i32; 2] = [libc::SIGCHLD, libc::SIGPIPE];

fn ignoring(words: &[&str]) -> Cmd {
    Cmd::new([HUGELIFT]).args(words).under(["env", "--ignore-signal=CHLD,PIPE"])
}

/// Asserts that each line is that of a process that ignores both (proc_pid_status(5)).
fn ignore_it(lines: &str) {
    assert!(!lines.is_empty());
    for line in lines.lines() {
        let set = line.strip_prefix("SigIgn:\t").unwrap_or_else(|| panic!("{lines}"));
        let set = u64::from_str_radix(set, 16).expect("a set of signals");
        assert!(BOTH.iter().all(|signal| set >> (signal - 1) & 1 == 1), "{lines}");
    }
}

#[test]
fn a_program_that_is_counted() {
    let counted = ignoring(&["stat", "--", "grep", "SigIgn", "/proc/self/status"]).bare();
    assert_eq!(counted.end, End::Code(0), "{counted:?}");
    ignore_it(&counted.stdout);
    let fails = ignoring(&["stat", "--", "false"]).bare();
    assert_eq!(fails.end, End::Code(1), "{fails:?}");
}

#[test]
fn a_program_that_is_compared() {
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("seen").display().to_string();
    let program = fat("state").build().display().to_string();
    let words = ["compare", "--pairs", "6", "--output", &file, "--", &program, "quick"];
    let compared = ignoring(&words).bare();
    assert_eq!(compared.end, End::Code(0), "{compared:?}");
    let seen = fs::read_to_string(&file).expect("what it has seen");
    for signal in BOTH {
        let name = format!("signal {signal}:");
        let lines: Vec<&str> = seen.lines().filter(|line| line.starts_with(&name)).collect();
        assert!(lines.len() >= 12 && lines.iter().all(|line| line.contains(": ignored,")), "{lines:?}");
    }
}
