// SPDX-License-Identifier: Apache-2.0
//! Tests a set of processes with real ones.

use super::super::accounts::KEPT;
use super::*;
use std::cell::RefCell;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::rc::Rc;

/// A set of the processes that a test chooses.
fn chosen() -> (ProcessSet, Rc<RefCell<BTreeSet<u32>>>) {
    let wanted: Rc<RefCell<BTreeSet<u32>>> = Rc::default();
    let known = Rc::clone(&wanted);
    let find: Find = Box::new(move |candidates| candidates.intersection(&known.borrow()).copied().collect());
    (ProcessSet::of_chosen(&BTreeSet::new(), Some(find), None, false, false).0, wanted)
}

fn end(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("wait");
}

/// A watch may last for months: 500 processes, each of a file of its own, leave nothing behind.
#[test]
fn ended_processes_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let copies = "i=0; while [ $i -lt 500 ]; do cp \"$(command -v sleep)\" \"$0/$i\"; i=$((i+1)); done";
    assert!(Command::new("sh").args(["-c", copies]).arg(dir).status().is_ok_and(|s| s.success()));
    let (mut set, wanted) = chosen();
    set.refresh();
    let others = set.others.len();
    for batch in 0..10 {
        let start = |i: u32| {
            let path = dir.join((batch * 50 + i).to_string());
            Command::new(path).arg0("sleep").arg("60").spawn().expect("sleep")
        };
        let all: Vec<Child> = (0..50).map(start).collect();
        wanted.replace(all.iter().map(Child::id).collect());
        set.refresh();
        assert_eq!(set.pids(), *wanted.borrow());
        for pid in set.pids() {
            set.add_copied(pid, 1);
            set.tried(pid, 0, Duration::from_millis(1), &Attempt { is_lifted: true, ..Attempt::default() });
        }
        assert_eq!(set.copied(), 50);
        all.into_iter().for_each(end);
        set.refresh();
        assert_eq!((set.pids().len(), set.copied()), (0, 0));
    }
    assert!(set.accounts.len() <= KEPT + 50, "{} accounts", set.accounts.len());
    // Other tests start processes too.
    assert!(set.others.len() < others + 100, "{} others", set.others.len());
    assert!(!set.is_over(), "others may come");
}

/// A process belongs to the set as soon as it is what was chosen, though no process is made then.
#[test]
fn a_process_that_becomes_another_one() {
    let (mut set, wanted) = chosen();
    set.refresh();
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    set.refresh();
    assert!(set.pids().is_empty());
    wanted.borrow_mut().insert(child.id());
    std::thread::sleep(YOUNG_EVERY);
    set.refresh();
    assert_eq!(set.pids(), BTreeSet::from([child.id()]));
    end(child);
}

/// On a busy machine the list is read so rarely that a process is not young any more at the next time.
#[test]
fn issue_33_1_one_that_was_not_checked_for_long_is_checked_once_more() {
    let (mut set, wanted) = chosen();
    set.refresh();
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    set.refresh();
    // As if it had been seen long ago, and not been checked since.
    let long_ago = Instant::now().checked_sub(2 * YOUNG);
    set.others.insert(child.id(), long_ago);
    set.again = Some(Instant::now());
    set.refresh();
    assert_eq!(set.others.get(&child.id()), Some(&None), "this was its last check");
    wanted.borrow_mut().insert(child.id());
    set.others.insert(child.id(), long_ago);
    set.again = Some(Instant::now());
    set.refresh();
    assert!(set.pids().contains(&child.id()));
    end(child);
}

/// A process in exit(2) has no memory and no addresses any more, which is not another program.
#[test]
fn one_that_is_about_to_end_keeps_its_account() {
    let (mut set, wanted) = chosen();
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    wanted.borrow_mut().insert(child.id());
    set.refresh();
    set.add_copied(child.id(), 8);
    let stat = Process::new(child.id()).stat().expect("stat");
    set.update(child.id(), &Stat { virtual_bytes: 0, addresses: None, ..stat });
    assert_eq!((set.pids(), set.copied()), (BTreeSet::from([child.id()]), 8));
    end(child);
}

/// What a process has copied is not free while a process that it has forked lives.
#[test]
fn copies_are_inherited() {
    let (mut set, wanted) = chosen();
    let script = "sleep 60 & exec sleep 60";
    let mut parent = Command::new("sh").args(["-c", script]).process_group(0).spawn().expect("sh");
    let until = Instant::now() + Duration::from_secs(20);
    let children = loop {
        let is_child = |pid: &u32| {
            let stat = Process::new(*pid).stat();
            stat.is_ok_and(|s| s.parent == parent.id() && s.comm.as_os_str() == "sleep")
        };
        let all: BTreeSet<u32> = Process::all().expect("/proc").into_iter().filter(is_child).collect();
        let is_sleep = image(parent.id()) == all.first().and_then(|pid| image(*pid));
        if all.len() == 1 && is_sleep {
            break all;
        }
        assert!(Instant::now() < until, "no child");
    };
    *wanted.borrow_mut() = children.iter().copied().chain([parent.id()]).collect();
    set.refresh();
    set.add_copied(parent.id(), 8);
    parent.kill().expect("kill");
    parent.wait().expect("wait");
    set.refresh();
    assert_eq!((set.pids(), set.copied()), (children, 8));
    let group = nix::unistd::Pid::from_raw(parent.id().cast_signed());
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).expect("kill");
}

/// A child has the addresses of the process that has forked it.
#[test]
fn who_has_forked_a_process() {
    let (mut set, wanted) = chosen();
    let mut command = Command::new("bash");
    command.args(["-c", "(sleep 60; :) & echo $!; wait"]).stdout(std::process::Stdio::piped());
    let mut parent = command.process_group(0).spawn().expect("bash");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(parent.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    let child = line.trim().parse().unwrap_or(0);
    *wanted.borrow_mut() = BTreeSet::from([parent.id(), child]);
    set.refresh();
    let found = (set.forked_by(child), set.forked_by(parent.id()), set.life_of(child).is_some());
    let group = nix::unistd::Pid::from_raw(parent.id().cast_signed());
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).expect("kill");
    parent.wait().expect("wait");
    assert_eq!(found, (Some(parent.id()), None, true));
}

/// What is wanted of a process waits for its account, and not at all if nothing needs to be worth it.
#[test]
fn a_process_with_hot_code_waits_for_its_account() {
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = child.id();
    for eager in [false, true] {
        let mut set = ProcessSet::of_chosen(&BTreeSet::from([pid]), None, None, false, eager).0;
        set.refresh();
        set.want(pid, CHECK);
        assert_eq!(set.is_due(pid), eager, "it was not checked yet");
        set.tried(pid, 0, Duration::ZERO, &Attempt::default());
        assert!(!set.is_due(pid) && set.lacks_at_least().is_none());
        set.want(pid, CHECK);
        assert_eq!((set.is_due(pid), set.lacks_at_least().is_some()), (eager, true));
        set.refused(pid, Duration::ZERO);
        set.want(pid, CHECK);
        assert!(!set.is_due(pid), "it is left alone for a while");
        set.check_again(pid);
        assert_eq!(set.is_due(pid), eager);
    }
    end(child);
}
