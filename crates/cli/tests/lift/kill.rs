// SPDX-License-Identifier: Apache-2.0
//! Sudden death in the middle of the lift. Before each of hugelift's ptrace operations its helper
//! is killed, and the program must run as if nothing had happened; or the program is killed, and no
//! process may be left behind.

use crate::common::level::some;
use crate::common::{Cmd, End, Outcome, WITH_FAULT_POINTS, each_backing, fat, plain};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};

/// Returns a command under the reaper, which adopts and reports the processes that are left behind.
fn reaped(program: &Path, before: &[&str]) -> Cmd {
    let reaper = plain("reaper").build();
    let cmd = Cmd::new([program]).launcher(WITH_FAULT_POINTS);
    cmd.under([reaper.as_os_str(), "--".as_ref()]).under(before)
}

/// Returns how many ptrace operations a lift takes.
fn operations(cmd: &Cmd, options: &[&str]) -> usize {
    let outcome = cmd.clone().env("HUGELIFT_TEST_DIE", "count").lifted(options);
    let count = outcome.stderr.lines().find_map(|l| l.strip_prefix("hugelift-test: ptrace operations: "));
    let count = count.unwrap_or_else(|| panic!("no count: {outcome:?}"));
    count.trim().parse().expect("a number")
}

/// Removes the lines that differ between two runs: that of `HUGELIFT_TEST_DIE`, those about the
/// parent, and the like.
fn stable(text: &str) -> String {
    let volatile = [
        "parent ",
        "PPid:",
        "env HUGELIFT_TEST_DIE",
        "/proc/self/environ:",
        "namespace ",
        "/proc/self/autogroup",
    ];
    text.lines().filter(|l| !volatile.iter().any(|v| l.starts_with(v))).collect::<Vec<_>>().join("\n")
}

/// Kills the helper before each operation (in `make test` before every fourth one), and asserts that the program does what it does bare.
/// `adopts`: the program adopts orphans (as pid 1 or as a subreaper), so the helper is its own
/// child. A helper that is killed before it can be waited for then stays its child, as every orphan
/// does.
fn helper_dies(program: &Path, before: &[&str], adopts: bool) {
    each_backing(|options| helper_dies_with(program, before, adopts, options));
}

fn helper_dies_with(program: &Path, before: &[&str], adopts: bool, options: &[&str]) {
    let told = |text: &str| {
        let child = |line: &&str| {
            !adopts
                || !["children ", "waitpid ", "pending later:", "ShdPnd:"].iter().any(|c| line.starts_with(c))
        };
        stable(text).lines().filter(child).collect::<Vec<_>>().join("\n")
    };
    let cmd = reaped(program, before)
        .arg("quick")
        .clear_env()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let bare = cmd.bare();
    assert_eq!(bare.stderr, "reaper: exited 0, left 0\n");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let report = dir.path().join("report");
    let path = report.display().to_string();
    let options = [options, &["--report", &path]].concat();
    let count = operations(&cmd, &options);
    let (mut unreported, mut runs) = (0, 0);
    for n in some(0..count, 4) {
        let outcome = cmd.clone().env("HUGELIFT_TEST_DIE", format!("{n}:helper")).lifted(&options);
        let what =
            format!("{} {options:?}: helper killed before operation {n} of {count}", program.display());
        let differs = crate::common::run::difference("stdout", &told(&bare.stdout), &told(&outcome.stdout));
        assert_eq!(differs, None, "{what}\n{}", outcome.stderr);
        assert_eq!(outcome.other_lines(), bare.stderr, "{what}");
        assert!(outcome.own_lines().len() <= 1, "{what}: {}", outcome.stderr);
        let reported = std::fs::metadata(&report).is_ok_and(|m| m.len() > 0);
        unreported += usize::from(!reported);
        runs += 1;
    }
    assert!(unreported > runs / 2, "{unreported} deaths of {runs}: the fault does not fire");
}

/// Kills the target before each operation (in `make test` before every fourth one), and asserts that its parent sees SIGKILL and that no
/// process is left. The last `uncertain` operations release the target or may not happen at all, so
/// the target may already have finished.
fn target_dies(program: &Path, uncertain: usize) {
    each_backing(|options| target_dies_with(program, uncertain, options));
}

