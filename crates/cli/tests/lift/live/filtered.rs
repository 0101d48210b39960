// SPDX-License-Identifier: Apache-2.0
//! Processes under seccomp filters: lifted if the filter allows the calls, else refused with the call's name
//! and unharmed.

use super::{Running, command, command_of, done, files, segments};
use crate::common::huge::{assert_lifted, assert_unchanged};
use crate::common::level::some;
use crate::common::{Cmd, End, HUGELIFT, Outcome, Primed, WITH_FAULT_POINTS, fat};
use crate::{need, need_root};
use hugelift_linux::proc::procfs::Process;
use std::path::{Path, PathBuf};

/// Builds the victim at a fixed address, so that the store has copies of it.
fn victim() -> PathBuf {
    fat("guarded").flags(&["-Wl,-z,now", "-no-pie", "-pthread"]).build()
}

fn start(program: &Path, words: [&str; 3]) -> Running {
    let running = Running::start(program, &words);
    let status = Process::new(running.pid()).status().expect("its status");
    assert_eq!(status.seccomp, Some(if words[0] == "worker" { 0 } else { 2 }));
    running
}

/// Asserts that the process was not changed by what refused it, and ends it.
fn unharmed(running: Running, program: &Path) {
    assert_unchanged(running.pid(), &segments(running.pid(), program));
    ends(running);
}

/// Ends the process, and asserts that its code was right all the time.
fn ends(mut running: Running) {
    drop(running.stdin.take());
    assert_eq!(running.line(), "wrong 0");
    assert_eq!(running.finish(), Some(End::Code(0)));
}

/// Both commands refuse the process because its filter does `what`.
fn refuses(running: &Running, program: &Path, what: &str) {
    let before = files(running.pid());
    let outcome = command("attach", &[running.pid()]).bare();
    assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains(&format!("its seccomp filter {what}")), "{outcome:?}");
    assert_eq!(files(running.pid()), before);
    let huge: u64 = segments(running.pid(), program).iter().map(|piece| piece.thp).sum();
    assert_eq!(huge, 0);
}

#[test]
fn a_filter_that_allows_the_calls() {
    need_root!();
    let program = victim();
    let running = start(&program, ["all", "kill", "acct"]);
    let before = files(running.pid());
    done("attach", running.pid());
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "under a filter") >= 2);
    assert_unchanged(running.pid(), &segments(running.pid(), &program));
    done("restore", running.pid());
    assert_eq!(files(running.pid()), before);
    ends(running);
}

#[test]
fn a_filter_that_forbids_a_call() {
    need_root!();
    let program = victim();
    for (action, call, what) in [
        ("1", "mremap", "answers mremap(2) with EPERM"),
        ("kill", "mremap", "kills the process for mremap(2)"),
        ("trap", "mremap", "answers mremap(2) with the signal SIGSYS"),
        // It waits in poll(2) with a timeout, which the kernel would continue by this call.
        ("kill", "restart_syscall", "kills the process for restart_syscall(2)"),
    ] {
        let running = start(&program, ["all", action, call]);
        refuses(&running, &program, what);
        unharmed(running, &program);
    }
}

/// The other thread is borrowed, whichever of the two is under the filter.
#[test]
fn a_filter_of_one_thread() {
    need_root!();
    let program = victim();
    for who in ["main", "worker"] {
        let running = start(&program, [who, "kill", "mremap"]);
        let before = files(running.pid());
        done("attach", running.pid());
        assert!(assert_lifted(&segments(running.pid(), &program), "thp", who) >= 2);
        done("restore", running.pid());
        assert_eq!(files(running.pid()), before, "{who}");
        unharmed(running, &program);
    }
}

fn with_store(store: &Path, running: &Running, backing: &str) -> Outcome {
    let cmd =
        Cmd::new([HUGELIFT, "attach", "--whole", "--backing", backing]).args([running.pid().to_string()]);
    cmd.env("HUGELIFT_STORE", store).bare()
}

/// Where the process cannot receive a file, its copies are anonymous; where it cannot make memory executable, its
/// code is a file of the store, or memory that was mapped as code.
#[test]
fn a_filter_that_leaves_one_way() {
    need_root!();
    let dir = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
    let program = victim();
    // Huge pages of the page cache need no call.
    let copy = Primed::small(&program);
    let running = start(copy.path(), ["all", "13", "socket"]);
    let outcome = with_store(&dir.path().join("store"), &running, "auto");
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    assert!(outcome.stderr.contains("its seccomp filter answers socket(2) with EACCES"), "{outcome:?}");
    assert!(assert_lifted(&segments(running.pid(), copy.path()), "thp", "without files") >= 2);
    unharmed(running, copy.path());

    let running = start(&program, ["all", "1", "mprotect-exec"]);
    let outcome = with_store(&dir.path().join("store"), &running, "shared");
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    for piece in segments(running.pid(), &program) {
        assert_eq!((piece.huge, piece.thp), (piece.inner.map_or(0, |inner| inner.len()), 0), "{piece:?}");
    }
    unharmed(running, &program);

    let running = start(&program, ["all", "1", "mprotect-exec"]);
    // Memory may be mapped as code (the filter of systemd's MemoryDenyWriteExecute= is such a one).
    done("attach", running.pid());
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "mapped as code") >= 2);
    unharmed(running, &program);
}

/// The command is killed before each ptrace operation in turn (in `make test` before every fourth one). What the thread then does by itself is allowed too.
#[test]
fn helper_is_killed_under_a_filter() {
    need_root!();
    let program = victim();
    // Code of a killed tracer stays in the process, so each command has a process of its own.
    let survives = |n: u32| {
        let running = start(&program, ["all", "kill", "acct"]);
        let die = format!("{n}:helper");
        let attach = command_of(WITH_FAULT_POINTS, "attach", &[running.pid()]);
        let outcome = attach.env("HUGELIFT_TEST_DIE", die).bare();
        assert!(matches!(outcome.end, End::Code(0) | End::Signal(9)), "{n}: {outcome:?}");
        unharmed(running, &program);
        outcome.end == End::Code(0)
    };
    let first = some(0..2000, 4).find(|n| survives(*n));
    assert!(first.is_some_and(|n| n > 20), "{first:?}");
}

/// Without the right to read the filter nothing is done, unless it is asked for.
#[test]
fn a_filter_that_cannot_be_read() {
    need_root!();
    need!("setpriv");
    let program = victim();
    let running = start(&program, ["all", "kill", "acct"]);
    let words = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    let outcome = command("attach", &[running.pid()]).under(words).bare();
    assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    let says = |word: &str| outcome.stderr.contains(word);
    assert!(says("CAP_SYS_ADMIN") && says("--seccomp try"), "{outcome:?}");
    assert_unchanged(running.pid(), &segments(running.pid(), &program));
    let outcome = command("attach", &[running.pid()]).args(["--seccomp", "try"]).under(words).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "unread") >= 2);
    unharmed(running, &program);
}
