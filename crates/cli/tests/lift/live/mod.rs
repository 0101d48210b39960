// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach` and `hugelift restore`: a process is lifted while it runs, and does not notice.

mod asked;
mod data;
mod denied;
mod dispatched;
mod execs;
mod filtered;
mod frozen;
mod go;
mod holes;
mod hostile;
mod kernel_threads;
mod killed;
mod moments;
mod places;
mod refused;
mod rounds;
mod unusual;
mod writable;
mod written_back;

use crate::common::huge::{Piece, files, pieces};
use crate::common::run::{PATIENCE, end_group, lines_of, spawn, wait};
use crate::common::{Cmd, End, HUGELIFT, Outcome, fat};
use hugelift_linux::proc::procfs::Process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The arguments of the victim: with all its threads, and with those alone that mostly wait. In the first
/// case a thread is borrowed that computes, in the second one that waits in a system call.
const MODES: [&[&str]; 2] = [&[], &["quiet"]];

/// Builds the victim. Its functions are bound when it starts, because the loader needs more stack than a
/// small coroutine has.
fn victim() -> PathBuf {
    fat("live").flags(&["-Wl,-z,now"]).build()
}

/// A program that prints "ready", runs until SIGTERM, prints a line of JSON, and ends at the end of its
/// stdin. Killed when dropped.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    /// A test may tell it what to do while it runs a command.
    lines: Mutex<Receiver<String>>,
}

impl Running {
    /// Starts it and waits until it is ready.
    fn start(program: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> Running {
        let running = Running::begin(program, args);
        assert_eq!(running.line(), "ready");
        running
    }

    /// Starts it.
    fn begin(program: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> Running {
        let mut command = Cmd::new([program]).args(args).command(None);
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = spawn(&mut command).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let lines = Mutex::new(lines_of(child.stdout.take().expect("stdout is piped")));
        Running { stdin: child.stdin.take(), child, lines }
    }

    /// Returns the next line that it prints in this time.
    fn line_within(&self, time: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.lock().expect("no other thread has panicked").recv_timeout(time)
    }

    /// Returns the next line that it prints.
    fn line(&self) -> String {
        self.line_within(PATIENCE).unwrap_or_else(|e| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
            panic!("no line of process {}: {e}\n{status}", self.pid())
        })
    }

    /// Returns its process id.
    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("kill");
    }

    /// Makes it report, and asserts that nothing went wrong. It still exists, without its threads.
    fn report(&self) -> Value {
        self.signal(Signal::SIGTERM);
        let line = self.line();
        let report: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(report["errors"], 0, "{line}");
        report
    }

    /// Closes its stdin and waits for its end.
    fn finish(mut self) -> Option<End> {
        drop(self.stdin.take());
        wait(&mut self.child, Instant::now() + PATIENCE)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// Returns a command `hugelift VERB` for these processes.
fn command(verb: &str, pids: &[u32]) -> Cmd {
    command_of(HUGELIFT, verb, pids)
}

fn command_of(hugelift: &str, verb: &str, pids: &[u32]) -> Cmd {
    let options: &[&str] = if verb == "attach" { &["--whole", "--backing", "thp"] } else { &[] };
    Cmd::new([hugelift, verb]).args(options).args(pids.iter().map(u32::to_string))
}

/// Runs `hugelift VERB` for a process, and asserts that it succeeds.
fn done(verb: &str, pid: u32) -> Outcome {
    let outcome = command(verb, &[pid]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{verb}: {outcome:?}");
    assert_eq!(outcome.stdout.lines().count(), 1, "{verb}: {outcome:?}");
    assert!(outcome.stdout.contains(&pid.to_string()), "{verb}: {outcome:?}");
    outcome
}

/// Returns the read-only segments of a program in a process.
fn segments(pid: u32, program: &Path) -> Vec<Piece> {
    pieces(pid, &[program.canonicalize().expect("it is there")])
}

/// Returns the bytes of its mappings that have neither a file nor a name.
fn unnamed(pid: u32) -> u64 {
    let all = Process::new(pid).maps().expect("its maps");
    all.iter().filter(|m| m.path.as_os_str().is_empty()).map(|m| m.range.len()).sum()
}

/// Returns its descriptors. The victim opens files in /proc all the time, which are left out.
fn descriptors(pid: u32) -> Vec<String> {
    let dir = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let link = |entry: std::fs::DirEntry| {
        let to = std::fs::read_link(entry.path()).ok()?;
        (!to.starts_with("/proc")).then(|| format!("{} {}", entry.file_name().display(), to.display()))
    };
    let mut all: Vec<String> = dir.filter_map(Result::ok).filter_map(link).collect();
    all.sort();
    all
}

/// Sleeps for a random time below `most`.
fn pause(most: Duration) {
    std::thread::sleep(most.mul_f64(fastrand::f64()));
}