fn target_dies_with(program: &Path, uncertain: usize, options: &[&str]) {
    let cmd = reaped(program, &[]);
    let count = operations(&cmd, options);
    let (mut killed, mut runs) = (0, 0);
    for n in some(0..count, 4) {
        let run = || cmd.clone().env("HUGELIFT_TEST_DIE", format!("{n}:target")).lifted(options);
        let has_died = |o: &Outcome| o.other_lines() == "reaper: killed 9, left 0\n" && o.stdout.is_empty();
        // A second try if it has not died: if another program drops the machine's caches meanwhile,
        // the lift takes fewer operations.
        let outcome = Some(run()).filter(has_died).unwrap_or_else(run);
        let what =
            format!("{} {options:?}: target killed before operation {n} of {count}", program.display());
        let died = has_died(&outcome);
        let ended = outcome.other_lines() == "reaper: exited 0, left 0\n";
        assert!(died || ended && n + uncertain >= count, "{what}: {outcome:?}");
        assert!(outcome.own_lines().len() <= 1, "{what}: {}", outcome.stderr);
        killed += usize::from(died);
        runs += 1;
    }
    assert!(killed > runs / 2, "{killed} deaths of {runs}: the fault does not fire");
}

fn dynamic() -> PathBuf {
    fat("state").build()
}

fn fixed() -> PathBuf {
    fat("state").flags(&["-static"]).build()
}

/// A threaded program that is small enough to run hundreds of times.
fn threaded() -> PathBuf {
    let object = fat("threads").size(3 << 20).flags(&["-DSTRIDE=1999", "-DTHREADS=3"]).library().build();
    fat("threads").size(3 << 20).with(object).build()
}

#[test]
fn helper_dies_beside_a_dynamic_program() {
    helper_dies(&dynamic(), &[], false);
}

#[test]
fn helper_dies_beside_a_static_program() {
    helper_dies(&fixed(), &[], false);
}

#[test]
fn helper_dies_beside_threads() {
    helper_dies(&threaded(), &[], false);
}

/// Returns whether the executable is moved to another base, as the log says.
fn is_moved(program: &Path, options: &[&str]) -> bool {
    let outcome = Cmd::new([program]).arg("quick").env("HUGELIFT_LOG", "debug").lifted(options);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let line = outcome.stderr.lines().find(|l| l.contains("moved the executable"));
    line.is_some_and(|l| l.contains("moved=Ok"))
}

/// During a move there is one whole image at every moment.
#[test]
fn helper_dies_moving_a_program() {
    let Some((clang, lld)) = crate::common::clang_and_lld() else { skip!("needs clang and lld") };
    // The kernel loads a static program at a congruent address, unless lld has linked it.
    let lld = format!("--ld-path={}", lld.display());
    let skewed = fat("state").compiler(clang).flags(&["-static-pie", &lld]).build();
    let pagecache = &["--backing", "pagecache", "--parts", "text"];
    for program in [dynamic(), skewed] {
        let primed = match crate::common::Primed::new(&program) {
            Ok(primed) => primed,
            Err(why) => skip!("{why}"),
        };
        assert!(is_moved(primed.path(), pagecache), "{} is not moved", primed.path().display());
        helper_dies_with(primed.path(), &[], false, pagecache);
        target_dies_with(primed.path(), 2, pagecache);
    }
}

#[test]
fn helper_dies_beside_pid_one() {
    need_root!();
    need!("unshare");
    for program in [dynamic(), fixed()] {
        helper_dies(&program, &["unshare", "--pid", "--fork", "--mount-proc"], true);
    }
}

#[test]
fn helper_dies_beside_a_subreaper() {
    let setup = plain("setup").build().display().to_string();
    helper_dies(&dynamic(), &[&setup, "subreaper", "--"], true);
}

#[test]
fn dynamic_target_dies() {
    target_dies(&dynamic(), 2);
}

#[test]
fn static_target_dies() {
    target_dies(&fixed(), 2);
}

#[test]
fn threaded_target_dies() {
    // The number of operations that its threads take varies.
    target_dies(&threaded(), 24);
}

/// A command that is killed from outside in the middle of its start ends as it does bare, every
/// time.
#[test]
fn killed_from_outside() {
    let reaper = plain("reaper").build();
    for program in [dynamic(), fixed()] {
        each_backing(|options| {
            for after in some((0..20).map(|n| n * 700), 4) {
                let words = [format!("signal=9:{after}"), "--".to_string()];
                let outcome: Outcome =
                    Cmd::new([&program]).arg("slow").under([&reaper]).under(words).lifted(options);
                assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
                assert_eq!(
                    outcome.other_lines(),
                    "reaper: killed 9, left 0\n",
                    "after {after} us {options:?}"
                );
            }
        });
    }
}
