// SPDX-License-Identifier: Apache-2.0
//! Suite: a program that runs is lifted and restored (`hugelift attach`, `restore`, the watcher of `run`), and
//! does not notice. The victim (victims/live.c) checks its code, its data, its registers, what its system calls
//! return and when, signals, and the bytes around its stacks.

use crate::huge::{Pool, moderate, option, thp};
use crate::place::{alone, hugelift, lacks, needs_root, victim};
use hugelift_os::proc::procfs::Process;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest time for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the victim is lifted and restored.
const ROUNDS: u32 = 4;
/// Bytes of the victim's 12 MB that are in whole huge pages, wherever it is loaded.
const LIFTED: u64 = 8 << 20;

/// The victim. Killed when dropped.
struct Running {
    child: Child,
    pid: u32,
    lines: Receiver<String>,
}

impl Running {
    /// Starts the command, and waits until the victim is ready.
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let running = Running { pid: child.id(), child, lines };
        assert_eq!(running.line(), "ready");
        running
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
            panic!("no line of the victim: {e}\n{status}")
        })
    }

    /// Returns the bytes of its code and its read-only data that are on huge pages. On AArch64 linkers put both
    /// into one segment.
    fn huge(&self) -> u64 {
        let smaps = Process::new(self.pid).smaps().unwrap();
        smaps.iter().filter(|m| !m.mapping.prot.write).map(|m| m.huge()).sum()
    }

    /// Returns its mappings of files.
    fn files(&self) -> Vec<String> {
        let all = Process::new(self.pid).maps().unwrap();
        let files = all.iter().filter(|m| m.is_file());
        files.map(|m| format!("{:?} {:?} {:x} {}", m.range, m.prot, m.offset, m.path.display())).collect()
    }

    /// Makes it report, and asserts that it has noticed nothing.
    fn report(mut self) {
        // SAFETY: kill(2) with the pid of a child that has not been waited for.
        unsafe { libc::kill(self.pid.cast_signed(), libc::SIGTERM) };
        let line = self.line();
        assert!(line.starts_with("{\"errors\":0,"), "{line}");
        println!("{line}");
        drop(self.child.stdin.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Huge pages that a few MB of code can get here.
struct Backing {
    options: Vec<String>,
    _pool: Option<Pool>,
}

/// Returns transparent huge pages of 2 MB, else pages of the pool.
fn backing() -> Option<Backing> {
    if thp() == Some(2 << 20) {
        return Some(Backing { options: ["--backing", "thp"].map(String::from).into(), _pool: None });
    }
    let page = moderate().filter(|page| *page == 2 << 20)?;
    let pool = Pool::of(page);
    let options = ["--backing", "hugetlb", "--page-size", &option(page)].map(String::from).into();
    pool.set(24).then_some(Backing { options, _pool: Some(pool) })
}

fn command(verb: &str, options: &[String], pid: u32) -> Command {
    let mut command = Command::new(hugelift());
    command.arg(verb).args(options).arg(pid.to_string()).stdin(Stdio::null());
    command.env("HUGELIFT_STORE", "/dev/null/none");
    command
}

/// Attaches. On a slow machine each thread may be one that has just woken up, or waits with a timeout, for the two
/// seconds in which hugelift looks for one.
fn attached(options: &[String], pid: u32) -> String {
    done_in_time(|| command("attach", options, pid))
}

fn restored(pid: u32) {
    done_in_time(|| command("restore", &[], pid));
}

fn done_in_time(make: impl Fn() -> Command) -> String {
    let transient = ["may have just woken up", "a stop would extend", "a stop may cut short", "receives a signal"];
    let until = Instant::now() + PATIENCE;
    loop {
        let output = make().output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !transient.iter().any(|why| stderr.contains(why)) || Instant::now() > until {
            assert!(output.status.success() && stderr.is_empty(), "{:?}: {output:?}", make());
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        print!("again: {stderr}");
    }
}

/// Attaches and restores while `mode` of the victim runs.
fn attach_and_restore(mode: &[&str]) {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing() else { lacks!("no huge pages of 2 MB") };
    let running = Running::start(Command::new(victim("live.pie")).args(mode));
    let before = running.files();
    assert_eq!(running.huge(), 0);
    for round in 0..ROUNDS {
        let mut verbose = backing.options.clone();
        verbose.push("-v".into());
        let said = attached(&verbose, running.pid);
        if round == 0 {
            println!("{said}");
        }
        assert!(running.huge() >= LIFTED, "{} {said}", running.huge());
        std::thread::sleep(Duration::from_millis(50));
        restored(running.pid);
        assert_eq!((running.huge(), running.files()), (0, before.clone()), "round {round}");
    }
    running.report();
}

/// A thread is borrowed that computes.
#[test]
fn attach_to_threads_that_compute() {
    attach_and_restore(&[]);
}

/// A thread is borrowed that waits in a system call.
#[test]
fn attach_to_threads_that_wait() {
    attach_and_restore(&["quiet"]);
}

/// hugelift is killed just before each of its operations on the first threads that it borrows.
#[test]
fn helper_killed_at_each_step() {
    const STEPS: u32 = 48;
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing() else { lacks!("no huge pages of 2 MB") };
    let running = Running::start(Command::new(victim("live.pie")).arg("quiet"));
    let mut killed = 0;
    for step in 0..STEPS {
        let mut dying = command("attach", &backing.options, running.pid);
        let output = dying.env("HUGELIFT_TEST_DIE", format!("{step}:helper")).output().unwrap();
        killed += u32::from(output.status.code().is_none());
        if output.status.success() {
            restored(running.pid);
        }
    }
    if killed == 0 {
        lacks!("this hugelift is a release build, without points to die at");
    }
    assert!(killed > STEPS / 2, "{killed} of {STEPS} were killed");
    attached(&backing.options, running.pid);
    assert!(running.huge() >= LIFTED, "{}", running.huge());
    restored(running.pid);
    running.report();
}

/// The watcher of `hugelift run` lifts the program when it has computed for some time.
#[test]
fn watcher_lifts_a_program_that_computes() {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing() else { lacks!("no huge pages of 2 MB") };
    if backing.options[1] != "thp" {
        lacks!("a transparent huge page is larger than the victim");
    }
    let mut run = Command::new(hugelift());
    run.args(["run", "--"]).arg(victim("live.pie")).env("HUGELIFT_STORE", "/dev/null/none");
    let began = Instant::now();
    let running = Running::start(&mut run);
    assert_eq!(running.huge(), 0, "nothing is copied at the start");
    while running.huge() < LIFTED {
        assert!(began.elapsed() < PATIENCE, "{}", running.huge());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("lifted {:?} after its start", began.elapsed());
    running.report();
}
