// SPDX-License-Identifier: Apache-2.0
//! Data and RELRO of a running process, which its threads write to all the time.

use super::{Running, done, pause};
use crate::common::huge::{assert_no_wx, files, smaps};
use crate::common::level;
use crate::common::run::{PATIENCE, lines_of, wait};
use crate::common::{Cmd, End, HUGELIFT, Outcome, WITH_FAULT_POINTS, fat, skipped};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Headers;
use hugelift_linux::proc::procfs::Process;
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The victims have 17 threads, half of which compute all the time: one at a time, beside the other tests.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest pause between two steps.
const PAUSE: Duration = Duration::from_millis(40);

/// Builds the victim. RELRO is protected when it starts.
fn victim() -> PathBuf {
    fat("written").flags(&["-Wl,-z,now"]).build()
}

/// Returns a command that lifts data and RELRO.
fn attach(pid: u32) -> Cmd {
    attach_by(HUGELIFT, pid)
}

fn attach_by(hugelift: &str, pid: u32) -> Cmd {
    Cmd::new([hugelift, "attach", "--parts", "data", "--json"]).arg(pid.to_string())
}

/// What of RELRO and of data is a copy, and what could be: whole huge pages. A child of fork(2) splits the huge
/// pages of data, so that they are no longer huge for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Copied {
    relro: (u64, u64),
    data: (u64, u64),
}

impl Copied {
    fn is_nothing(self) -> bool {
        (self.relro.0, self.data.0) == (0, 0)
    }

    fn is_all(self) -> bool {
        self.relro.0 == self.relro.1 && self.data.0 == self.data.1 && self.relro.1 > 0 && self.data.1 > 0
    }
}

/// Reads what is copied in a process of the victim. Uses the program's headers and smaps alone.
fn copied(pid: u32, program: &Path) -> Copied {
    let headers = Headers::parse(&std::fs::read(program).expect("the program")).expect("its headers");
    let usage = smaps(pid);
    let path = program.canonicalize().expect("it is there");
    let first =
        usage.iter().find(|u| u.mapping.path == path && u.mapping.offset == 0).expect("its first page");
    let bias = first.mapping.range.start.0;
    let segment = headers.segments.iter().find(|s| s.prot.write).expect("data");
    let relro = headers.relro.expect("RELRO");
    let count = |start: u64, end: u64| {
        let range = Range::new(Addr(start + bias), Addr(end + bias)).expect("a range");
        let inner = range.inner(PageSize::MB2).expect("a whole huge page");
        let copies = usage.iter().filter(|u| !u.mapping.is_file());
        let bytes = copies.filter_map(|u| inner.intersect(u.mapping.range)).map(Range::len).sum();
        (bytes, inner.len())
    };
    let end = (relro.vaddr + relro.size) & !4095;
    Copied { relro: count(relro.vaddr, end), data: count(end, segment.vaddr + segment.filesz) }
}

/// Lifts, and returns the row of the process in the JSON output.
fn lifted(pid: u32) -> (Outcome, Value) {
    let outcome = attach(pid).bare();
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    let row = json["processes"][0].clone();
    (outcome, row)
}

/// What is said if some thread did not stop or come back in time. On a busy machine that may happen several times.
const LATE: [&str; 2] = ["could not all be stopped", "did not come back"];

/// Lifts again and again, until there was a moment at which all threads could be stopped. Returns the last row, and how
/// often there was none.
fn lifted_at_last(pid: u32) -> (Value, u32) {
    let (outcome, row, late) = lifted_until(pid, |outcome| !is_late(outcome));
    assert_eq!(outcome.stderr, "", "{outcome:?}");
    (row, late)
}

/// Returns whether a lift was given up because some thread did not stop or come back in time.
fn is_late(outcome: &Outcome) -> bool {
    LATE.iter().any(|words| outcome.stderr.contains(words))
}

/// Lifts again and again, as long as some thread is late and the outcome is not as expected. Returns the last outcome
/// and row, and how often it was not.
fn lifted_until(pid: u32, is_expected: impl Fn(&Outcome) -> bool) -> (Outcome, Value, u32) {
    let end = Instant::now() + PATIENCE;
    let mut late = 0;
    loop {
        let (outcome, row) = lifted(pid);
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        if is_expected(&outcome) || !is_late(&outcome) {
            return (outcome, row, late);
        }
        assert!(Instant::now() < end, "{outcome:?}");
        late += 1;
    }
}

