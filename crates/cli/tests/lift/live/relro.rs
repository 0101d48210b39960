// SPDX-License-Identifier: Apache-2.0
//! RELRO of a running process, whose threads write to its data all the time.

use super::{Running, done, pause};
use crate::common::huge::{assert_no_wx, files, smaps};
use crate::common::{Cmd, End, HUGELIFT, Outcome, fat};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Headers;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many victims are lifted in each mode, unless HUGELIFT_LIVE_ROUNDS says another number.
const ROUNDS: u32 = 4;
/// What is said where data were wanted.
const STAYS: &str = "data of a running process stay on small pages";
/// The longest pause between two steps.
const PAUSE: Duration = Duration::from_millis(40);
/// How many of the thread's ptrace operations lie between two that the command is killed at, at most.
const STRIDE: u64 = 6;

/// Builds the victim. RELRO is protected when it starts.
fn victim() -> PathBuf {
    fat("relro").flags(&["-Wl,-z,now"]).build()
}

/// Returns a command that lifts data and RELRO.
fn attach(pid: u32) -> Cmd {
    Cmd::new([HUGELIFT, "attach", "--parts", "data", "--json"]).arg(pid.to_string())
}

/// What of RELRO is a copy, what could be (whole huge pages), and what of data is a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Copied {
    relro: (u64, u64),
    data: u64,
}

impl Copied {
    fn is_all(self) -> bool {
        self.relro.0 == self.relro.1 && self.relro.1 > 0 && self.data == 0
    }
}

/// Reads what is copied in a process of the victim. Uses the program's headers and smaps alone.
fn copied(pid: u32, program: &Path) -> Copied {
    let headers = Headers::parse(&std::fs::read(program).expect("the program")).expect("its headers");
    let usage = smaps(pid);
    let path = program.canonicalize().expect("it is there");
    let first =
        usage.iter().find(|u| u.mapping.path == path && u.mapping.offset == 0).expect("its first page");
    let bias = first.mapping.range.start.0;
    let segment = headers.segments.iter().find(|s| s.prot.write).expect("data");
    let relro = headers.relro.expect("RELRO");
    let count = |start: u64, end: u64| {
        let range = Range::new(Addr(start + bias), Addr(end + bias)).expect("a range");
        let inner = range.inner(PageSize::MB2).expect("a whole huge page");
        let copies = usage.iter().filter(|u| !u.mapping.is_file());
        let bytes = copies.filter_map(|u| inner.intersect(u.mapping.range)).map(Range::len).sum();
        (bytes, inner.len())
    };
    let end = (relro.vaddr + relro.size) & !4095;
    Copied { relro: count(relro.vaddr, end), data: count(end, segment.vaddr + segment.filesz).0 }
}

/// Lifts, and returns the row of the process in the JSON output.
fn lifted(pid: u32) -> (Outcome, Value) {
    let outcome = attach(pid).bare();
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    let row = json["processes"][0].clone();
    (outcome, row)
}

/// No byte is wrong, no signal is lost, no call ends with EINTR, and forked children have what their parent had.
#[test]
fn lifted_under_threads() {
    let rounds = std::env::var("HUGELIFT_LIVE_ROUNDS").map_or(ROUNDS, |n| n.parse().expect("a number"));
    let program = victim();
    for mode in ["", "calm"] {
        for round in 0..rounds {
            let running = Running::start(&program, &[mode]);
            let pid = running.pid();
            pause(PAUSE);
            let (outcome, row) = lifted(pid);
            assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
            let after = copied(pid, &program);
            assert!(after.is_all(), "{mode} {round}: {after:?} {outcome:?}");
            assert!(
                outcome.stderr.contains(STAYS) && outcome.stderr.lines().count() == 1,
                "{mode} {round}: {outcome:?}"
            );
            assert!(row["borrowed"].as_u64() > Some(0), "{row}");
            assert_no_wx(pid, &[]);
            pause(PAUSE);
            running.report();
            assert_eq!(running.finish(), Some(End::Code(0)), "{mode} {round}");
        }
    }
}

/// A second lift finds nothing to do, and `restore` keeps RELRO and says so.
#[test]
fn restore_keeps_relro() {
    let program = victim();
    let running = Running::start(&program, &["calm"]);
    let pid = running.pid();
    let (outcome, _) = lifted(pid);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let (after, mapped) = (copied(pid, &program), files(pid));
    let (again, _) = lifted(pid);
    assert_eq!(again.end, End::Code(0), "{again:?}");
    let restored = Cmd::new([HUGELIFT, "restore"]).arg(pid.to_string()).bare();
    assert_eq!((restored.end, restored.stderr.as_str()), (End::Code(0), ""), "{restored:?}");
    assert!(restored.stdout.contains("keep their huge pages"), "{restored:?}");
    assert_eq!((copied(pid, &program), files(pid)), (after, mapped));
    // Code is lifted and restored beside it as ever.
    done("attach", pid);
    running.report();
}

/// The command is killed before each of its ptrace operations, or every few of them. Whatever it has done, no
/// byte is wrong, and a later command ends the work. A call that ends with EINTR after any stop is made again
/// by the tracer: one that is killed before it can do so leaves it.
#[test]
fn killed_before_each_step() {
    let program = victim();
    let (mut at, mut partly, mut interrupted, mut kills) = (0, 0, 0, 0);
    loop {
        let running = Running::start(&program, &[if at % 2 == 0 { "" } else { "calm" }, "killed"]);
        let pid = running.pid();
        let outcome = attach(pid).env("HUGELIFT_TEST_DIE", format!("{at}:helper")).bare();
        if outcome.end == End::Code(0) {
            break;
        }
        let (done, all) = copied(pid, &program).relro;
        partly += u32::from(0 < done && done < all);
        pause(PAUSE / 4);
        let (outcome, _) = lifted(pid);
        assert_eq!(outcome.end, End::Code(0), "{at}: {outcome:?}");
        assert!(copied(pid, &program).is_all(), "{at}: {outcome:?}");
        let report = running.report();
        interrupted += report["interrupted"].as_u64().expect("a number");
        assert_eq!(running.finish(), Some(End::Code(0)), "{at}");
        kills += 1;
        at += fastrand::u64(1..=STRIDE);
    }
    println!(
        "{kills} kills up to operation {at}, {partly} between two pieces; {interrupted} calls interrupted"
    );
    assert!(at > 20, "{at}");
    // Three of its threads wait in such a call.
    assert!(interrupted <= 3 * kills, "{interrupted} {kills}");
}
