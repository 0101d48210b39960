// SPDX-License-Identifier: Apache-2.0
//! Denies every system call, one by one, in five ways: hugelift can start what env(1) can start, with its default
//! options too.

use crate::common::level::is_long;
use crate::common::run::NO_STORE;
use crate::common::{HUGELIFT, fat, plain};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The last number denied: above the last system call, so that new calls are covered.
const LAST: i64 = 470;
/// What a filter answers: EPERM, ENOSYS, ENOMEM, SIGSYS, or the end of the process.
const ANSWERS: [&str; 5] = ["1", "38", "12", "trap", "kill"];
/// Sweeps run two at a time, since small machines have two CPUs.
const THREADS: usize = 2;
/// A start takes milliseconds: after this time it counts as hanging.
const LATE_MS: &str = "20000";

/// How a start ended, what it wrote to stdout, and whether it wrote to stderr.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Start {
    status: String,
    signal: String,
    stdout: String,
    is_silent: bool,
}

impl Start {
    fn of(line: &str) -> (i64, Start) {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("a line of deny: {line}")).to_string();
        let number = word().parse().unwrap();
        let (status, signal, errors, stdout) = (word(), word(), word(), word());
        (number, Start { status, signal, stdout, is_silent: errors == "0" })
    }

    fn is_right(&self) -> bool {
        (self.status.as_str(), self.signal.as_str(), self.stdout.as_str()) == ("0", "0", "right|")
    }

    fn is_late(&self) -> bool {
        self.signal.starts_with("late")
    }
}

/// Starts `words` once for each of these numbers, under a filter that gives this call the answer `answer`.
fn sweep(answer: &str, words: &[&str], numbers: &[i64]) -> BTreeMap<i64, Start> {
    let deny = plain("deny").build();
    // Neighbours are one process of deny.
    let ranges: Vec<&[i64]> =
        numbers.chunk_by(|a, b| a + 1 == *b).flat_map(|range| range.chunks(64)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut all = BTreeMap::new();
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (first, last) = (range[0], range[range.len() - 1]);
            let mut command = Command::new(&deny);
            command.args([answer, &first.to_string(), &last.to_string(), LATE_MS]).args(words);
            let output = command.env("HUGELIFT_STORE", NO_STORE).output().unwrap();
            assert!(output.status.success(), "deny: {output:?}");
            all.extend(String::from_utf8(output.stdout).unwrap().lines().map(Start::of));
        }
        all
    };
    let all: BTreeMap<i64, Start> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(all.len(), numbers.len());
    all
}

/// Starts `words` under each answer to each call. A start under a filter that would end the process at a call shows whether it makes
/// that call. If it does not, the other answers to it are tried for every eighth call only, unless a helper beside the program may
/// have made it.
fn sweeps(answers: &[&'static str], words: &[&str]) -> BTreeMap<&'static str, BTreeMap<i64, Start>> {
    let every: Vec<i64> = (0..=LAST).collect();
    let killed = sweep("kill", words, &every);
    let is_made = |number: &i64| !killed[number].is_right();
    let tried: Vec<i64> = match is_long() || words.contains(&"try") {
        true => every,
        false => every.into_iter().filter(|number| is_made(number) || number % 8 == 0).collect(),
    };
    let other = |answer: &&'static str| (*answer, sweep(answer, words, &tried));
    let mut all: BTreeMap<_, _> = answers.iter().filter(|answer| **answer != "kill").map(other).collect();
    all.insert("kill", killed);
    all
}

/// A program that needs nothing but write(2) and exit_group(2).
fn quiet() -> String {
    let flags = ["-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-fno-pie", "-no-pie"];
    fat("quiet").flags(&flags).build().display().to_string()
}

/// Returns whether env(1) starts the program under an answer to a call. Where no start was made, it does not make the call.
fn starts_bare(number: i64, answer: &str) -> bool {
    static ALL: OnceLock<BTreeMap<&str, BTreeMap<i64, Start>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let all = sweeps(&ANSWERS, &["env", &quiet()]);
        let right = all["kill"].values().filter(|start| start.is_right()).count();
        assert!(right > 400, "env(1) starts the program with only {right} of the calls denied");
        all
    });
    all[answer].get(&number).is_none_or(Start::is_right)
}

/// Compares starts by hugelift with those by env(1), for each call and each of `answers`. `may_fail` names the
/// numbers and answers for which hugelift may be killed.
fn compare(
    options: &[&str],
    answers: &[&'static str],
    is_silent: bool,
    may_fail: impl Fn(i64, &str) -> bool,
) {
    let quiet = quiet();
    let mut wrong = Vec::new();
    for (answer, starts) in sweeps(answers, &[&[HUGELIFT, "run"], options, &[&quiet]].concat()) {
        for (number, start) in starts {
            let as_bare = start.is_right() && (start.is_silent || !is_silent);
            let excused = !starts_bare(number, answer) || may_fail(number, answer);
            if start.is_late() || !as_bare && !excused {
                wrong.push(format!("{number} answered {answer}: {start:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{options:?}: {} starts differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Without options hugelift prints nothing, and makes no call that env(1) does not make, until it knows that no filter
/// forbids it. What it does is not what it does with `--eager`, or with a backing.
#[test]
fn each_system_call_denied_one_by_one() {
    compare(&[], &ANSWERS, true, |_, _| false);
}

/// What an option does more is seen where the filter ends the process. `--report` and `--user` are not here: they ask
/// for calls of their own.
#[test]
fn each_system_call_denied_one_by_one_with_options() {
    compare(&["--backing", "thp"], &ANSWERS, true, |_, _| false);
    for options in [
        &["--eager", "--numa", "local"][..],
        &["--parts", "all", "--malloc", "thp", "--children", "lift"],
        &["--parts", "all", "--data-backing", "hugetlb", "--after-fork", "join"],
    ] {
        compare(options, &["kill"], false, |_, _| false);
    }
}

/// `--seccomp try` lifts under a filter if the calls of a lift are allowed. The program, its launcher and
/// its helper are under the same filter, and each of them may make the denied call. Only a filter that
/// kills the caller of fork(2) may end the program: the option accepts that.
#[test]
fn each_system_call_denied_one_by_one_to_a_lift() {
    let may_fail =
        |number: i64, answer: &str| number == libc::SYS_clone && ["kill", "trap"].contains(&answer);
    compare(&["--seccomp", "try"], &ANSWERS, false, may_fail);
    compare(&["--backing", "thp", "--seccomp", "try"], &["1", "kill"], false, may_fail);
}

/// The sweep above does lift: with a filter that denies only a call that does not exist, the lift works.
#[test]
fn the_sweep_lifts_where_it_can() {
    let quiet = quiet();
    let words = [HUGELIFT, "run", "--backing", "thp", "--strict", "--seccomp", "try", &quiet];
    let output = Command::new(plain("deny").build())
        .args(["kill", &LAST.to_string(), &LAST.to_string(), LATE_MS])
        .args(words)
        .env("HUGELIFT_STORE", NO_STORE)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("{LAST} 0 0 0 right|\n"));
}
