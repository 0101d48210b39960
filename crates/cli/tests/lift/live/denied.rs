// SPDX-License-Identifier: Apache-2.0
//! Denies system calls to processes that are lifted while they run, and to the command that lifts them: a process does
//! what it would have done, and the command ends.

use super::{Running, command, done, files, segments};
use crate::common::huge::assert_unchanged;
use crate::common::level::some;
use crate::common::run::{PATIENCE, lines_of, spawn, wait};
use crate::common::{Cmd, End, HUGELIFT, Primed, fat, plain};
use crate::{need, need_root};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

/// The last number denied: above the last system call, so that new calls are covered.
const LAST: u32 = 470;
/// How many processes there are at once. Each may have a copy of its own.
const BATCH: usize = 32;

/// What a process is started with: the words in front of it, and its own.
type Words = (Vec<String>, [String; 3]);

/// How a process ended, and what it printed.
type Did = (Option<End>, Vec<String>);

/// Builds the victim at a fixed address, so that the store has copies of it.
fn victim() -> PathBuf {
    fat("guarded").flags(&["-Wl,-z,now", "-no-pie", "-pthread"]).build()
}

/// Returns what starts a process under a filter that answers the call `number` with `answer`.
fn denied(number: u32, answer: &str) -> Words {
    (vec![], ["all".into(), answer.into(), number.to_string()])
}

/// Returns what starts a process under a resource limit.
fn limited(limit: u32, value: u64) -> Words {
    let setup = plain("setup").build().display().to_string();
    // The filter denies acct(2), which nothing here calls.
    let words = ["all", "kill", "acct"].map(String::from);
    (vec![setup, format!("rlimit={limit}:{value}:{value}"), "--".into()], words)
}

/// Starts the process; returns it when it is ready or has ended.
fn start(program: &Path, (before, words): &Words) -> (Running, Option<String>) {
    let all: Vec<&str> =
        before.iter().map(String::as_str).chain([program.to_str().expect("UTF-8")]).collect();
    let all: Vec<&str> = all.into_iter().chain(words.iter().map(String::as_str)).collect();
    let running = Running::begin(Path::new(all[0]), &all[1..]);
    let line = match running.line_within(PATIENCE) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("{all:?} is neither ready nor at its end"),
    };
    (running, line)
}

/// Ends the process; returns what it has done.
fn end(mut running: Running, first: Option<String>, words: &Words) -> Did {
    drop(running.stdin.take());
    let mut lines: Vec<String> = first.into_iter().collect();
    loop {
        match running.line_within(PATIENCE) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("{words:?} does not end: {lines:?}"),
        }
    }
    (running.finish(), lines)
}

/// How processes are lifted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// attach as it is, with files of the store; then restore.
    Attach,
    /// attach with anonymous copies; then restore.
    AttachThp,
    /// attach --watch, which lifts at once.
    Watch,
}

impl By {
    /// Lifts the processes; returns those of which the command has said on stderr that something is not lifted.
    fn lift(self, pids: &[u32], store: &Path) -> BTreeSet<u32> {
        let ids = pids.iter().map(u32::to_string);
        let named = |lines: &str| -> BTreeSet<u32> {
            let is_in = |pid: &u32| lines.contains(&format!("(process {pid})"));
            pids.iter().copied().filter(is_in).collect()
        };
        let words: &[&str] = match self {
            By::Attach => &["attach", "--whole"],
            By::AttachThp => &["attach", "--whole", "--backing", "thp"],
            By::Watch => return watch(pids),
        };
        let cmd = Cmd::new([HUGELIFT]).args(words).args(ids.clone()).env("HUGELIFT_STORE", store);
        let outcome = cmd.bare();
        assert!(matches!(outcome.end, End::Code(0 | 125)), "{outcome:?}");
        assert_eq!(
            &named(&outcome.stdout) | &named(&outcome.stderr),
            pids.iter().copied().collect(),
            "{outcome:?}"
        );
        let restored = Cmd::new([HUGELIFT, "restore"]).args(ids).bare();
        assert!(matches!(restored.end, End::Code(0 | 125)), "{restored:?}");
        named(&outcome.stderr)
    }
}

