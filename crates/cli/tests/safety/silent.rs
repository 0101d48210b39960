// SPDX-License-Identifier: Apache-2.0
//! Tests that a user whose file system stops to answer does not stop root's commands.

use super::common::held::Held;
use super::common::mounts::{run, with_own_mounts};
use super::common::run::{end_group, wait};
use super::common::{Cmd, End, HUGELIFT, WITH_FAULT_POINTS, fat, open_dir, plain};
use crate::{need, need_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command of root ends within this time. It would else wait as long as the file system does not answer.
const SOON: Duration = Duration::from_secs(60);

/// A FUSE file system of the user nobody, with the file `program`. Its end lets those go who wait for it.
struct Silent {
    daemon: Child,
    said: BufReader<std::process::ChildStdout>,
    at: PathBuf,
}

impl Silent {
    fn new(dir: &Path, program: &Path) -> Silent {
        Silent::with(dir, program, &[])
    }

    fn with(dir: &Path, program: &Path, words: &[&str]) -> Silent {
        let at = dir.join("silent");
        std::fs::create_dir(&at).expect("a directory");
        let mut command = Command::new(plain("fuse").build());
        let piped = command.arg(&at).arg(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut daemon = piped.spawn().expect("the file system starts");
        let said = BufReader::new(daemon.stdout.take().expect("piped"));
        let mut silent = Silent { daemon, said, at };
        silent.hear("ready");
        silent
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line of the file system");
        assert_eq!(line.trim_end(), word);
    }

    /// From here on it answers nothing.
    fn stop(&mut self) {
        drop(self.daemon.stdin.take());
        self.hear("stopped");
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// Starts a command of root.
fn start(words: &[&str]) -> Child {
    let mut command = Command::new(HUGELIFT);
    command.args(words).env("HUGELIFT_STORE", "/dev/null/none").process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hugelift starts")
}

/// Waits for the end of a command; returns how it ended and what it said.
fn ended(mut child: Child, silent: &mut Silent, words: &[&str]) -> (End, String) {
    let Some(end) = wait(&mut child, Instant::now() + SOON) else {
        let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", child.id()));
        // Nothing but this ends its wait.
        let _ = silent.daemon.kill();
        end_group(&mut child);
        panic!("{words:?} does not end: {wchan:?}");
    };
    let mut text = String::new();
    let _ = child.stdout.take().map(|mut out| out.read_to_string(&mut text));
    let _ = child.stderr.take().map(|mut err| err.read_to_string(&mut text));
    (end, text)
}

/// Whether the kernel has still a list in which the file system is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mounted {
    Yes,
    /// It was unmounted lazily: only the process has it.
    NotAnyMore,
}

fn nothing_waits(mounted: Mounted) {
    let (thief, other) = (plain("thief").build(), fat("hold").flags(&["-no-pie"]).build());
    let dir = open_dir(&[&thief, &other]);
    let program = fat("sums").flags(&["-no-pie"]).build();
    // Dropped before the process, which waits for it at its end.
    let mut maps = None;
    let mut silent = Silent::new(dir.path(), &program);
    let thief = dir.path().join(thief.file_name().expect("a name"));
    let other = dir.path().join(other.file_name().expect("a name"));
    let at = silent.at.join("program");
    let words = [thief.to_str(), at.to_str(), Some("-"), Some("-"), Some("-"), Some("-")].map(Option::unwrap);
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let maps = &*maps.insert(Held::start(&Cmd::new(words).under(as_nobody), None, &thief));
    let other = Held::start(&Cmd::new([&other]), None, &other);
    silent.stop();
    if mounted == Mounted::NotAnyMore {
        run(&["umount", "-l", silent.at.to_str().expect("UTF-8")]);
    }
    let (pid, other_pid) = (maps.pid().to_string(), other.pid().to_string());

    let watch = ["attach", "--watch", "--eager", "--backing", "thp", &pid, &other_pid];
    let watcher = start(&watch);
    let began = Instant::now();
    let is_huge = || {
        let smaps = other.proc("smaps");
        smaps.lines().any(|l| l.strip_prefix("AnonHugePages:").is_some_and(|kb| kb.trim() != "0 kB"))
    };
    while !is_huge() && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(20));
    }
    let lifted = is_huge();
    kill(Pid::from_raw(watcher.id().cast_signed()), Signal::SIGTERM).expect("kill");
    let (end, said) = ended(watcher, &mut silent, &watch);
    assert!(lifted, "{mounted:?}: the other process is not lifted: {end:?} {said}");

    for words in [
        &["attach", "--whole", "--backing", "thp", &pid][..],
        &["attach", "--whole", "--dry-run", &pid],
        &["inspect", &pid],
        &["doctor", "--pid", &pid],
        &["restore", &pid],
        &["prime", "--check", "--pid", &pid],
        &["top", "--once"],
    ] {
        let (end, said) = ended(start(words), &mut silent, words);
        assert!(matches!(end, End::Code(0 | 1)), "{mounted:?} {words:?}: {end:?} {said}");
        if ["attach", "inspect"].contains(&words[0]) {
            assert!(said.contains("may not answer"), "{mounted:?} {words:?}: {said}");
        }
    }
}

/// A process of the user nobody has mapped a program from a file system in user space that answers nothing any more. root
/// lifts the other processes, and its commands say why this one is left alone.
#[test]
fn a_file_system_that_stops_to_answer_holds_nothing_up() {
    need_root!();
    need!("setpriv");
    if !Path::new("/dev/fuse").exists() {
        skip!("the kernel has no FUSE");
    }
    with_own_mounts(|| nothing_waits(Mounted::Yes));
}

/// A process of the user nobody runs a program from a file system that lets in nobody else: what root cannot see is said,
/// and no capability is named that hugelift has.
#[test]
fn issue_29_c13_a_file_system_that_lets_only_its_user_in() {
    need_root!();
    need!("setpriv");
    if !Path::new("/dev/fuse").exists() {
        skip!("the kernel has no FUSE");
    }
    with_own_mounts(|| {
        let program = fat("hold").flags(&["-no-pie", "-static"]).build();
        let dir = open_dir(&[]);
        let mut runs = None;
        let silent = Silent::with(dir.path(), &program, &["alone"]);
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(silent.at.join("program"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let _stdin = child.stdin.take();
        let pid = child.id().to_string();
        let _runs = &*runs.insert(Ended(child));
        assert!(said.any(|line| line.expect("UTF-8") == "ready"));
        for words in [
            &["attach", "--whole", "--backing", "thp", &pid][..],
            &["attach", "--watch", "--eager", "--backing", "thp", &pid],
            &["inspect", &pid],
            &["doctor", "--pid", &pid],
            &["restore", &pid],
        ] {
            let outcome = Cmd::new([HUGELIFT]).args(words).bare();
            println!("{words:?}: {}{}", outcome.stdout, outcome.stderr);
            assert!(!outcome.stderr.contains("capabilities which hugelift lacks"), "{words:?}: {outcome:?}");
            if words.contains(&"--watch") {
                assert!(outcome.stderr.contains("FUSE without allow_other"), "{words:?}: {outcome:?}");
            }
        }
    });
}

/// The same where the file system is in no list of mounts any more.
#[test]
fn a_file_system_that_is_mounted_nowhere_holds_nothing_up() {
    need_root!();
    need!("setpriv");
    if !Path::new("/dev/fuse").exists() {
        skip!("the kernel has no FUSE");
    }
    with_own_mounts(|| nothing_waits(Mounted::NotAnyMore));
}

/// A process of the user nobody maps a file from such a file system over its code while root's watcher lifts it. The child
/// that lifts it waits; the watcher goes on.
#[test]
fn a_process_that_keeps_hugelift_waiting_holds_up_no_other() {
    need_root!();
    need!("setpriv");
    if !Path::new("/dev/fuse").exists() {
        skip!("the kernel has no FUSE");
    }
    with_own_mounts(|| {
        let (remaps, other) =
            (fat("remaps").flags(&["-no-pie"]).build(), fat("hold").flags(&["-no-pie"]).build());
        let dir = open_dir(&[&remaps, &other]);
        let [remaps, other] = [remaps, other].map(|path| dir.path().join(path.file_name().expect("a name")));
        // Dropped before the processes that wait for it.
        let mut processes = None;
        let mut silent = Silent::new(dir.path(), &remaps);
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&remaps)
            .arg(silent.at.join("program"));
        let mut thief = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(thief.stdout.take().expect("piped")).lines();
        assert_eq!(said.next().expect("a line").expect("UTF-8"), "ready");
        let mut order = thief.stdin.take().expect("piped");
        let (pid, thief) = (thief.id().to_string(), Ended(thief));
        let (_thief, other) = &*processes.insert((thief, Held::start(&Cmd::new([&other]), None, &other)));
        let other_pid = other.pid().to_string();
        silent.stop();

        let moments = dir.path().join("moments");
        let listener = UnixListener::bind(&moments).expect("a socket");
        let watch = ["attach", "--watch", "--eager", "--backing", "thp", &pid, &other_pid];
        let mut command = Command::new(WITH_FAULT_POINTS);
        command.args(watch).env("HUGELIFT_STORE", "/dev/null/none").env("HUGELIFT_TEST_MOMENTS", &moments);
        command.env("HUGELIFT_TEST_PATIENCE", "3000").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let watcher = command.spawn().expect("hugelift starts");
        // The first fault point is behind the look at the process and before the first call in it.
        std::thread::spawn(move || {
            let mut has_acted = false;
            for helper in listener.incoming() {
                let mut helper = helper.expect("a connection");
                if !std::mem::replace(&mut has_acted, true) {
                    order.write_all(b"x").expect("the order");
                    assert_eq!(said.next().expect("a line").expect("UTF-8"), "mapped");
                }
                std::thread::spawn(move || {
                    let mut number = [0; 8];
                    while helper.read_exact(&mut number).is_ok() && helper.write_all(&[0]).is_ok() {}
                });
            }
        });
        let began = Instant::now();
        let is_huge = || {
            let smaps = other.proc("smaps");
            smaps.lines().any(|l| l.strip_prefix("AnonHugePages:").is_some_and(|kb| kb.trim() != "0 kB"))
        };
        while !is_huge() && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(20));
        }
        let lifted = is_huge();
        kill(Pid::from_raw(watcher.id().cast_signed()), Signal::SIGTERM).expect("kill");
        let (end, text) = ended(watcher, &mut silent, &watch);
        assert!(lifted, "the other process is not lifted: {end:?} {text}");
        assert!(text.contains("did not answer for"), "{end:?} {text}");
    });
}

/// A process that is killed at the end of a test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of another user is lifted by a child of the watcher, which also prints what was done.
#[test]
fn a_child_that_can_not_print_ends_the_watch_with_an_error() {
    need_root!();
    let program = fat("hold").flags(&["-no-pie"]).build();
    let dir = open_dir(&[&program]);
    let program = dir.path().join(program.file_name().expect("a name"));
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let held = Held::start(&Cmd::new([&program]).under(as_nobody), None, &program);
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut command = Command::new(HUGELIFT);
    command.args(["attach", "--watch", "--eager", "--backing", "thp", &held.pid().to_string()]);
    command.process_group(0).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
    let mut watcher = command.spawn().expect("hugelift starts");
    let end = wait(&mut watcher, Instant::now() + SOON);
    end_group(&mut watcher);
    let mut said = String::new();
    let _ = watcher.stderr.take().map(|mut err| err.read_to_string(&mut said));
    assert_eq!(end, Some(End::Code(125)), "{said}");
    assert!(said.contains("standard output cannot be written, so the watch has ended"), "{said}");
    held.finish();
}
