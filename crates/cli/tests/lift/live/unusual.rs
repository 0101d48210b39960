// SPDX-License-Identifier: Apache-2.0
//! Processes in unusual states: without their first thread, with sealed memory, with a limit on new code, in a root of their
//! own, or in the hands of another hugelift.

use super::{Running, command, command_of, done, segments};
use crate::common::huge::assert_lifted;
use crate::common::moments::at_moments;
use crate::common::run::{PATIENCE, end_group, lines_of, wait};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, WITH_FAULT_POINTS, fat, open_dir};
use crate::{need, need_root};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Starts the victim in a mode. Returns `None` if the kernel does not have it.
fn start(program: &Path, mode: &str) -> Option<Running> {
    let running = Running::begin(program, &[mode]);
    match running.line().as_str() {
        "wrong 0" => assert_eq!(running.line(), "ready"),
        lacks => {
            crate::common::skipped(lacks);
            return None;
        }
    }
    Some(running)
}

fn ends(mut running: Running) {
    drop(running.stdin.take());
    assert_eq!(running.line(), "wrong 0");
    assert_eq!(running.finish(), Some(End::Code(0)));
}

fn said(outcome: &Outcome, words: &[&str]) {
    for word in words {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
    }
}

/// Where the first thread has ended, the process is reached by another one.
#[test]
fn issue_29_c13_the_first_thread_has_ended() {
    let program = fat("unusual").flags(&["-pthread"]).build();
    let Some(running) = start(&program, "headless") else { return };
    let pid = running.pid();
    let own = segments_of(pid, &program);
    assert_eq!(own, 0, "nothing is lifted yet");
    done("attach", pid);
    assert!(segments_of(pid, &program) >= 8 << 20);
    let inspected = Cmd::new([HUGELIFT, "inspect", &pid.to_string()]).bare();
    assert_eq!((inspected.end, inspected.stderr.as_str()), (End::Code(0), ""), "{inspected:?}");
    assert!(inspected.stdout.contains("(100 % of what is liftable)"), "{inspected:?}");
    let compare = ["compare", "--period", "50ms", "--settle", "10ms", "--pairs", "6", "--pid"];
    for words in [&["doctor", "--pid"][..], &["prime", "--check", "--pid"], &compare] {
        let outcome = Cmd::new([HUGELIFT]).args(words).arg(pid.to_string()).bare();
        assert!(!outcome.stderr.contains("zombie") && !outcome.stdout.contains("zombie"), "{outcome:?}");
    }
    done("restore", pid);
    assert_eq!(segments_of(pid, &program), 0);
    // A watch reaches it in the same way, and does not take the end of the first thread for that of the process.
    let words = ["attach", "--watch", "--eager", "--backing", "thp"];
    let mut watch = Cmd::new([HUGELIFT]).args(words).arg(pid.to_string()).command(None);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("a watch");
    let lines = lines_of(watch.stdout.take().expect("piped"));
    let line = lines.recv_timeout(PATIENCE).expect("a line");
    assert!(line.contains(&format!("(process {pid}): text 4 MB of 4 MB")), "{line}");
    ends(running);
    assert_eq!(wait(&mut watch, Instant::now() + PATIENCE), Some(End::Code(0)));
}

/// Returns the bytes of the code and constants of a process that are huge, by the mappings of any of its threads.
fn segments_of(pid: u32, program: &Path) -> u64 {
    let process = hugelift_linux::proc::procfs::Process::new(pid);
    let tids = process.threads().into_iter().map(i32::cast_unsigned);
    let alive = tids.filter(|tid| hugelift_linux::proc::procfs::Process::new(*tid).maps().is_ok()).max();
    segments(alive.expect("a thread"), program).iter().map(|piece| piece.thp).sum()
}