/// Watches the processes until the watch has said of each what became of it.
fn watch(pids: &[u32]) -> BTreeSet<u32> {
    let cmd = Cmd::new([HUGELIFT, "attach", "--watch", "--eager", "--backing", "thp"]);
    let cmd = cmd.args(pids.iter().map(u32::to_string));
    let mut child = spawn(&mut cmd.command(None)).expect("hugelift");
    let out = lines_of(child.stdout.take().expect("piped"));
    let err = lines_of(child.stderr.take().expect("piped"));
    let (mut told, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let until = Instant::now() + PATIENCE;
    let pid_in =
        |line: &str| -> Option<u32> { line.split_once("(process ")?.1.split_once(')')?.0.parse().ok() };
    while told.len() < pids.len() {
        assert!(Instant::now() < until, "of {pids:?} only {told:?} were told of");
        told.extend(out.try_iter().filter_map(|line| pid_in(&line)));
        let lines: Vec<u32> = err.try_iter().filter_map(|line| pid_in(&line)).collect();
        refused.extend(lines.iter().copied());
        told.extend(lines);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("kill");
    assert_eq!(wait(&mut child, Instant::now() + PATIENCE), Some(End::Code(0)), "the watch");
    refused
}

/// Lifts one process for each of `cells`, and compares what it does with what it does bare. Returns the cells of which
/// the command said that something is not lifted.
fn sweep(by: By, cells: &[Words]) -> Vec<Words> {
    let program = victim();
    let copy = Primed::small(&program);
    let store = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
    let store = store.path().join("store");
    let (mut refused, mut wrong) = (Vec::new(), Vec::new());
    for batch in cells.chunks(BATCH) {
        let each =
            || -> Vec<(Running, Option<String>)> { batch.iter().map(|w| start(copy.path(), w)).collect() };
        let finish = |all: Vec<(Running, Option<String>)>| -> Vec<Did> {
            all.into_iter().zip(batch).map(|((one, line), words)| end(one, line, words)).collect()
        };
        let bare = finish(each());
        let all = each();
        let pid_of = |one: &(Running, Option<String>)| one.1.as_ref().map(|_| one.0.pid());
        let pids: Vec<u32> = all.iter().filter_map(pid_of).collect();
        assert!(!pids.is_empty(), "{batch:?}: none of them is ready");
        let named = by.lift(&pids, &store);
        let is_named = |one: &(Running, Option<String>)| named.contains(&one.0.pid());
        let these = all.iter().zip(batch).filter(|(one, _)| is_named(one)).map(|(_, words)| words.clone());
        refused.extend(these);
        for ((bare, lifted), words) in bare.iter().zip(finish(all)).zip(batch) {
            if *bare != lifted {
                wrong.push(format!("{by:?}, {words:?}: bare {bare:?}, lifted {lifted:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    refused
}

/// Returns the calls that are denied in turn: in `make test` those that a lift makes, and some of the others.
fn calls() -> impl Iterator<Item = u32> {
    let made: BTreeSet<i64> = [
        nix::libc::SYS_mmap,
        nix::libc::SYS_mprotect,
        nix::libc::SYS_munmap,
        nix::libc::SYS_mremap,
        nix::libc::SYS_madvise,
        nix::libc::SYS_mbind,
        nix::libc::SYS_memfd_create,
        nix::libc::SYS_ftruncate,
        nix::libc::SYS_close,
        nix::libc::SYS_openat,
        nix::libc::SYS_socket,
        nix::libc::SYS_connect,
        nix::libc::SYS_recvmsg,
        nix::libc::SYS_prctl,
        nix::libc::SYS_getpid,
        nix::libc::SYS_rt_sigreturn,
        nix::libc::SYS_restart_syscall,
    ]
    .into();
    let others: BTreeSet<u32> = some(0..=LAST, 8).collect();
    (0..=LAST).filter(move |number| made.contains(&i64::from(*number)) || others.contains(number))
}

/// Where the filter would end the process for a call, the call is not made. Each such call is then answered in the
/// other ways.
fn each_call_denied(by: By) {
    need_root!();
    let cells: Vec<Words> = calls().map(|number| denied(number, "kill")).collect();
    let made = sweep(by, &cells);
    println!("{by:?}: {:?}", made.iter().map(|(_, words)| &words[2]).collect::<Vec<_>>());
    assert!(made.len() > 5, "only {made:?} were not lifted, although a lift makes more calls");
    let others = ["1", "38", "12", "trap"];
    let number = |words: &Words| words.1[2].parse().expect("a number");
    let cells: Vec<Words> =
        made.iter().flat_map(|words| others.map(|answer| denied(number(words), answer))).collect();
    sweep(by, &cells);
}

#[test]
fn each_system_call_denied_to_a_process_that_is_attached() {
    each_call_denied(By::Attach);
}

#[test]
fn each_system_call_denied_to_a_process_with_anonymous_copies() {
    each_call_denied(By::AttachThp);
}

#[test]
fn each_system_call_denied_to_a_process_that_is_watched() {
    each_call_denied(By::Watch);
}

/// Returns the limits with values that they may have here. Without CAP_SYS_RESOURCE none can be raised.
fn limits(values: &[u64]) -> Vec<(u32, u64)> {
    // In the order of their numbers.
    let text = std::fs::read_to_string("/proc/self/limits").expect("the limits");
    let hard = |limit: u32| {
        let line = text.lines().nth(1 + limit as usize).expect("a line for each limit");
        line[26..].split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
    };
    // RLIMIT_CPU at its least ends any program.
    let all = (1..16).flat_map(|limit| values.iter().map(move |value| (limit, *value)));
    all.filter(|(limit, value)| *value <= hard(*limit)).collect()
}

/// A process under each limit at values near its least.
#[test]
fn each_limit_of_a_process_that_is_lifted() {
    let values = limits(&[0, 1, 64 << 10, 4 << 20, 16 << 20]);
    let cells: Vec<Words> = values.iter().map(|(limit, value)| limited(*limit, *value)).collect();
    for by in [By::Attach, By::AttachThp, By::Watch] {
        sweep(by, &cells);
    }
}

/// Asserts that a command which was denied something has ended, and that the process is unharmed and can be lifted.
fn unharmed(program: &Path, what: &str, cmd: impl Fn(u32) -> Cmd) {
    let words = denied(LAST, "kill");
    let (running, line) = start(program, &words);
    let pid = running.pid();
    let before = files(pid);
    let outcome = cmd(pid).bare();
    let is_said = outcome.stdout.lines().count() + outcome.stderr.lines().count() > 0;
    assert!(outcome.end != End::Code(101) && (is_said || outcome.end != End::Code(0)), "{what}: {outcome:?}");
    assert_unchanged(pid, &segments(pid, program));
    done("restore", pid);
    let after = files(pid);
    // A command that was killed may leave the mapping that it was about to move.
    assert!(before.iter().all(|line| after.contains(line)), "{what}: {before:?} {after:?}");
    let did = end(running, line, &words);
    assert_eq!(did, (Some(End::Code(0)), vec!["ready".into(), "wrong 0".into()]), "{what}: {outcome:?}");
}

/// The command itself is under the filter: it may end at any call that it makes, or the call fails.
#[test]
fn each_system_call_denied_to_the_command() {
    need_root!();
    need!("strace");
    let (program, deny) = (victim(), plain("deny").build());
    for verb in ["attach", "restore"] {
        let dir = tempfile::TempDir::new().expect("a folder");
        let list = dir.path().join("calls");
        let (running, _) = start(&program, &denied(LAST, "kill"));
        if verb == "restore" {
            done("attach", running.pid());
        }
        let strace = ["strace".as_ref(), "-fnqo".as_ref(), list.as_os_str()];
        let traced = command(verb, &[running.pid()]).under(strace).bare();
        assert_eq!(traced.end, End::Code(0), "{traced:?}");
        let text = std::fs::read_to_string(&list).expect("the list");
        let number = |line: &str| line.split_once('[')?.1.split_once(']')?.0.trim().parse().ok();
        let made: BTreeSet<u32> = text.lines().filter_map(number).collect();
        assert!(made.len() > 20, "{text}");
        println!("{verb} makes {made:?}");
        for number in some(made, 3) {
            // A C library makes exit(2) again until it works: the command then does not end, as no program with threads
            // does.
            let is_exit = i64::from(number) == nix::libc::SYS_exit;
            for answer in if is_exit { &["trap", "kill"][..] } else { &["1", "38", "trap", "kill"] } {
                let what = format!("{verb}, {number} answered {answer}");
                let (own, ms) = (number.to_string(), PATIENCE.as_millis().to_string());
                unharmed(&program, &what, |pid| {
                    if verb == "restore" {
                        done("attach", pid);
                    }
                    command(verb, &[pid]).under([deny.as_os_str()]).under([*answer, &own, &own, &ms])
                });
            }
        }
    }
}

/// The command itself is under a limit.
#[test]
fn each_limit_of_the_command() {
    let program = victim();
    let setup = plain("setup").build().display().to_string();
    for (limit, value) in some(limits(&[0, 1, 5, 1 << 20, 16 << 20]), 3) {
        let word = format!("rlimit={limit}:{value}:{value}");
        for verb in ["attach", "restore"] {
            unharmed(&program, &format!("{verb}, limit {limit} = {value}"), |pid| {
                if verb == "restore" {
                    done("attach", pid);
                }
                command(verb, &[pid]).under([&*setup, &*word, "--"])
            });
        }
    }
}
