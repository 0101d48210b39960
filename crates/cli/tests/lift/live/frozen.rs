// SPDX-License-Identifier: Apache-2.0
//! Processes whose control group is frozen: before a lift, or in the middle of it.

use super::{command, command_of, done, segments};
use crate::common::guard::CGroup;
use crate::common::moments::{at_moments, with_moments};
use crate::common::run::{PATIENCE, lines_of, wait};
use crate::common::{Cmd, End, Held, WITH_FAULT_POINTS, fat, skipped};
use crate::{need_root, skip};
use hugelift_linux::proc::procfs::Process;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns how many bytes of the text, or of the constants, of a process are whole huge pages, and how many of these are
/// copies.
fn copied(pid: u32, program: &Path, text: bool) -> (u64, u64) {
    let all = segments(pid, program);
    let inner = || all.iter().filter(|piece| piece.text == text).filter_map(|piece| piece.inner);
    let maps = Process::new(pid).maps().expect("its maps");
    let copies = maps.iter().filter(|m| !m.is_file());
    let bytes = copies.flat_map(|m| inner().filter_map(|inner| inner.intersect(m.range))).map(|r| r.len());
    (inner().map(|inner| inner.len()).sum(), bytes.sum())
}

/// Returns the address at which a thread is that sleeps or is stopped.
fn position(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    text.split_whitespace().last().filter(|word| word.starts_with("0x")).map(String::from)
}

/// Each command says which group is frozen, and how it is thawed, before it stops a thread.
#[test]
fn issue_29_c13_a_frozen_group_is_named() {
    need_root!();
    let program = fat("hold").build();
    for (group, text) in [(CGroup::v2(), "echo 0 > "), (CGroup::new("freezer"), "echo THAWED > ")] {
        let group = match group {
            Ok(group) => group,
            Err(why) => {
                skipped(&why);
                continue;
            }
        };
        let held = Held::start(&Cmd::new([&program]), None, &program);
        let pid = held.pid();
        group.take(pid);
        group.freeze(true);
        for verb in ["attach", "restore"] {
            let outcome = command(verb, &[pid]).bare();
            assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(125), 1), "{verb}: {outcome:?}");
            let says = format!("its control group {} is frozen", group.path().display());
            assert!(outcome.stderr.contains(&says) && outcome.stderr.contains(text), "{verb}: {outcome:?}");
            let help = outcome.stderr.split_once("thaw it (").and_then(|(_, rest)| rest.split_once(')'));
            if verb == "restore" {
                // The advice helps.
                let help = help.expect("a command").0;
                assert!(Cmd::new(["sh", "-c", help]).bare().end == End::Code(0), "{help}");
            }
        }
        done("attach", pid);
        assert!(held.finish().stdout.ends_with("wrong 0\n"));
    }
}

/// A group that is frozen in the middle of a lift is named as the reason.
#[test]
fn issue_29_c13_a_group_that_is_frozen_in_the_middle_is_named() {
    need_root!();
    let group = match CGroup::v2() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    group.take(pid);
    let own = position(pid);
    let act = |_| {
        if position(pid).is_some_and(|at| Some(at) != own) {
            group.freeze(true);
        }
    };
    let cmd = command_of(WITH_FAULT_POINTS, "attach", &[pid]).env("HUGELIFT_TEST_PATIENCE", "500");
    let (outcome, _) = at_moments(&cmd, act);
    group.freeze(false);
    let says = format!("its control group {} is frozen", group.path().display());
    assert!(outcome.stderr.contains(&says), "{outcome:?}");
    assert!(held.finish().stdout.ends_with("wrong 0\n"));
}

/// A watch says of each step what came of it: also if a borrowed thread makes its last call after the watch has given it
/// up, and the process was not lifted as a whole before.
#[test]
fn a_watch_reports_what_a_late_thread_has_done() {
    need_root!();
    let group = match CGroup::v2() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    group.take(pid);
    let (text, constants) = (copied(pid, &program, true).0, copied(pid, &program, false).0);
    assert!(text >= 4 << 20 && constants >= 4 << 20, "{text} {constants}");
    // It is frozen when its thread has got the registers for a call: first when its text has been replaced, then when all
    // but the last huge page of its constants have.
    let own = position(pid);
    let times = AtomicU32::new(0);
    let act = |_| {
        let is_lent = || position(pid).is_some_and(|at| Some(at) != own);
        let done = || (copied(pid, &program, true).1, copied(pid, &program, false).1);
        let is_due = match times.load(Ordering::Acquire) {
            0 => is_lent() && done() == (text, 0),
            2 => is_lent() && done() == (text, constants - (2 << 20)),
            _ => false,
        };
        if is_due {
            group.freeze(true);
            times.fetch_add(1, Ordering::AcqRel);
        }
    };
    let end = Instant::now() + PATIENCE;
    let go_on = |after: u32| {
        let is_traced = || !Process::new(pid).status().is_ok_and(|status| status.tracer == Some(0));
        while times.load(Ordering::Acquire) < after || is_traced() {
            assert!(Instant::now() < end, "{after}: {:?}", times.load(Ordering::Acquire));
            std::thread::sleep(Duration::from_millis(5));
        }
        times.fetch_add(1, Ordering::AcqRel);
        group.freeze(false);
    };
    let watch = |socket: &Path| {
        let options = ["attach", "--watch", "--eager", "--backing", "thp", "--parts", "text,rodata"];
        let cmd = Cmd::new([WITH_FAULT_POINTS]).args(options).arg(pid.to_string());
        let cmd = cmd.env("HUGELIFT_TEST_MOMENTS", socket).env("HUGELIFT_TEST_PATIENCE", "500");
        let mut watch = cmd.command(None).stderr(Stdio::inherit()).spawn().expect("a watch");
        let out = lines_of(watch.stdout.take().expect("piped"));
        for descriptor in [1, 3] {
            go_on(descriptor);
        }
        let (mut lines, megabytes) = (Vec::new(), |bytes| bytes >> 20);
        let want =
            format!("text {0} MB of {0} MB, rodata {1} MB of {1} MB", megabytes(text), megabytes(constants));
        while !lines.iter().any(|line: &String| line.contains(&want)) {
            let line = out.recv_timeout(end.saturating_duration_since(Instant::now()));
            lines.push(line.unwrap_or_else(|e| panic!("{e}: {lines:?}")));
        }
        let outcome = held.finish();
        assert!(outcome.stdout.ends_with("wrong 0\n"), "{outcome:?}");
        assert_eq!(wait(&mut watch, end), Some(End::Code(0)));
    };
    with_moments(act, watch);
}