/// Sealed memory is left alone, and the line says why; so is a copy that was sealed afterwards.
#[test]
fn issue_29_c13_sealed_memory() {
    let program = fat("unusual").flags(&["-pthread"]).build();
    let Some(running) = start(&program, "sealed") else { return };
    let outcome = command("attach", &[running.pid()]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    assert!(outcome.stdout.contains("is sealed (mseal): the kernel lets nobody replace it"), "{outcome:?}");
    ends(running);

    let Some(mut running) = start(&program, "") else { return };
    let pid = running.pid();
    done("attach", pid);
    running.stdin.as_mut().expect("piped").write_all(b"s").expect("write");
    assert_eq!(running.line(), "sealed");
    let outcome = command("restore", &[pid]).bare();
    said(&outcome, &["of text of", "of rodata of", "not restored: it is sealed (mseal)"]);
    assert!(assert_lifted(&segments(pid, &program), "thp", "sealed") >= 2);
    ends(running);
}

/// Memory that was not executable may not become so (PR_SET_MDWE): it is mapped as code at once, at a start too.
#[test]
fn issue_29_c13_memory_may_not_become_code() {
    let program = fat("unusual").flags(&["-pthread"]).build();
    let Some(running) = start(&program, "mdwe") else { return };
    done("attach", running.pid());
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "mdwe") >= 2);
    done("restore", running.pid());
    ends(running);

    let hold = fat("hold").build();
    let launcher = Path::new(HUGELIFT);
    let words = [&program, Path::new("mdwe"), launcher, Path::new("run")];
    let cmd = Cmd::new(words).args(["--eager", "--backing", "thp", "-v", "--"]).arg(&hold);
    let outcome = cmd.bare();
    assert_eq!(
        (outcome.end, outcome.stdout.as_str()),
        (End::Code(0), "wrong 0\nready\nwrong 0\n"),
        "{outcome:?}"
    );
    let line = outcome.own_lines().join("\n");
    assert!(line.contains("text 6 MB of 6 MB"), "{outcome:?}");
}

/// The kernel shows the files of a process in a root of its own by paths from the root of who reads them. Without the right
/// to follow the links in map_files, their paths lead to them.
#[test]
fn issue_29_c13_a_root_of_its_own() {
    need_root!();
    need!("setpriv", "unshare", "chroot");
    let (program, library) = (fat("watched").build(), fat("watched").library().build());
    let dir = open_dir(&[]);
    let hugelift = dir.path().join(Path::new(HUGELIFT).file_name().expect("a name"));
    // The root of the process, with all that the program needs.
    let root = dir.path().join("root");
    let copy = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("mkdir");
        let copied = Command::new("install").args(["-m755"]).arg(from).arg(to).status();
        assert!(copied.is_ok_and(|status| status.success()));
    };
    copy(&program, "watched");
    copy(&library, "late.so");
    let listed = Cmd::new(["ldd"]).arg(&program).bare().stdout;
    listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .for_each(|path| copy(Path::new(path), path));
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let words =
        ["unshare", "-Ur", "chroot", root.to_str().expect("UTF-8"), "/watched", "opens", "/late.so", "4"];
    let mut command = Cmd::new(as_nobody).args(words).command(None);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the victim");
    let pid = child.id();
    let has =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|m| m.contains(name));
    let end = Instant::now() + PATIENCE;
    while !has("late.so") {
        assert!(
            Instant::now() < end && child.try_wait().is_ok_and(|ended| ended.is_none()),
            "it opens nothing"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let place = tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm");
    std::os::unix::fs::chown(place.path(), Some(65534), Some(65534)).expect("chown");
    let attach = Cmd::new(as_nobody)
        .arg(&hugelift)
        .args(["attach", "--whole", "--backing", "shared"])
        .arg(pid.to_string());
    let outcome = attach.env("HUGELIFT_STORE", place.path().join("store")).bare();
    let from_store = has(place.path().to_str().expect("UTF-8"));
    end_group(&mut child);
    assert!(!outcome.stderr.contains("no longer the file") && from_store, "{outcome:?}");
}

/// Another hugelift that holds a thread of the process is named as such, and nobody is told to end it.
#[test]
fn issue_29_c13_another_hugelift_is_named() {
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    let mut seen = Vec::new();
    let first = command_of(WITH_FAULT_POINTS, "attach", &[pid]);
    let (first, _) = at_moments(&first, |_| {
        if seen.is_empty() && !held.is_untraced() {
            seen.extend(["attach", "restore"].map(|verb| command(verb, &[pid]).bare()));
        }
    });
    assert_eq!(first.end, End::Code(0), "{first:?}");
    assert_eq!(seen.len(), 2, "it is never traced");
    for outcome in seen {
        assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(125), 1), "{outcome:?}");
        said(&outcome, &["another hugelift (process ", "changes it just now; try again when it is done"]);
    }
    assert!(held.finish().stdout.ends_with("wrong 0\n"));
}