/// Returns the bytes of code that belongs to no file.
fn unnamed_code(pid: u32) -> u64 {
    let all = Process::new(pid).maps().expect("its maps");
    all.iter().filter(|m| m.prot.exec && m.path.as_os_str().is_empty()).map(|m| m.range.len()).sum()
}

/// Milliseconds for which a thread waits in "epoll" mode.
const HOUR: u64 = 3_600_000;

/// Returns the timeout with which a thread waits in epoll_wait(2).
fn epoll_timeout(pid: u32) -> Option<u64> {
    let process = Process::new(pid);
    process.threads().iter().find_map(|tid| {
        let text = std::fs::read_to_string(process.path(&format!("task/{tid}/syscall"))).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = words.first()?.parse::<i64>().ok()?;
        let value = u64::from_str_radix(words.get(4)?.strip_prefix("0x")?, 16).ok()?;
        // glibc's epoll_wait(3) makes one of these calls.
        let is_epoll = number == 232 || number == libc::SYS_epoll_pwait;
        (is_epoll && i32::try_from(value).is_ok_and(|value| value > 0)).then_some(value)
    })
}

/// Returns the timeout of the thread that waits in epoll_wait(2). On a busy machine it may be about to make the call
/// again.
fn waits_in_epoll(pid: u32) -> u64 {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(left) = epoll_timeout(pid) {
            return left;
        }
        assert!(Instant::now() < end, "no thread waits");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// No write is lost, no signal, no call ends with EINTR, and forked children have what their parent had.
#[test]
fn lifted_under_writers() {
    let _alone = alone();
    let rounds = level::rounds(2, 20);
    let program = victim();
    for mode in ["", "calm", "epoll", "births"] {
        let (mut worst, mut late) = (0, 0);
        for round in 0..rounds {
            let running = Running::start(&program, &[mode]);
            let pid = running.pid();
            pause(PAUSE);
            let (row, times) = lifted_at_last(pid);
            let after = copied(pid, &program);
            assert!(after.is_all(), "{mode} {round}: {after:?}");
            late += times;
            assert_eq!(unnamed_code(pid), 0, "{mode} {round}: the code of stopped threads is unmapped");
            if mode == "epoll" {
                let left = waits_in_epoll(pid);
                assert!(HOUR - 600_000 < left && left <= HOUR, "{left} ms");
            }
            worst = worst.max(row["longest_stop_of_all_us"].as_u64().expect("a number"));
            assert_no_wx(pid, &[]);
            pause(PAUSE);
            running.report();
            assert_eq!(running.finish(), Some(End::Code(0)), "{mode} {round}");
        }
        println!("mode '{mode}': {rounds} lifts, {late} given up, longest stop of all threads {worst} us");
    }
}

/// Returns whether these threads of a process are stopped by a tracer.
fn are_traced(pid: u32, tids: &[i32]) -> bool {
    let state = |tid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
        text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'))
    };
    tids.iter().all(state)
}

/// A signal to the process that is sent while all threads are stopped comes to one of them: no other one that waits sees
/// EINTR.
///
/// The signals are 50 ms apart. Of two at a time each can wake a thread for which the other thread leaves none: then it
/// sees EINTR without hugelift too.
#[test]
fn signals_to_the_process() {
    let _alone = alone();
    let (program, end) = (victim(), Instant::now() + PATIENCE);
    let mut all_sent = 0;
    while all_sent < 3 {
        assert!(Instant::now() < end, "{all_sent} signals were sent while all threads were stopped");
        let running = Running::start(&program, &["asked"]);
        let pid = running.pid();
        let threads = Process::new(pid).threads();
        let ends = [threads[0], threads[threads.len() - 1]];
        let is_lifted = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0u64;
                while !is_lifted.load(Ordering::Relaxed) {
                    if are_traced(pid, &ends) {
                        // SAFETY: kill(2) with the pid of a child that has not been waited for.
                        assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGUSR2) }, 0);
                        sent += 1;
                        std::thread::sleep(Duration::from_millis(50));
                        // A stop may last longer on a busy machine. A second signal in it would be one with the first.
                        while are_traced(pid, &ends) && !is_lifted.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
                sent
            });
            lifted_at_last(pid);
            is_lifted.store(true, Ordering::Relaxed);
            sender.join().expect("the sender")
        });
        assert!(copied(pid, &program).is_all());
        assert_eq!(running.report()["interrupted"].as_u64(), Some(sent));
        assert_eq!(running.finish(), Some(End::Code(0)));
        all_sent += sent;
    }
}

