// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --watch` while memory is short: copies that are no longer in use are given back.

use crate::common::moments::with_moments;
use crate::common::pressure::Pressure;
use crate::common::run::{PATIENCE, until};
use crate::common::shipped::WITH_FAULT_POINTS;
use crate::common::{CGroup, End, HUGELIFT, fits};
use crate::hot::{Blocks, HUGE, Place, blocks_of, go_on};
use crate::running::Running;
use crate::{need_root, skip};
use hugelift_core::addr::Addr;
use hugelift_linux::proc::procfs::Process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Starts a watch with anonymous copies. Each lift is worth it, so that no time passes.
fn watch(command: &str, pressure: &Path, pid: u32, socket: Option<&Path>) -> Running {
    let mut command = Command::new(command);
    command.args(["attach", "--watch", "--eager", "--json", "-v", "--backing", "thp", "--sample", "100ms"]);
    command.arg(pid.to_string()).env("HUGELIFT_TEST_PRESSURE", pressure);
    if let Some(socket) = socket {
        command.env("HUGELIFT_TEST_MOMENTS", socket);
    }
    Running::start(&mut command)
}

/// Returns the next row of a watch that says what was given back. What becomes hot meanwhile may not be copied for lack of
/// memory.
#[track_caller]
fn given_back(watch: &Running) -> Value {
    loop {
        let Ok(line) = watch.out.recv_timeout(PATIENCE) else {
            panic!("nothing is given back: {:?}", watch.err.try_iter().collect::<Vec<String>>());
        };
        let row: Value = serde_json::from_str(&line).expect("JSON");
        fits("attach-watch", &row);
        if row["lines"][0].as_str().is_some_and(|line| line.contains(" given back: ")) {
            return row;
        }
    }
}

/// A victim in which block 9 is in use, and block 3 was so before: both are copies.
fn with_two_copies(victim: &mut Running) -> Blocks {
    let blocks = blocks_of(victim);
    until("block 3 is copied", || blocks.has(3));
    go_on(victim);
    let blocks = blocks_of(victim);
    until("block 9 is copied", || blocks.has(9));
    assert!(blocks.has(3), "there is enough memory");
    blocks
}

/// Checks that a victim has executed its own code right, and that the watch has ended with it.
#[track_caller]
fn ends_well(victim: Running, watch: Running) -> (Vec<String>, Vec<String>) {
    let (end, out, _) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
    let (end, out, err) = watch.end();
    assert_eq!(end, Some(End::Code(0)), "{out:?} {err:?}");
    (out, err)
}

#[test]
fn issue_31_4_what_is_cold_is_given_back_while_memory_is_short() {
    need_root!();
    let (place, pressure) = (Place::new(), Pressure::none());
    let mut victim = place.start(&["3", "run", "forget", "9", "run"]);
    let watch = watch(WITH_FAULT_POINTS, &pressure.path(), victim.pid(), None);
    let blocks = with_two_copies(&mut victim);
    pressure.set("12.40");
    let row = given_back(&watch);
    let line = row["lines"][0].as_str().expect("a line");
    let of = format!(" of {} given back: no sample in ", place.program().display());
    assert!(line.starts_with("text ") && line.contains(&of), "{line}");
    assert!(line.ends_with("; memory pressure 12.4 % (some, avg10)"), "{line}");
    assert_eq!(row["complaints"], serde_json::json!([]), "{row}");
    blocks.assert_only(&[9]);
    assert!(blocks.has(9), "it is in use");
    // Block 3 is the file's again.
    let at = Addr(blocks.start + (blocks.end - blocks.start) / 16 * 7 / 2);
    let usages = Process::new(blocks.pid).smaps().expect("its smaps");
    assert!(usages.iter().any(|usage| usage.mapping.range.contains(at) && usage.mapping.is_file()));
    ends_well(victim, watch);
}

#[test]
fn issue_31_4_a_copy_that_the_program_has_changed_stays() {
    need_root!();
    let (place, pressure) = (Place::new(), Pressure::none());
    let mut victim = place.start(&["3", "run", "change", "forget", "9", "run"]);
    let watch = watch(WITH_FAULT_POINTS, &pressure.path(), victim.pid(), None);
    let blocks = blocks_of(&victim);
    // The lift is over when it is told.
    let row: Value = serde_json::from_str(&watch.out()).expect("JSON");
    assert!(blocks.has(3), "{row}");
    go_on(&mut victim);
    let blocks = blocks_of(&victim);
    until("block 9 is copied", || blocks.has(9));
    pressure.set("99.00");
    let row = given_back(&watch);
    let complaint = row["complaints"][0].as_str().unwrap_or_default();
    assert!(
        complaint.contains(" not restored: the copy at ") && complaint.contains(" differs from "),
        "{row}"
    );
    let size = (blocks.end - blocks.start) / 16;
    let at = Addr((blocks.start + 3 * size + size / 2) & !(HUGE - 1));
    let usages = Process::new(blocks.pid).smaps().expect("its smaps");
    let is_file =
        |at: Addr| usages.iter().find(|u| u.mapping.range.contains(at)).map(|u| u.mapping.is_file());
    assert_eq!(is_file(at), Some(false));
    // The huge page beside it, with bytes of two blocks.
    assert!(is_file(Addr(at.0 - HUGE)) == Some(true) || is_file(Addr(at.0 + HUGE)) == Some(true));
    ends_well(victim, watch);
}

