// SPDX-License-Identifier: Apache-2.0
//! `hugelift restore --unused`: huge pages that are mostly zeros are split, and their zeros take no memory any more.

use crate::common::huge::smaps;
use crate::common::run::{PATIENCE, until};
use crate::common::shipped::WITH_FAULT_POINTS;
use crate::common::{Cmd, End, HUGELIFT, Outcome, fits, plain};
use crate::running::Running;
use crate::{need, need_root, skip};
use hugelift_core::addr::PageSize;
use hugelift_linux::machine::split::frees_zeros;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::procfs::Process;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of each kind of the victim's memory.
const BYTES: u64 = 8 << 20;
const PAGE: u64 = 4096;

/// The victim, and where each kind of its memory begins.
struct Victim {
    running: Running,
    starts: BTreeMap<String, u64>,
}

impl Victim {
    fn start(front: &[&str], args: &[&str]) -> Victim {
        let program = plain("zeros").flags(&["-pthread"]).build();
        let running = Running::start(&mut Cmd::new([&program]).args(args).under(front).command(None));
        let mut starts = BTreeMap::new();
        loop {
            match running.out().split_whitespace().collect::<Vec<_>>()[..] {
                [kind, start, _] => starts.insert(kind.into(), u64::from_str_radix(start, 16).expect("hex")),
                _ => return Victim { running, starts },
            };
        }
    }

    /// Returns the bytes that are in memory of each kind, and those on huge pages.
    fn memory(&self) -> BTreeMap<&str, (u64, u64)> {
        // Its first thread may have ended.
        let all = smaps(Process::new(self.running.pid()).with_memory().pid());
        let of = |start: u64| {
            let at = |u: &&hugelift_core::smaps::Usage| {
                u.mapping.range.start.0 <= start && start < u.mapping.range.end.0
            };
            let usage = all.iter().find(at).expect("it is mapped");
            (usage.rss, usage.anon_huge)
        };
        self.starts.iter().map(|(kind, start)| (kind.as_str(), of(*start))).collect()
    }

    fn restore(&self, options: &[&str]) -> Outcome {
        let pid = self.running.pid().to_string();
        Cmd::new([HUGELIFT, "restore", "--unused"]).args(options).arg(pid).bare()
    }

    /// Ends it, and asserts that it has found all of its bytes.
    fn finish(self) {
        let (end, out, err) = self.running.end();
        assert_eq!((end, out), (Some(End::Code(0)), vec!["as it should be".to_string()]), "{err:?}");
    }
}

/// Returns why the tests cannot run on this machine.
fn unfit() -> Option<&'static str> {
    match () {
        () if thp_page() != Some(PageSize::MB2) || base_page() != PageSize::SMALL => {
            Some("needs pages of 4 kB and 2 MB")
        }
        () if frees_zeros() != Some(true) => Some("this kernel keeps the zeros of huge pages that it splits"),
        () => None,
    }
}

macro_rules! need_fit {
    () => {
        if let Some(why) = unfit() {
            skip!("{why}");
        }
    };
}

/// Asserts what each kind has after its zeros were given back. A page that another thread writes just then is in memory.
#[track_caller]
fn assert_given_back(victim: &Victim) {
    let memory = victim.memory();
    let (sparse, huge) = memory["sparse"];
    assert!(sparse <= 4 * 3 * PAGE + 71 * 4 * PAGE && huge == 0, "{memory:?}");
    assert_eq!(memory["cleared"], (0, 0));
    for kind in ["half", "locked", "forked", "pinned"] {
        assert_eq!(memory[kind], (BYTES, BYTES), "{kind}");
    }
}

#[test]
fn issue_32_4_zeros_are_given_back_and_no_byte_changes() {
    need_fit!();
    need_root!();
    let victim = Victim::start(&[], &[]);
    let before = victim.memory();
    assert!(before.values().all(|memory| *memory == (BYTES, BYTES)), "{before:?}");
    let pid = victim.running.pid().to_string();
    let inspect = || {
        let outcome = Cmd::new([HUGELIFT, "inspect", "--unused", "--json", &pid]).bare();
        let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON of inspect");
        fits("report", &report);
        report["unused"].clone()
    };
    // Half a huge page of data is left; memory that is locked or a child's too is not read.
    let found = inspect();
    assert_eq!((&found["huge_bytes"], &found["sparse_bytes"]), (&(4 * BYTES).into(), &(3 * BYTES).into()));
    let done = victim.restore(&["--json"]);
    assert_eq!(done.end, End::Code(0), "{done:?}");
    let row: Value = serde_json::from_str(&done.stdout).expect("JSON of restore");
    fits("attach", &row);
    assert_given_back(&victim);
    let unused = &row["processes"][0]["unused"];
    assert_eq!(unused["split_bytes"], 2 * BYTES, "{unused}");
    let freed = unused["freed_bytes"].as_u64().expect("a number");
    assert!((2 * BYTES - 4 * 75 * PAGE..=2 * BYTES).contains(&freed), "{unused}");
    let kept = serde_json::json!({ "locked": BYTES, "shared": BYTES, "in_use": BYTES });
    assert_eq!((&unused["kept_bytes"], &row["processes"][0]["borrowed"]), (&kept, &0.into()));
    // What a device uses stays; it is said once more, and nothing else is left to give back.
    let again = victim.restore(&[]);
    assert!(again.stdout.contains("8 MB stays on huge pages: the kernel did not split it"), "{again:?}");
    assert_eq!(inspect()["sparse_bytes"], BYTES);
    victim.finish();
}

