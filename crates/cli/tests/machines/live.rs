// SPDX-License-Identifier: Apache-2.0
//! Suite: a program that runs is lifted and restored (`hugelift attach`, `restore`, the watcher of `run`), and
//! does not notice. The victim (victims/live.c) checks its code, its data, its registers, what its system calls
//! return and when, signals, and the bytes around its stacks.

use crate::file_maps::files;
use crate::huge::{Pool, moderate, option, thp};
use crate::place::{alone, hugelift, is_guest, lacks, needs_root, victim, with_fault_points};
use hugelift_linux::proc::procfs::Process;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest time for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// A watcher polls with at most 1/1000 of a CPU. In emulation a poll takes 80 to 200 ms of CPU time (seen on Linux 6.1), and
/// what a run's first poll does not lift waits for the second one for that long times 1000.
const SECOND_POLL: Duration = Duration::from_secs(400);
/// How often the victim is lifted and restored.
const ROUNDS: u32 = 2;
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

    /// Returns those of them that are copies. Pages of the file itself may be huge too: large files are written in
    /// large folios.
    fn copied(&self) -> u64 {
        let smaps = Process::new(self.pid).smaps().unwrap();
        smaps.iter().filter(|m| !m.mapping.prot.write).map(|m| m.huge() - m.file_huge).sum()
    }

    /// Asserts that it runs; if it has ended, says what it reported.
    fn has_not_ended(&mut self, what: &str) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{what} has ended with {status}: {}", self.line());
        }
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
        // One that has ended too early has said what it saw.
        if std::thread::panicking()
            && let (Ok(Some(status)), Ok(line)) = (self.child.try_wait(), self.lines.try_recv())
        {
            println!("process {} has ended with {status}: {line}", self.pid);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Huge pages that a few MB of code can get here.
struct Backing {
    options: Vec<String>,
    _pool: Option<Pool>,
}

/// Returns transparent huge pages of 2 MB, else so many pages of the pool.
fn backing(pages: u64) -> Option<Backing> {
    if thp() == Some(2 << 20) {
        return Some(Backing { options: ["--backing", "thp"].map(String::from).into(), _pool: None });
    }
    let page = moderate().filter(|page| *page == 2 << 20)?;
    let pool = Pool::of(page);
    let options = ["--backing", "hugetlb", "--page-size", &option(page)].map(String::from).into();
    pool.set(pages).then_some(Backing { options, _pool: Some(pool) })
}

/// Returns a command `hugelift VERB` for this process. In a guest it has as much time as it needs.
fn command(verb: &str, options: &[String], pid: u32) -> Command {
    if is_guest() { faulty(verb, options, pid) } else { command_of(&hugelift(), verb, options, pid) }
}

/// Returns such a command of the hugelift with fault points, with all the time that it needs.
fn faulty(verb: &str, options: &[String], pid: u32) -> Command {
    let mut command = command_of(&with_fault_points(), verb, options, pid);
    command.env("HUGELIFT_TEST_PATIENCE", "60000");
    command
}

fn command_of(hugelift: &Path, verb: &str, options: &[String], pid: u32) -> Command {
    let mut command = Command::new(hugelift);
    // What sleeps has no samples: all of it is lifted.
    command
        .arg(verb)
        .args((verb == "attach").then_some("--whole"))
        .args(options)
        .arg(pid.to_string())
        .stdin(Stdio::null());
    command.env("HUGELIFT_STORE", "/dev/null/none");
    command
}

/// Attaches. On a slow machine each thread may be one that has just woken up, or waits with a timeout, for the two
/// seconds in which hugelift searches for one.
fn attached(options: &[String], pid: u32) -> String {
    done_in_time(|| command("attach", options, pid))
}

fn restored(pid: u32) -> String {
    done_in_time(|| command("restore", &[], pid))
}

fn done_in_time(make: impl Fn() -> Command) -> String {
    let transient =
        ["may have just woken up", "a stop would extend", "a stop may cut short", "receives a signal"];
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

/// Gives what the command starts the lowest priority. The victim has 17 threads: in an emulated machine they would
/// leave hugelift so little of the two CPUs that it took minutes. On real CPUs the tests in `tests/lift/live` lift
/// such threads at hugelift's own priority.
fn patient(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(|| {
            libc::nice(19);
            Ok(())
        })
    }
}

/// Attaches and restores while `mode` of the victim runs.
fn attach_and_restore(mode: &[&str]) {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24) else { lacks!("no huge pages of 2 MB") };
    let running = Running::start(patient(Command::new(victim("live.pie")).args(mode)));
    let before = files(running.pid);
    assert_eq!(running.copied(), 0);
    for round in 0..ROUNDS {
        let mut verbose = backing.options.clone();
        verbose.push("-v".into());
        let said = attached(&verbose, running.pid);
        if round == 0 {
            println!("{said}");
        }
        assert!(running.copied() >= LIFTED, "{} {said}", running.copied());
        std::thread::sleep(Duration::from_millis(50));
        restored(running.pid);
        assert_eq!((running.copied(), files(running.pid)), (0, before.clone()), "round {round}");
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

/// Children that are forked have the code of their parent, whatever the kernel's page tables were used for before
/// (`Machine::pool_page_is_lost_at_fork`).
#[test]
fn forked_children_have_the_copies() {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24) else { lacks!("no huge pages of 2 MB") };
    let running = Running::start(patient(&mut Command::new(victim("live.pie"))));
    attached(&backing.options, running.pid);
    assert!(running.copied() >= LIFTED, "{}", running.copied());
    for _ in 0..20 {
        // It drops caches of the whole machine.
        if is_guest() {
            free_small_objects();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    running.report();
}

/// Makes the kernel free memory in which it had many small objects.
fn free_small_objects() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..1500 {
        std::fs::File::create(folder.path().join(number.to_string())).unwrap();
    }
    drop(folder);
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// A wait of a program with one thread, how it ends, and what must come of it: the result, errno, the number of
/// handled signals.
struct Wait {
    call: &'static str,
    /// Its timeout in seconds.
    seconds: u64,
    ends_by: EndsBy,
    expected: (i64, i32, u32),
}

#[derive(Clone, Copy, PartialEq)]
enum EndsBy {
    Timeout,
    /// A byte on its stdin.
    Byte,
    /// This signal, after one whose handler lets the call go on.
    Signal(i32),
    /// This signal, and then a byte.
    SignalAndByte(i32),
}

const fn wait(call: &'static str, seconds: u64, ends_by: EndsBy, expected: (i64, i32, u32)) -> Wait {
    Wait { call, seconds, ends_by, expected }
}

/// Returns the timeout of the waits that have one, in seconds. In emulation a lift takes up to 5 s, and these are lifted and
/// restored in two thirds of it.
fn timeout() -> u64 {
    if is_guest() { 45 } else { 15 }
}

/// Returns waits that the kernel continues, restarts, restarts unless there is a handler, and ends with EINTR.
fn waits() -> [Wait; 9] {
    [
        wait("nanosleep", timeout(), EndsBy::Timeout, (0, 0, 0)),
        wait("futex", timeout(), EndsBy::Timeout, (-1, libc::ETIMEDOUT, 0)),
        wait("ppoll", timeout(), EndsBy::Timeout, (0, 0, 0)),
        wait("read", 0, EndsBy::Byte, (1, 0, 0)),
        wait("epoll", 0, EndsBy::Byte, (1, 0, 0)),
        wait("read", 0, EndsBy::SignalAndByte(libc::SIGUSR1), (1, 0, 1)),
        wait("read", 0, EndsBy::Signal(libc::SIGUSR2), (-1, libc::EINTR, 1)),
        wait("epoll", 0, EndsBy::Signal(libc::SIGUSR1), (-1, libc::EINTR, 1)),
        wait("suspend", 0, EndsBy::Signal(libc::SIGUSR1), (-1, libc::EINTR, 1)),
    ]
}

impl Wait {
    fn start(&self) -> Running {
        let seconds = self.seconds.to_string();
        Running::start(Command::new(victim("vm_wait.pie")).args([self.call, &seconds]))
    }

    /// Ends the wait, and asserts that it ends as it would have ended without hugelift.
    fn finish(&self, mut running: Running) {
        let signal = |signal: i32| {
            // SAFETY: kill(2) with the pid of a child that has not been waited for.
            unsafe { libc::kill(running.pid.cast_signed(), signal) };
            std::thread::sleep(Duration::from_millis(200));
        };
        match self.ends_by {
            EndsBy::Timeout | EndsBy::Byte => {}
            EndsBy::Signal(number) | EndsBy::SignalAndByte(number) => signal(number),
        }
        if matches!(self.ends_by, EndsBy::Byte | EndsBy::SignalAndByte(_)) {
            running.child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
        }
        let line = running.line();
        let words: Vec<i64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [result, error, took, handled, wrong] = words[..] else { panic!("{line}") };
        let (call, expected) = (self.call, self.expected);
        let got = (result, error as i32, handled as u32);
        assert_eq!((got, wrong), (expected, 0), "{call}: {line}");
        if self.ends_by == EndsBy::Timeout {
            // A timeout that had begun anew would end half of it later at least.
            let due = 1000 * self.seconds as i64;
            assert!(took >= due - 1 && took < due + due / 3, "{call} of {due} ms: {line}");
        }
        assert_eq!(running.child.wait().unwrap().code(), Some(0));
    }
}

/// Each kind of wait of a program with one thread is borrowed twice, after a third of its timeout, and ends as if nothing
/// had happened.
#[test]
fn each_wait_goes_on() {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24) else { lacks!("no huge pages of 2 MB") };
    let (began, waits) = (Instant::now(), waits());
    let mut all: Vec<(&Wait, Running)> = waits.iter().map(|wait| (wait, wait.start())).collect();
    std::thread::sleep(Duration::from_secs(timeout() / 3).saturating_sub(began.elapsed()));
    for (wait, running) in &mut all {
        running.has_not_ended(wait.call);
        let said = attached(&backing.options, running.pid);
        assert!(running.copied() >= LIFTED, "{}: {said}", wait.call);
        let said = restored(running.pid);
        assert_eq!(running.copied(), 0, "{}: {said}", wait.call);
    }
    // Those with a timeout end last.
    for (wait, running) in all.into_iter().rev() {
        wait.finish(running);
    }
}

/// Waits that go on even if hugelift is killed between its stop of the thread and its first change. One that ends
/// with EINTR after any stop does not.
const KILLED: [Wait; 2] = [
    wait("poll", 0, EndsBy::Byte, (1, 0, 0)),
    wait("nanosleep", 3600, EndsBy::Signal(libc::SIGUSR1), (-1, libc::EINTR, 1)),
];

/// hugelift is killed just before each of its operations on the first threads that it borrows.
#[test]
fn helper_killed_at_each_step() {
    const STEPS: u32 = 36;
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24 + 8 * u64::from(STEPS)) else { lacks!("no huge pages of 2 MB") };
    let usual = waits();
    let waits = [&usual[3], &KILLED[0], &KILLED[1]];
    let all = waits.map(Wait::start);
    let mut killed = 0;
    for step in 0..STEPS {
        // Their steps are nearly the same.
        let running = &all[step as usize % all.len()];
        let mut dying = faulty("attach", &backing.options, running.pid);
        let output = dying.env("HUGELIFT_TEST_DIE", format!("{step}:helper")).output().unwrap();
        killed += u32::from(output.status.code().is_none());
        if output.status.success() {
            restored(running.pid);
        }
    }
    assert!(killed > STEPS / 2, "{killed} of {STEPS} were killed");
    for (wait, running) in waits.into_iter().zip(all) {
        restored(running.pid);
        let said = attached(&backing.options, running.pid);
        assert!(running.copied() >= LIFTED, "{} {said}", running.copied());
        wait.finish(running);
    }
}

/// The watcher of `hugelift run` lifts the program when it has computed for some time.
#[test]
fn watcher_lifts_a_program_that_computes() {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24) else { lacks!("no huge pages of 2 MB") };
    if backing.options[1] != "thp" {
        lacks!("a transparent huge page is larger than the victim");
    }
    let mut run = Command::new(hugelift());
    run.args(["run", "--whole", "--"])
        .arg(victim("vm_wait.pie"))
        .arg("compute")
        .env("HUGELIFT_STORE", "/dev/null/none");
    let began = Instant::now();
    let running = Running::start(&mut run);
    if running.huge() > 0 {
        lacks!("the page cache of the victim is huge already");
    }
    while running.huge() < LIFTED {
        assert!(began.elapsed() < SECOND_POLL, "{}", running.huge());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("lifted {:?} after its start", began.elapsed());
    wait("compute", 0, EndsBy::Byte, (0, 0, 0)).finish(running);
}

/// A watcher lifts a program that the watched program has started by fork(2) and execve(2). It lifts at its first poll
/// (`--eager`): in emulation the second one may come minutes later ([`SECOND_POLL`]), and a lift takes seconds of CPU
/// time.
#[test]
fn watcher_lifts_a_child() {
    needs_root!();
    let _alone = alone();
    let Some(backing) = backing(24) else { lacks!("no huge pages of 2 MB") };
    if backing.options[1] != "thp" {
        lacks!("a transparent huge page is larger than the victim");
    }
    let mut running = Running::start(Command::new(victim("vm_wait.pie")).arg("parent"));
    let parent = running.pid;
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    running.pid = children.trim().parse().expect("one child");
    if running.huge() > 0 {
        lacks!("the page cache of the victim is huge already");
    }
    let began = Instant::now();
    let mut watch = command("attach", &backing.options, parent);
    let watcher = Watcher(watch.args(["--watch", "--eager", "--children", "lift"]).spawn().unwrap());
    while running.huge() < LIFTED {
        assert!(began.elapsed() < PATIENCE, "{}", running.huge());
        std::thread::sleep(Duration::from_millis(50));
    }
    running.child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
    let line = running.line();
    assert!(line.ends_with(" 0"), "{line}");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    drop(watcher);
}

/// A watcher. Killed when dropped.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory that a program has mapped is collapsed from outside, and keeps its content.
#[test]
fn anonymous_memory_is_collapsed() {
    /// Bytes that the victim maps.
    const MAPPED: u64 = 16 << 20;
    needs_root!();
    let _alone = alone();
    let Some(page) = thp().filter(|page| page * 2 <= MAPPED) else {
        lacks!("no transparent huge pages of 8 MB or less")
    };
    let mut running = Running::start(Command::new(victim("vm_wait.pie")).arg("anon"));
    let pid = running.pid;
    let huge = || Process::new(pid).smaps().unwrap().iter().map(|m| m.anon_huge).sum::<u64>();
    assert!(huge() < page, "it is huge without us: {}", huge());
    // Where the CPU is emulated, the usual CPU time does not suffice.
    let said = attached(&["--parts", "anon", "--cpu-budget", "60"].map(String::from), pid);
    assert!(huge() >= MAPPED - page, "{} {said}", huge());
    running.child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
    let line = running.line();
    assert!(line.ends_with(" 0"), "{line}");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}