/// What was found of a program is nothing to the one that it becomes, also while memory is short.
#[test]
fn issue_31_4_a_program_that_becomes_another_one_while_memory_is_short() {
    need_root!();
    let (place, pressure) = (Place::new(), Pressure::none());
    let mut victim = place.start(&["3", "run", "become", "9", "run"]);
    let watch = watch(WITH_FAULT_POINTS, &pressure.path(), victim.pid(), None);
    let blocks = blocks_of(&victim);
    until("block 3 is copied", || blocks.has(3));
    pressure.set("50.00");
    go_on(&mut victim);
    let blocks = blocks_of(&victim);
    until("block 9 is copied", || blocks.has(9));
    blocks.assert_only(&[9]);
    ends_well(victim, watch);
}

/// Waits for the end of a process. Returns whether it has come.
fn ends(pid: u32) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Process::new(pid).stat().is_ok_and(|stat| !stat.has_ended()) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The program ends while its copies are given back, or the watcher is killed then: at some of the steps.
#[test]
fn issue_31_4_an_end_while_copies_are_given_back() {
    need_root!();
    for (ends_victim, step) in [(true, 2), (true, 25), (false, 2), (false, 12), (false, 30)] {
        let (place, pressure) = (Place::new(), Pressure::none());
        let mut victim = place.start(&["3", "run", "forget", "9", "run"]);
        let (left, ended) = (AtomicU64::new(u64::MAX), AtomicI32::new(0));
        let act = |_| {
            if left.load(Ordering::Acquire) < u64::MAX && left.fetch_sub(1, Ordering::AcqRel) == 0 {
                let _ = kill(Pid::from_raw(ended.load(Ordering::Acquire)), Signal::SIGKILL);
            }
        };
        let (watch, _) = with_moments(act, |socket| {
            let watch = watch(WITH_FAULT_POINTS, &pressure.path(), victim.pid(), Some(socket));
            with_two_copies(&mut victim);
            let pid = if ends_victim { victim.pid() } else { watch.pid() };
            ended.store(pid.cast_signed(), Ordering::Release);
            left.store(step, Ordering::Release);
            pressure.set("12.40");
            if !ends(pid) {
                let lines = |lines: &Receiver<String>| lines.try_iter().collect::<Vec<_>>();
                let left = left.load(Ordering::Acquire);
                panic!(
                    "{pid} is not killed at step {step}, {left} to go: {:?} {:?}",
                    lines(&watch.out),
                    lines(&watch.err)
                );
            }
            watch
        });
        if ends_victim {
            let (end, out, err) = watch.end();
            assert_eq!(end, Some(End::Code(0)), "{step}: {out:?} {err:?}");
        } else {
            let (end, out, err) = victim.end();
            assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]), "{step}: {err:?}");
        }
    }
}

/// Writes a file of this size to a tmpfs by a process of the group: memory that the kernel cannot drop.
fn fill(group: &CGroup, path: &Path, bytes: u64) {
    let words = group.words();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["sh", "-c", "head -c \"$1\" /dev/zero > \"$2\"", "sh"]);
    let status = command.arg(bytes.to_string()).arg(path).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// A control group whose limit is nearly reached. The command is the one that ships.
#[test]
fn issue_31_4_a_control_group_that_is_full() {
    need_root!();
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let (place, pressure) = (Place::new(), Pressure::none());
    let filled = tempfile::NamedTempFile::new_in("/dev/shm").expect("/dev/shm");
    let mut victim = place.start(&["3", "run", "forget", "9", "run"]);
    group.take(victim.pid());
    let watch = watch(HUGELIFT, &pressure.path(), victim.pid(), None);
    let blocks = with_two_copies(&mut victim);
    fill(&group, filled.path(), 256 << 20);
    let usage = ["memory.current", "memory.usage_in_bytes"]
        .into_iter()
        .find_map(|name| std::fs::read_to_string(group.path().join(name)).ok())
        .and_then(|text| text.trim().parse::<u64>().ok());
    let usage = usage.expect("its usage");
    // Version 2 says how long tasks wait: those of a group above this wait at each page.
    let limits: &[&str] = if group.is_v2() { &["memory.high"] } else { &["memory.limit_in_bytes"] };
    let limit = if group.is_v2() { usage / 2 } else { usage + usage / 32 };
    if let Err(why) = group.limit(limits, &limit.to_string()) {
        skip!("{why}");
    }
    let waiting = group.is_v2().then(|| {
        let words = group.words();
        let script = "while cat /proc/self/exe > /dev/null; do :; done";
        Running::start(Command::new(&words[0]).args(&words[1..]).args(["sh", "-c", script]))
    });
    let row = given_back(&watch);
    let line = row["lines"][0].as_str().expect("a line");
    assert!(line.contains("; its control group has ") || line.contains("; memory pressure "), "{line}");
    blocks.assert_only(&[9]);
    assert!(blocks.has(9));
    drop(waiting);
    ends_well(victim, watch);
}
