// SPDX-License-Identifier: Apache-2.0
//! Debuggers, profilers and checkers see in a separated program what they see in the original: gdb, perf, uprobes,
//! valgrind, AddressSanitizer.

use crate::align::relaid::align;
use crate::align::separate::{ALL, folder};
use crate::common::build::must;
use crate::common::{Cmd, find};
use crate::{need, need_root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `inner` is called five times, and takes nearly all of the time.
const SOURCE: &str = r#"
#include <stdio.h>
volatile long sum;
__attribute__((noinline)) void inner(long n) { for (long i = 0; i < n; i++) sum += i; }
__attribute__((noinline)) void outer(long n) { inner(n); sum++; }
int main(int argc, char **argv) {
    for (int i = 0; i < 5; i++) outer(argc > 1 ? 20000000 : 1000);
    printf("%ld\n", sum);
}
"#;

/// Builds the program with these options and separates it. Returns both.
fn made(dir: &Path, options: &[&str]) -> (PathBuf, PathBuf) {
    let [source, original, copy] = ["a.c", "original", "copy"].map(|name| dir.join(name));
    std::fs::write(&source, SOURCE).expect("write");
    must(Command::new("cc").args(["-O1", "-g"]).args(options).arg("-o").arg(&original).arg(&source));
    let out = align(&original, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    let bare = Cmd::new([&original]).bare();
    assert_eq!(bare.stdout, "2497505\n");
    assert_eq!(Cmd::new([&copy]).bare(), bare);
    (original, copy)
}

/// Returns what a command prints on both streams.
fn said(command: &mut Command) -> String {
    let out = command.output().expect("the command starts");
    let both = [out.stdout, out.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Removes the words that are addresses.
fn without_addresses(line: &str) -> String {
    line.split_whitespace().filter(|word| !word.starts_with("0x")).collect::<Vec<_>>().join(" ")
}

#[test]
fn gdb_and_valgrind() {
    need!("gdb", "valgrind");
    let dir = folder();
    let (original, copy) = made(dir.path(), &[]);
    let commands =
        ["-nx", "-batch", "-ex", "break inner", "-ex", "run", "-ex", "bt", "-ex", "info line outer"];
    let shown = |program: &Path| {
        let text = must(Command::new(find("gdb").expect("needed above")).args(commands).arg(program));
        let lines = text.lines().filter(|line| line.starts_with('#') || line.starts_with("Line"));
        lines.map(without_addresses).collect::<Vec<_>>()
    };
    let (before, after) = (shown(&original), shown(&copy));
    assert_eq!(before, after);
    assert!(after.len() == 4 && after[0].contains("inner (") && after[2].contains("main ("), "{after:?}");
    let checked = |program: &Path| {
        let valgrind = ["-q", "--error-exitcode=9", "--leak-check=full"];
        must(Command::new(find("valgrind").expect("needed above")).args(valgrind).arg(program))
    };
    assert_eq!((checked(&copy), checked(&original)), ("2497505\n".to_string(), "2497505\n".to_string()));
}

#[test]
fn sanitizers_find_the_same() {
    let dir = folder();
    made(dir.path(), &["-fsanitize=address,undefined"]);
    let source = dir.path().join("bad.c");
    std::fs::write(
        &source,
        "#include <stdlib.h>\nint main(void) { volatile char *p = malloc(4); return p[4]; }\n",
    )
    .expect("write");
    let [bad, moved] = ["bad", "moved"].map(|name| dir.path().join(name));
    must(Command::new("cc").args(["-g", "-fsanitize=address", "-o"]).arg(&bad).arg(&source));
    let out = align(&bad, &moved, &ALL);
    assert!(out.status.success(), "{out:?}");
    for program in [&bad, &moved] {
        let text = said(&mut Command::new(program));
        assert!(text.contains("heap-buffer-overflow") && text.contains("bad.c:2"), "{text}");
    }
}

#[test]
fn perf_names_the_function_and_a_uprobe_counts_its_calls() {
    need_root!();
    need!("perf");
    let dir = folder();
    let (_, copy) = made(dir.path(), &[]);
    let perf = || {
        let mut perf = Command::new(find("perf").expect("needed above"));
        perf.arg("--buildid-dir").arg(dir.path().join("ids")).current_dir(dir.path());
        perf
    };
    // The clock needs no PMU. What perf caches by build-id would be the same for both files.
    let record = ["record", "-q", "-N", "-e", "cpu-clock", "-o", "data"];
    must(perf().args(record).arg(&copy).arg("long"));
    let report = must(perf().args(["report", "-i", "data", "--stdio", "--sort", "symbol", "-q"]));
    let first = report.lines().find(|line| line.contains('%')).unwrap_or_default();
    assert!(first.contains("inner"), "{report}");

    let group = format!("hugelift_{}", std::process::id());
    let event = format!("{group}:inner");
    let added = said(perf().args(["probe", "-x"]).arg(&copy).arg(format!("{event}=inner")));
    assert!(added.contains("Added new event"), "{added}");
    let counted = said(perf().args(["stat", "-x,", "-e", &event]).arg(&copy));
    let removed = said(perf().args(["probe", "-d", &event]));
    assert!(counted.contains(&format!("5,,{event}")), "{counted}");
    assert!(removed.contains("Removed"), "{removed}");
}
