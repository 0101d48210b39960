// SPDX-License-Identifier: Apache-2.0
//! Compares `hugelift ministat` with ministat(1), and tests its messages on input that it cannot use.

use crate::common::HUGELIFT;
use crate::need;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const IGUANA: &str = "50\n200\n150\n400\n750\n400\n150\n";
const CHAMELEON: &str = "150\n400\n720\n500\n930\n";

fn files(contents: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, content) in contents {
        fs::write(dir.path().join(name), content).expect("a file");
    }
    dir
}

fn ran(command: &mut Command, dir: &Path, args: &[&str], stdin: &str) -> Output {
    let mut child = command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A program that does not read its standard input is no error.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn ministat(dir: &Path, args: &[&str], stdin: &str) -> Output {
    ran(Command::new(HUGELIFT).arg("ministat"), dir, args, stdin)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Compares the output for 240 sets of samples, which each run draws from the same seed.
#[test]
fn prints_what_the_original_prints() {
    need!("ministat");
    let mut random = fastrand::Rng::with_seed(7);
    let mut below = |n: u64| random.u64(..n);
    let options: [&[&str]; 12] = [
        &[],
        &["-s"],
        &["-A"],
        &["-n"],
        &["-w", "20"],
        &["-w", "131", "-s"],
        &["-c", "80"],
        &["-c", "90", "-s"],
        &["-c", "98", "-A"],
        &["-c", "99"],
        &["-c", "99.5", "-A"],
        &["-s", "-w", "60"],
    ];
    let dir = files(&[]);
    for round in 0..240 {
        let count = [1, 2, 2, 3, 7][below(5) as usize];
        let names: Vec<String> = (0..count).map(|i| format!("s{i}")).collect();
        let scale = [1e-4, 0.5, 1.0, 3000.0][below(4) as usize];
        for name in &names {
            let (shift, range) = (below(30), 2 + below(100));
            let lines: String = (0..3 + below(60))
                .map(|_| format!("{:.9e} beside # 5\n", (shift + below(range)) as f64 * scale))
                .collect();
            fs::write(dir.path().join(name), lines).expect("a file");
        }
        let options = options[round % options.len()];
        let args: Vec<&str> = options.iter().copied().chain(names.iter().map(String::as_str)).collect();
        let original = ran(&mut Command::new("ministat"), dir.path(), &args, "");
        let ours = ministat(dir.path(), &args, "");
        assert!(original.status.success() && ours.status.success(), "{args:?}: {original:?} {ours:?}");
        assert_eq!(comparable(text(&ours.stdout)), comparable(text(&original.stdout)), "{args:?}");
    }
}

/// Leaves out the error of a difference in percent, which the original of 2015 computes without that of the reference's mean.
/// Unit tests compare that figure with the formula of today's.
fn comparable(shown: &str) -> Vec<&str> {
    let line = |line: &'_ str| line.find("% +/- ").map_or(line.len(), |at| at);
    shown.lines().map(|one| &one[..line(one)]).collect()
}

#[test]
fn standard_input_columns_and_delimiters() {
    let dir = files(&[("chameleon", CHAMELEON)]);
    let heads = "    N           Min           Max        Median           Avg        Stddev\n";
    let row = "x   7            50           750           200           300     238.04761\n";
    for args in [&["-n"][..], &["-n", "-"]] {
        let out = ministat(dir.path(), args, IGUANA);
        assert_eq!(text(&out.stdout), format!("x <stdin>\n{heads}{row}"), "{args:?}");
    }
    let args = ["-nq", "-d", ",;", "-C", "2", "-"];
    let columns: String = IGUANA.lines().map(|n| format!("n=,;{n};7\n")).collect();
    let out = ministat(dir.path(), &args, &columns);
    assert_eq!(text(&out.stdout), row, "{out:?}");
    // Standard input compared with a file. The output is no terminal, so it has 74 columns.
    let out = ministat(dir.path(), &["-", "chameleon"], IGUANA);
    let shown = text(&out.stdout);
    assert!(shown.contains(&format!("+{}+\n", "-".repeat(74))), "{shown}");
    assert!(shown.ends_with("No difference proven at 95.0% confidence\n"), "{shown}");
}

#[test]
fn what_cannot_be_used_is_named_in_one_line() {
    let dir = files(&[("iguana", IGUANA), ("words", "1\n2\nthree\n"), ("two", "1\n2\n"), ("none", "")]);
    let many = ["iguana"; 8];
    for (args, said) in [
        (&["words"][..], "words: line 3, column 1: \"three\" is not a number"),
        (&["two"], "two: 2 numbers in column 1, and a sample needs at least 3"),
        (&["none"], "none: 0 numbers in column 1"),
        (&["-C", "2", "iguana"], "iguana: 0 numbers in column 2"),
        (&["iguana", "nowhere"], "cannot read nowhere: No such file or directory"),
        (&["."], "cannot read .: Is a directory"),
        (&["-", "-"], "only one sample from standard input; - is given twice"),
        (&many, "at most 7 files; 8 are given"),
        (&["-c", "70", "iguana"], "levels are 80, 90, 95, 98, 99 and 99.5"),
        (&["-C", "0", "iguana"], "columns are counted from 1"),
        (&["-w", "1", "iguana"], "a number from 2 to 10000"),
    ] {
        let out = ministat(dir.path(), args, "");
        assert_eq!(out.status.code(), Some(125), "{args:?}: {out:?}");
        assert!(text(&out.stderr).contains(said) && out.stdout.is_empty(), "{args:?}: {out:?}");
    }
}