/// A process that a thread cannot be borrowed of is left after the first wait, with what was done before.
#[test]
fn issue_32_4_a_process_in_vfork_is_not_waited_for_again_and_again() {
    need_fit!();
    need_root!();
    need!("setpriv");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"];
    let victim = Victim::start(&user, &["waits"]);
    let pid = victim.running.pid().to_string();
    let begun = Instant::now();
    let done = Cmd::new([HUGELIFT, "restore", "--unused", &pid]).under(user).bare();
    // Twelve huge pages of it are mostly zeros. Each would be waited for.
    assert!(begun.elapsed() < Duration::from_secs(15), "{done:?}");
    assert!(!done.stdout.contains("the process changed it"), "{done:?}");
    assert_eq!(victim.memory()["cleared"], (BYTES, BYTES));
}

/// Without the right to advise from outside a thread of the process does it.
#[test]
fn issue_32_4_a_user_gives_back_what_his_own_process_wastes() {
    need_fit!();
    need_root!();
    need!("setpriv");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"];
    let victim = Victim::start(&user, &[]);
    let pid = victim.running.pid().to_string();
    let done = Cmd::new([HUGELIFT, "restore", "--unused", "-v", &pid]).under(user).bare();
    assert_eq!(done.end, End::Code(0), "{done:?}");
    assert!(done.stdout.contains(" a thread was stopped "), "{done:?}");
    assert_given_back(&victim);
    victim.finish();
}

/// The kernel advises a process from outside by its first thread alone. Where that has ended, another is borrowed.
#[test]
fn issue_32_4_a_process_whose_first_thread_has_ended() {
    need_fit!();
    need_root!();
    let victim = Victim::start(&[], &["headless"]);
    let first = victim.running.pid();
    until("its first thread ends", || Process::new(first).with_memory().pid() != first);
    let done = victim.restore(&["-v"]);
    assert_eq!(done.end, End::Code(0), "{done:?}");
    assert_given_back(&victim);
    // What was split is joined again, by a borrowed thread too.
    let pid = victim.running.pid().to_string();
    let done = Cmd::new([HUGELIFT, "attach", "--parts", "anon", &pid]).bare();
    assert!(!done.stderr.contains("has ended"), "{done:?}");
    victim.finish();
}

#[test]
fn issue_32_4_hugelift_is_killed_at_any_time() {
    need_fit!();
    need_root!();
    let victim = Victim::start(&[], &[]);
    for micros in (0..50).map(|n| 700 * n) {
        let pid = victim.running.pid().to_string();
        let restore = Running::start(Command::new(HUGELIFT).args(["restore", "--unused", &pid]));
        std::thread::sleep(Duration::from_micros(micros));
        restore.signal(Signal::SIGKILL);
        restore.end();
    }
    victim.restore(&[]);
    assert_given_back(&victim);
    victim.finish();
}

/// A watch that collapses private memory gives zeros back while memory is short, and collapses nothing then.
#[test]
fn issue_32_4_a_watch_gives_zeros_back_while_memory_is_short() {
    need_fit!();
    need_root!();
    need!("setpriv");
    // Another user's process is read in a child.
    for front in [&[][..], &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]] {
        zeros_are_given_back_by_a_watch(Victim::start(front, &[]));
    }
}

fn zeros_are_given_back_by_a_watch(victim: Victim) {
    let pressure = crate::common::pressure::Pressure::none();
    let mut watch = Command::new(WITH_FAULT_POINTS);
    watch.args([
        "attach",
        "--watch",
        "--eager",
        "--json",
        "--parts",
        "anon",
        &victim.running.pid().to_string(),
    ]);
    let watch = Running::start(watch.env("HUGELIFT_TEST_PRESSURE", pressure.path()));
    // It has had its first turn when it has used CPU time for that.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(victim.memory()["cleared"], (BYTES, BYTES), "there is enough memory");
    pressure.set("12.40");
    until("the zeros are given back", || victim.memory()["cleared"] == (0, 0));
    let row: Value = serde_json::from_str(&watch.out.recv_timeout(PATIENCE).expect("a row")).expect("JSON");
    fits("attach-watch", &row);
    let line = row["lines"][0].as_str().expect("a line");
    assert!(
        line.contains(" given back: ") && line.ends_with("; memory pressure 12.4 % (some, avg10)"),
        "{line}"
    );
    assert_given_back(&victim);
    victim.finish();
    let (end, _, err) = watch.end();
    assert_eq!(end, Some(End::Code(0)), "{err:?}");
}

#[test]
fn issue_32_4_what_cannot_be_given_back_is_said_in_one_line() {
    need_fit!();
    need_root!();
    let of = |words: &[&str]| Cmd::new([HUGELIFT]).args(words).bare();
    let kernel = of(&["restore", "--unused", "2"]);
    assert_eq!((kernel.end, kernel.stderr.lines().count()), (End::Code(125), 1), "{kernel:?}");
    let program = of(&["inspect", "--unused", "/bin/true"]);
    assert_eq!((program.end, program.stderr.lines().count()), (End::Code(125), 1), "{program:?}");
    assert!(program.stderr.contains("--unused reads the memory of a process"), "{program:?}");
    let sleeps = Running::start(Command::new("sleep").arg("60"));
    let small = of(&["restore", "--unused", &sleeps.pid().to_string()]);
    assert_eq!((small.end, &*small.stderr), (End::Code(0), ""), "{small:?}");
    assert!(
        small.stdout.contains("none of its private memory is on huge pages: nothing to give back"),
        "{small:?}"
    );
}
