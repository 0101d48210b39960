// SPDX-License-Identifier: Apache-2.0
//! Processes that cannot be lifted: each is named with its reason, and nothing is changed.

use super::{Running, command, done, files, segments, victim};
use crate::common::huge::assert_lifted;
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, plain};
use crate::{need, need_root, skip};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::shared_memory::shares_memory;
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Asserts that there is one line on stderr, which has these words, and that the exit status says so.
fn refused(outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
    assert_eq!(outcome.own_lines().len(), 1, "{outcome:?}");
    assert_eq!(outcome.other_lines(), "", "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
    }
}

/// Both commands refuse the process with a line that has these words.
fn both_refuse(pid: u32, words: &[&str]) {
    let pid_word = pid.to_string();
    for verb in ["attach", "restore"] {
        refused(&command(verb, &[pid]).bare(), &[&[pid_word.as_str()], words].concat());
    }
}

#[test]
fn a_stopped_process() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    let before = files(running.pid());
    running.signal(Signal::SIGSTOP);
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).expect("stat");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !stat().contains(") T ") {
        assert!(Instant::now() < deadline, "{}", stat());
        std::thread::sleep(Duration::from_millis(1));
    }
    both_refuse(running.pid(), &["SIGCONT"]);
    assert!(stat().contains(") T "), "it goes on: {}", stat());
    assert_eq!(files(running.pid()), before);
    running.signal(Signal::SIGCONT);
    done("attach", running.pid());
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "after SIGCONT") >= 2);
}

#[test]
fn a_traced_process() {
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let tracer = Running::start(&plain("tracer").build(), &[held.pid().to_string()]);
    both_refuse(held.pid(), &[&tracer.pid().to_string()]);
    assert_eq!(tracer.finish(), Some(End::Code(0)));
    done("attach", held.pid());
    let outcome = held.finish();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"));
}

/// It would be a change of its parent's memory.
#[test]
fn a_child_of_vfork_before_it_executes_a_program() {
    if shares_memory(std::process::id(), std::process::id()) != Ok(true) {
        skip!("needs kcmp(2)");
    }
    let running = Running::begin(&plain("zeros").flags(&["-pthread"]).build(), &["waits"]);
    let parent = running.pid();
    let mut child = None;
    crate::common::run::until("vfork(2)", || {
        // It has another one, by fork(2).
        let is_child = |pid: &u32| {
            Process::new(*pid).stat().is_ok_and(|stat| stat.parent == parent)
                && shares_memory(*pid, parent) == Ok(true)
        };
        child = Process::all().expect("/proc").into_iter().find(is_child);
        child.is_some()
    });
    let before = files(parent);
    both_refuse(child.expect("a child"), &["the memory of its parent", &parent.to_string(), "vfork(2)"]);
    assert_eq!(files(parent), before);
}

/// A process that has ended. The others of the same command are lifted.
#[test]
fn no_process() {
    let mut child = Cmd::new(["true"]).command(None).spawn().expect("true");
    child.wait().expect("wait");
    both_refuse(child.id(), &["no process"]);
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let outcome = command("attach", &[child.id(), held.pid()]).bare();
    refused(&outcome, &[&child.id().to_string(), "no process"]);
    assert!(outcome.stdout.contains(&held.pid().to_string()), "{outcome:?}");
    assert!(assert_lifted(&segments(held.pid(), &program), "thp", "the other") >= 2);
    assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
}

#[test]
fn a_zombie() {
    let mut child = Cmd::new(["true"]).command(None).spawn().expect("true");
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("stat");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !stat().contains(") Z ") {
        assert!(Instant::now() < deadline, "{}", stat());
        std::thread::sleep(Duration::from_millis(1));
    }
    both_refuse(child.id(), &["has ended"]);
    child.wait().expect("wait");
}

#[test]
fn a_kernel_thread() {
    // In a container process 2 may be a program.
    if std::fs::read_link("/proc/2/exe").is_ok() || !Path::new("/proc/2/cmdline").exists() {
        skip!("needs a kernel thread as process 2");
    }
    both_refuse(2, &["thread of the kernel"]);
}

#[test]
fn itself() {
    for verb in ["attach", "restore"] {
        let outcome = Cmd::new(["sh", "-c", "exec \"$0\" \"$1\" $$", HUGELIFT, verb]).bare();
        refused(&outcome, &["itself"]);
    }
}

/// Root without CAP_SYS_PTRACE may not read a process that has more capabilities: `sudo` would not help.
#[test]
fn a_process_with_more_capabilities() {
    need_root!();
    need!("setpriv");
    let running = Running::start(&victim(), &["quiet"]);
    let pid = running.pid().to_string();
    for verb in ["attach", "restore", "inspect"] {
        let cmd = Cmd::new([HUGELIFT, verb, &pid]).under(["setpriv", "--bounding-set", "-sys_ptrace"]);
        let outcome = cmd.bare();
        refused(&outcome, &[&pid, "CapPrm"]);
        assert!(!outcome.stderr.contains("sudo"), "{outcome:?}");
    }
    running.report();
}