/// A thread replaces the program by execve(2) before, while and after all threads are stopped. The program goes on as
/// if nobody had looked, and no lift hangs.
#[test]
fn execve_at_any_moment() {
    let _alone = alone();
    let program = fat("execs_written").flags(&["-Wl,-z,now"]).build();
    // On a busy machine a lift is slower than the program, which then waits longer between two of its execve calls.
    let mut stopped = 0;
    for wait_ms in [5, 10, 20, 40, 80, 160, 320, 640] {
        stopped += lifted_while_it_executes(&program, wait_ms);
        if stopped > 0 {
            return;
        }
    }
    panic!("no lift came as far as the stop");
}

/// Lifts a program again and again while it replaces itself 60 times, each time after `wait_ms` to `wait_ms + 30`
/// milliseconds. Returns how many lifts stopped all threads.
fn lifted_while_it_executes(program: &Path, wait_ms: u32) -> u32 {
    let child = Cmd::new([program]).arg("60").arg(wait_ms.to_string());
    let mut child = child.command(None).stdout(Stdio::piped()).spawn().expect("start");
    let (mut lifts, mut stopped) = (0, 0);
    while child.try_wait().expect("wait").is_none() {
        let outcome = attach(child.id()).bare();
        // The last program ends at once, and may be gone.
        assert!(matches!(outcome.end, End::Code(0 | 1 | 125)), "{outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
        lifts += 1;
        let json: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
        stopped +=
            u32::from(json["processes"][0]["longest_stop_of_all_us"].as_u64().is_some_and(|us| us > 0));
    }
    let status = child.wait().expect("wait");
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    println!("{lifts} lifts, {stopped} of which stopped all threads");
    assert!(status.success(), "{status}: {said}");
    assert_eq!(said, "done, 0 wrong\n");
    stopped
}

/// `attach --watch` lifts data as well.
#[test]
fn watched() {
    let _alone = alone();
    let program = victim();
    let running = Running::start(&program, &["calm"]);
    let pid = running.pid();
    let words = ["attach", "--watch", "--eager", "--parts", "data"];
    let mut watch = Cmd::new([HUGELIFT]).args(words).arg(pid.to_string()).command(None);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("a watch");
    let lines = lines_of(watch.stdout.take().expect("piped"));
    let end = Instant::now() + PATIENCE;
    let mut said = Vec::new();
    // If a thread could not be stopped in time, the rest follows later. A child may have split a huge page of data.
    while !said.iter().any(|line: &String| line.contains("relro 4 MB of 4 MB, data ")) {
        let left = end.saturating_duration_since(Instant::now());
        said.push(
            lines.recv_timeout(left).unwrap_or_else(|e| panic!("{e}: {said:?} {:?}", copied(pid, &program))),
        );
    }
    while !copied(pid, &program).is_all() {
        assert!(Instant::now() < end, "{:?} {said:?}", copied(pid, &program));
        std::thread::sleep(Duration::from_millis(20));
    }
    running.report();
    assert_eq!(running.finish(), Some(End::Code(0)));
    assert_eq!(wait(&mut watch, end), Some(End::Code(0)));
}

/// A second lift finds nothing to do, and `restore` keeps data and RELRO and says so.
#[test]
fn restore_keeps_data() {
    let _alone = alone();
    let program = victim();
    let running = Running::start(&program, &["calm"]);
    let pid = running.pid();
    lifted_at_last(pid);
    let (after, mapped) = (copied(pid, &program), files(pid));
    // A child may have split huge pages of data, which are then lifted again.
    lifted_at_last(pid);
    let restored = Cmd::new([HUGELIFT, "restore"]).arg(pid.to_string()).bare();
    assert_eq!((restored.end, restored.stderr.as_str()), (End::Code(0), ""), "{restored:?}");
    assert!(restored.stdout.contains("of data and relro keep their huge pages"), "{restored:?}");
    assert_eq!((copied(pid, &program), files(pid)), (after, mapped));
    // Code is lifted and restored beside it as ever.
    done("attach", pid);
    running.report();
}

/// Where another process or the kernel may write to the memory, or a thread would notice its stop, nothing is
/// changed, and one line says why.
#[test]
fn other_writers() {
    let _alone = alone();
    let program = victim();
    for (mode, why) in [
        ("ring", "io_uring may write to its memory"),
        ("aio", "asynchronous I/O (io_setup) may write"),
        ("shares", "shares its memory"),
        ("timed", "whose timeout a stop would extend"),
    ] {
        let off = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        if mode == "ring" && off.as_deref().map_or(true, |off| off.trim() != "0") {
            skipped("io_uring is disabled");
            continue;
        }
        if mode == "aio" && !Path::new("/proc/sys/fs/aio-max-nr").exists() {
            skipped("this kernel has no io_setup");
            continue;
        }
        let running = Running::start(&program, &[mode]);
        let pid = running.pid();
        let (outcome, row, _) = lifted_until(pid, |outcome| outcome.stderr.contains(why));
        assert_eq!(
            (outcome.stderr.lines().count(), row["all_stopped"].as_u64()),
            (1, Some(0)),
            "{outcome:?}"
        );
        assert!(outcome.stderr.contains(why), "{mode}: {outcome:?}");
        assert_eq!(copied(pid, &program).data.0, 0, "{mode}");
        // The other process writes to words that the victim checks.
        if mode != "shares" {
            running.report();
        }
    }
}

/// The program may make no more mappings (`vm.max_map_count`), or only a few: mremap(2), which needs more than mmap(2)
/// does, fails while all threads are stopped. The bytes stay right, and a line says what became of the memory.
#[test]
fn mremap_fails() {
    let _alone = alone();
    let program = victim();
    let (mut failed, mut done) = (0, 0);
    for left in [1, 9, 10, 11, 12, 13, 20] {
        let running = Running::start(&program, &[&format!("full{left}")]);
        let pid = running.pid();
        let end = Instant::now() + PATIENCE;
        let outcome = loop {
            let outcome = attach(pid).bare();
            assert!(matches!(outcome.end, End::Code(0 | 1)), "{left}: {outcome:?}");
            assert!(!outcome.stderr.contains("panicked"), "{left}: {outcome:?}");
            if !is_late(&outcome) || Instant::now() > end {
                break outcome;
            }
        };
        let after = copied(pid, &program);
        println!("{left} mappings left: {after:?}; {}", outcome.stderr.trim());
        if outcome.stderr.contains("mremap(2) over") {
            failed += 1;
            assert!(outcome.stderr.contains("vm.max_map_count); it is as it was"), "{left}: {outcome:?}");
        } else if outcome.stderr.is_empty() {
            done += 1;
        }
        running.report();
    }
    assert!(failed > 0, "mremap(2) never failed");
    assert!(done > 0, "20 mappings do not suffice");
}

/// The command is killed before each of its ptrace operations, or every few of them. Whatever it has done, no
/// byte is wrong, and a later command ends the work. A call that ends with EINTR after any stop is made again
/// by the tracer: one that is killed before it can do so leaves it.
#[test]
fn killed_before_each_step() {
    let _alone = alone();
    // How many operations lie between two that it is killed at, at most.
    let stride = level::rounds(100, 10);
    let program = victim();
    let (mut at, mut partly, mut interrupted, mut kills) = (0, 0, 0, 0);
    loop {
        let running = Running::start(&program, &[if at % 2 == 0 { "" } else { "calm" }, "killed"]);
        let pid = running.pid();
        let outcome =
            attach_by(WITH_FAULT_POINTS, pid).env("HUGELIFT_TEST_DIE", format!("{at}:helper")).bare();
        if outcome.end == End::Code(0) {
            break;
        }
        let after = copied(pid, &program);
        partly += u32::from(!after.is_nothing() && !after.is_all());
        pause(PAUSE / 4);
        let (outcome, _) = lifted(pid);
        assert_eq!(outcome.end, End::Code(0), "{at}: {outcome:?}");
        let report = running.report();
        interrupted += report["interrupted"].as_u64().expect("a number");
        assert_eq!(running.finish(), Some(End::Code(0)), "{at}");
        kills += 1;
        at += fastrand::u64(1..=stride);
    }
    println!(
        "{kills} kills up to operation {at}, {partly} between two pieces; {interrupted} calls interrupted"
    );
    assert!(at > 50, "{at}");
    // Three of its threads wait in such a call.
    assert!(interrupted <= 3 * kills, "{interrupted} {kills}");
}
