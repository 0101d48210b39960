// SPDX-License-Identifier: Apache-2.0
//! Programs whose system calls are dispatched to themselves (PR_SET_SYSCALL_USER_DISPATCH), as Wine's are. A call that
//! hugelift made in such a thread would not be made, and the thread would get SIGSYS.

use super::{Running, command, done, files, segments};
use crate::common::huge::{assert_lifted, assert_unchanged};
use crate::common::run::{PATIENCE, lines_of};
use crate::common::{Cmd, End, HUGELIFT, Primed, WITH_FAULT_POINTS, fat, plain};
use crate::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Makes the kernel one from before Linux 6.4, which does not show whether calls are dispatched.
const UNSEEN: (&str, &str) = ("HUGELIFT_TEST_LACKS", "PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG");

/// What every message says of such a process.
const SAYS: &str = "PR_SET_SYSCALL_USER_DISPATCH";

fn victim() -> PathBuf {
    fat("dispatched").flags(&["-Wl,-z,now"]).build()
}

/// Starts the victim; `None` if this kernel dispatches no calls.
fn start(program: &Path, who: &str) -> Option<Running> {
    let mut running = Running::begin(program, &[who]);
    match running.line_within(PATIENCE) {
        Ok(line) => assert_eq!(line, "ready"),
        Err(_) => {
            assert_eq!(
                running.child.wait().expect("wait").code(),
                Some(77),
                "it has ended for another reason"
            );
            return None;
        }
    }
    Some(running)
}

/// Ends the victim, and asserts that it has got no SIGSYS but for its own calls, which its handler has got.
fn ends(mut running: Running, own: u32) {
    drop(running.stdin.take());
    assert_eq!(running.line(), format!("foreign 0 own {own} wrong 0"));
    assert_eq!(running.finish(), Some(End::Code(0)));
}

/// The command, as it is and on a kernel that shows less.
fn both(pid: u32) -> [Cmd; 2] {
    let unseen = Cmd::new([WITH_FAULT_POINTS, "attach", "--whole", "--backing", "thp"]).arg(pid.to_string());
    [command("attach", &[pid]), unseen.env(UNSEEN.0, UNSEEN.1)]
}

#[test]
fn all_threads_dispatch_their_calls() {
    let program = victim();
    let Some(running) = start(&program, "all") else { skip!("no syscall user dispatch here") };
    let before = files(running.pid());
    for cmd in both(running.pid()) {
        let outcome = cmd.bare();
        assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(outcome.stderr.contains(SAYS), "{outcome:?}");
        assert_eq!(files(running.pid()), before);
    }
    assert_unchanged(running.pid(), &segments(running.pid(), &program));
    ends(running, 2);
}

/// The other thread is borrowed.
#[test]
fn one_thread_dispatches_its_calls() {
    let program = victim();
    let Some(running) = start(&program, "main") else { skip!("no syscall user dispatch here") };
    let before = files(running.pid());
    for cmd in both(running.pid()) {
        let outcome = cmd.bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        assert!(assert_lifted(&segments(running.pid(), &program), "thp", "by the other thread") >= 2);
        done("restore", running.pid());
        assert_eq!(files(running.pid()), before);
    }
    ends(running, 1);
}

/// Data are replaced while all threads are stopped, with code to wait that makes calls if hugelift is killed.
#[test]
fn data_of_a_program_that_dispatches_calls() {
    let program = fat("dispatched").flags(&["-Wl,-z,now", "-DWITH_DATA"]).build();
    let Some(running) = start(&program, "main") else { skip!("no syscall user dispatch here") };
    for cmd in both(running.pid()) {
        let outcome = cmd.args(["--parts", "data"]).bare();
        let says = |line: &str| line.contains(SAYS) && line.contains("could not all be stopped");
        assert!(outcome.stderr.lines().chain(outcome.stdout.lines()).any(says), "{outcome:?}");
    }
    ends(running, 1);
}

/// Waits until hugelift says this. Returns what is written to stdout.
fn says(child: &mut Child, words: &str) -> Receiver<String> {
    let errors = lines_of(child.stderr.take().expect("stderr is piped"));
    let out = lines_of(child.stdout.take().expect("stdout is piped"));
    let until = Instant::now() + PATIENCE;
    loop {
        match errors.recv_timeout(Duration::from_millis(20)) {
            Ok(line) if line.contains(words) => return out,
            Ok(line) => println!("{line}"),
            Err(error) => {
                assert_eq!(error, RecvTimeoutError::Timeout, "it has ended");
                assert!(Instant::now() < until, "it says nothing");
            }
        }
    }
}

#[test]
fn attach_watch_leaves_such_a_program_alone() {
    let program = victim();
    let Some(running) = start(&program, "all") else { skip!("no syscall user dispatch here") };
    let words = ["attach", "--watch", "--eager", "-v", "--backing", "thp", &running.pid().to_string()];
    let mut watch = Cmd::new([HUGELIFT]).args(words).command(None).spawn().expect("hugelift");
    says(&mut watch, SAYS);
    kill(Pid::from_raw(watch.id().cast_signed()), Signal::SIGTERM).expect("kill");
    watch.wait().expect("wait");
    ends(running, 2);
}

/// The watcher of a run borrows a thread as soon as the program has computed for some time.
#[test]
fn the_watcher_of_a_run_leaves_such_a_program_alone() {
    let program = victim();
    if start(&program, "all").is_none() {
        skip!("no syscall user dispatch here");
    }
    // With huge pages in the page cache nothing would be left to the watcher.
    let copy = Primed::small(&program);
    let words = ["run", "-v", "--whole", "--"];
    let mut command = Cmd::new([HUGELIFT]).args(words).arg(copy.path()).arg("computing").command(None);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("hugelift");
    // It says so once. On a busy machine the reason may be that no thread has stopped in time.
    let lines = says(&mut child, "is not lifted while it runs");
    drop(child.stdin.take());
    let rest: Vec<String> = lines.iter().collect();
    assert_eq!(rest, ["ready", "foreign 0 own 2 wrong 0"]);
    assert!(child.wait().expect("wait").success());
}

/// A shared object has calls dispatched from its constructor on, before the program's first own instruction: the entry
/// stub's calls would be dispatched too.
#[test]
fn a_constructor_that_dispatches_calls() {
    let library = plain("dispatched").library().build();
    let program = fat("dispatched").flags(&["-Wl,-z,now", "-Wl,--no-as-needed"]).with(library).build();
    let cmd = Cmd::new([&program]).arg("loading").env("DISPATCHES", "1");
    let bare = cmd.bare();
    if bare.end == End::Code(77) {
        skip!("no syscall user dispatch here");
    }
    assert_eq!(bare.stdout, "ready\nforeign 0 own 1 wrong 0\n", "{bare:?}");
    for options in [&["--backing", "thp"] as &[&str], &["--backing", "thp", "-v"]] {
        let lifted = cmd.lifted(options);
        assert_eq!((lifted.end, &lifted.stdout), (bare.end, &bare.stdout), "{lifted:?}");
        assert!(lifted.own_lines().iter().any(|line| line.contains(SAYS)), "{lifted:?}");
    }
}
