// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --watch`: it stays, and lifts processes that run, and those that come.

use crate::common::huge::pieces;
use crate::common::run::{PATIENCE, until};
use crate::common::{CGroup, Cmd, End, HUGELIFT, fat, fits};
use crate::running::Running;
use crate::watch::is_a_thousandth;
use crate::{need, need_root, skip};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Seconds of CPU time after which the victims give up.
const ENOUGH: &str = "25";

/// A copy of the victim, on a tmpfs: its page cache is in small pages there. Its name is its own.
struct Place {
    dir: tempfile::TempDir,
    name: String,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm");
        let name =
            format!("w{}", dir.path().file_name().expect("a name").display().to_string().replace('.', ""));
        let place = Place { dir, name };
        let copied = Command::new("cp").arg(fat("watched").build()).arg(place.program()).status();
        assert!(copied.is_ok_and(|status| status.success()));
        place
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    /// Starts the victim.
    fn start(&self, words: &[&str]) -> Running {
        self.start_by(&[], words)
    }

    /// Starts the victim by another command.
    fn start_by(&self, by: &[&str], words: &[&str]) -> Running {
        let mut all: Vec<PathBuf> = by.iter().map(PathBuf::from).collect();
        all.push(self.program());
        Running::start(Command::new(&all[0]).args(&all[1..]).args(words))
    }

    /// Starts `hugelift attach --watch` with anonymous copies.
    fn watch(&self, words: &[&str]) -> Running {
        let options = ["attach", "--whole", "--watch", "--backing", "thp"];
        Running::start(Command::new(HUGELIFT).args(options).args(words))
    }

    /// Returns the bytes of the victim's program that are huge in a process; 0 if it is not that program (yet).
    fn huge(&self, pid: u32) -> u64 {
        let program = self.program();
        let is_it = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
        if is_it { pieces(pid, &[program]).iter().map(|piece| piece.huge).sum() } else { 0 }
    }
}

/// Nothing matches at the start. A process that comes is lifted when it has proved worth it, and stays lifted.
#[test]
fn those_that_come() {
    let place = Place::new();
    let watch = place.watch(&["--json", "--name", &place.name]);
    let line = watch.err();
    assert!(line.contains(&format!("--name {}", place.name)) && line.contains("waits"), "{line}");
    let idle = place.start(&["waits", "x"]);
    let busy = place.start(&["busy", ENOUGH]);
    let row: Value = serde_json::from_str(&watch.out()).expect("JSON");
    fits("attach-watch", &row);
    assert_eq!((&row["version"], &row["pid"]), (&1.into(), &busy.pid().into()), "{row}");
    assert!(row["error"].is_null() && row["report"]["totals"]["text"]["huge_bytes"] != 0, "{row}");
    let line = busy.out();
    let cpu: f64 =
        line.split("after ").nth(1).and_then(|l| l.split(' ').next()?.parse().ok()).expect("a time");
    assert!(cpu > 0.3 && line.contains("wrong 0") && !line.contains("huge 0 kB"), "{line}");
    assert_eq!(place.huge(idle.pid()), 0, "it has used no CPU time");
    let (out, err) = watch.stop(Signal::SIGTERM);
    assert!(out.is_empty() && err[0].contains("1 process lifted"), "{out:?} {err:?}");
    let (end, out, _) = idle.end();
    assert!(end == Some(End::Code(0)) && out.iter().any(|line| line.contains("wrong 0")), "{out:?}");
}

/// With `--eager` at once; the watch ends with the last process. A process that does not exist is named.
#[test]
fn those_that_run() {
    let place = Place::new();
    let all = [place.start(&["waits", "x"]), place.start(&["waits", "x"])];
    let pids: Vec<String> = all.iter().map(|one| one.pid().to_string()).collect();
    all.iter().for_each(|one| assert_eq!(one.out(), "ready"));
    let gone =
        Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).expect("true");
    let watch = place.watch(&["--eager", &pids[0], &pids[1], &gone.to_string()]);
    let line = watch.err();
    assert!(line.contains(&gone.to_string()) && line.contains("no such process"), "{line}");
    for pid in &pids {
        let line = watch.out();
        assert!(
            line.contains(&format!("(process {pid})")) && line.contains("on huge pages, after 0."),
            "{line}"
        );
    }
    let [first, second] = all;
    for one in [first, second] {
        assert!(place.huge(one.pid()) >= 4 << 20);
        let (_, out, _) = one.end();
        assert!(out[0].contains("wrong 0"), "{out:?}");
    }
    let (end, out, err) = watch.end();
    assert_eq!((end, out.len()), (Some(End::Code(0)), 0), "{out:?}");
    assert!(err[0].contains("2 processes lifted"), "{err:?}");
    let nobody = Cmd::new([HUGELIFT, "attach", "--whole", "--watch", &gone.to_string()]).bare();
    assert_eq!((nobody.end, nobody.stderr.lines().count()), (End::Code(125), 1), "{nobody:?}");
}

#[test]
fn what_they_open_and_fork() {
    let place = Place::new();
    let library = fat("watched").library().build();
    let late = place.dir.path().join("late.so");
    assert!(Command::new("cp").arg(library).arg(&late).status().is_ok_and(|s| s.success()));
    let opens = place.start(&["opens", late.to_str().expect("UTF-8"), ENOUGH]);
    let forks = place.start(&["forks", "2", ENOUGH]);
    let watch = place.watch(&[&opens.pid().to_string(), &forks.pid().to_string()]);
    for (one, count) in [(opens, 2), (forks, 3)] {
        let (_, out, _) = one.end();
        assert_eq!(out.len(), count, "{out:?}");
        assert!(out.iter().all(|l| l.contains("wrong 0") && !l.contains("huge 0 kB")), "{out:?}");
    }
    assert_eq!(watch.end().0, Some(End::Code(0)));
}

/// A child that runs another program is lifted with `--children lift` alone.
#[test]
fn programs_that_they_start() {
    for children in ["plain", "lift"] {
        let place = Place::new();
        let shell = place.start_by(&["sh", "-c", "read x; \"$@\"; true", "sh"], &["busy", "3"]);
        let watch = place.watch(&["--eager", "--children", children, &shell.pid().to_string()]);
        // The shell itself is too small, and that is said.
        assert!(watch.out().contains("nothing on huge pages: "));
        let (_, out, _) = shell.end();
        assert_eq!(out[0].contains("huge 0 kB"), children == "plain", "{out:?}");
        assert_eq!(watch.end().0, Some(End::Code(0)));
    }
}

/// A process that is there, and gets the name or the control group later: no process is made then.
#[test]
fn those_that_become_it() {
    let place = Place::new();
    let watch = place.watch(&["--eager", "--name", &place.name]);
    watch.err();
    let shell = ["sh", "-c", "sleep 1.5; exec \"$@\"", "sh"];
    let later = place.start_by(&shell, &["waits", "x"]);
    until("it is not lifted", || place.huge(later.pid()) >= 4 << 20);
    assert!(watch.out().contains(&later.pid().to_string()));
    watch.stop(Signal::SIGINT);
}

#[test]
fn a_control_group() {
    need_root!();
    let group = CGroup::new("memory").expect("a control group");
    let inside = group.path().strip_prefix("/sys/fs/cgroup").expect("a group").to_path_buf();
    // In version 1 the first directory is that of the controller.
    let inside = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        inside
    } else {
        inside.components().skip(1).collect()
    };
    let place = Place::new();
    let watch = place.watch(&["--eager", "--cgroup", inside.to_str().expect("UTF-8")]);
    watch.err();
    let running = place.start(&["waits", "x"]);
    std::fs::write(group.path().join("cgroup.procs"), running.pid().to_string()).expect("join the group");
    until("it is not lifted", || place.huge(running.pid()) >= 4 << 20);
    watch.stop(Signal::SIGTERM);
    let (_, out, _) = running.end();
    assert!(out[1].contains("wrong 0"), "{out:?}");
}

/// A signal at any moment leaves each process as it was, or lifted.
#[test]
fn a_signal_at_any_moment() {
    let place = Place::new();
    let all: Vec<Running> = (0..4).map(|_| place.start(&["waits", "x"])).collect();
    all.iter().for_each(|one| assert_eq!(one.out(), "ready"));
    let pids: Vec<String> = all.iter().map(|one| one.pid().to_string()).collect();
    let words: Vec<&str> = ["--eager"].into_iter().chain(pids.iter().map(String::as_str)).collect();
    let whole = |pid: u32| {
        let inner = |piece: &crate::common::huge::Piece| piece.inner.map_or(0, |inner| inner.len());
        pieces(pid, &[place.program()]).iter().map(inner).sum::<u64>()
    };
    let (mut lifted, mut round) = (0, 0);
    // On a busy machine it may take longer until one is lifted.
    while round < 12 || lifted == 0 && round < 60 {
        let watch = place.watch(&words);
        std::thread::sleep(Duration::from_millis(round * 15));
        // Until its signals are blocked it ends as any program.
        watch.signal(Signal::SIGTERM);
        let (end, out, err) = watch.end();
        assert!(matches!(end, Some(End::Code(0) | End::Signal(15))), "{end:?} {out:?} {err:?}");
        for one in &all {
            let huge = place.huge(one.pid());
            assert!(huge == 0 || huge == whole(one.pid()), "{huge} after round {round}");
            lifted += u64::from(huge > 0);
        }
        let restored = Cmd::new([HUGELIFT, "restore"]).args(&pids).bare();
        assert_eq!(restored.end, End::Code(0), "{restored:?}");
        round += 1;
    }
    assert!(lifted > 0, "no watch has lifted anything");
    for one in all {
        let (end, out, _) = one.end();
        assert!(end == Some(End::Code(0)) && out[0].contains("wrong 0"), "{out:?}");
    }
}

#[test]
fn systemd_is_notified() {
    let place = Place::new();
    let socket = UnixDatagram::bind(place.dir.path().join("notify")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut command = Command::new(HUGELIFT);
    command.args(["attach", "--whole", "--watch", "--name", &place.name]);
    let watch = Running::start(command.env("NOTIFY_SOCKET", place.dir.path().join("notify")));
    let heard = || {
        let mut text = [0; 4096];
        let n = loop {
            match socket.recv(&mut text) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("a message"),
            }
        };
        String::from_utf8_lossy(&text[..n]).into_owned()
    };
    assert!(heard().contains("READY=1"));
    watch.signal(Signal::SIGTERM);
    assert!(heard().contains("STOPPING=1"));
    assert_eq!(watch.end().0, Some(End::Code(0)));
}

/// The copies of all processes together get what `--spare` names, not each of them.
#[test]
fn copies_of_watched_processes_count_together() {
    need_root!();
    let group = CGroup::new("memory").expect("a control group");
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "512M") {
        skip!("{why}");
    }
    let place = Place::new();
    let all: Vec<Running> = (0..4).map(|_| place.start(&["waits", "x"])).collect();
    for one in &all {
        assert_eq!(one.out(), "ready");
        std::fs::write(group.path().join("cgroup.procs"), one.pid().to_string()).expect("join the group");
    }
    let inner =
        pieces(all[0].pid(), &[place.program()]).iter().filter_map(|p| p.inner).map(|r| r.len()).sum::<u64>();
    // Enough for two copies, and not for three.
    let spare = format!("{}M", (inner * 5 / 2) >> 20);
    let mut words = vec!["--eager", "--spare", &spare];
    let pids: Vec<String> = all.iter().map(|one| one.pid().to_string()).collect();
    words.extend(pids.iter().map(String::as_str));
    let watch = place.watch(&words);
    watch.out();
    watch.out();
    // The third gets what is left, or nothing; the last nothing.
    until("a process is not refused", || watch.err().contains("memory limit"));
    std::thread::sleep(Duration::from_millis(300));
    let huge: u64 = all.iter().map(|one| place.huge(one.pid())).sum();
    assert!(huge >= inner * 2 && huge <= inner * 5 / 2, "{huge} bytes of copies, each of {inner}");
    // The memory of one that has ended is free again: the others are tried again after two seconds.
    let huge = |all: &[Running]| all.iter().map(|one| place.huge(one.pid())).sum::<u64>();
    let before = huge(&all[1..]);
    let mut all = all.into_iter();
    all.next().expect("the first").end();
    let all: Vec<Running> = all.collect();
    until("no other is lifted", || huge(&all) > before);
    watch.stop(Signal::SIGTERM);
}

/// Memory of an allocator is collapsed within a budget for the whole watch.
#[test]
fn anonymous_memory_within_a_budget() {
    need_root!();
    need!("python3");
    let source = "import sys\nd = {i: str(i) * 5 for i in range(600000)}\nprint('ready', flush=True)\n\
        sys.stdin.read()\nprint(sum(map(len, d.values())) == 17444450)\n";
    let start = || {
        let mut command = Command::new("python3");
        let one = Running::start(command.args(["-c", source]).env("PYTHONMALLOC", "malloc"));
        assert_eq!(one.out(), "ready");
        one
    };
    let huge = |one: &Running| -> u64 {
        crate::common::huge::smaps(one.pid()).iter().map(|usage| usage.anon_huge).sum()
    };
    let all = [start(), start()];
    let pids = all.each_ref().map(|one| one.pid().to_string());
    let place = Place::new();
    let words = ["--eager", "--parts", "heap,anon", &pids[0], &pids[1], "--cpu-budget"];
    // The first process alone takes more than this.
    let watch = place.watch(&[&words[..], &["0.012"]].concat());
    let line = watch.err();
    assert!(line.contains("--cpu-budget 0.012"), "{line}");
    std::thread::sleep(Duration::from_millis(300));
    let before = all.each_ref().map(huge);
    assert!(before[0].min(before[1]) < 8 << 20, "{before:?}");
    watch.stop(Signal::SIGTERM);
    let watch = place.watch(&[&words[..], &["30"]].concat());
    until("they are not huge", || all.iter().all(|one| huge(one) > 30 << 20));
    assert!(watch.out().contains("of anonymous memory is on huge pages now"));
    watch.stop(Signal::SIGTERM);
    for one in all {
        assert_eq!(one.end().1, ["True"]);
    }
}

/// Where the account of a process does not afford all of its memory at once, the rest follows as it computes.
#[test]
fn anonymous_memory_of_a_process_that_computes() {
    need_root!();
    need!("python3");
    let source = "import sys, threading\nd = bytearray(32 << 20)\nd[::4096] = b'x' * (len(d) // 4096)\n\
        print('ready', flush=True)\nended = threading.Thread(target=sys.stdin.read)\nended.start()\n\
        while ended.is_alive(): sum(d[0:1 << 20])\nprint(sum(d[::4096]) == 120 * (len(d) // 4096))\n";
    let one = Running::start(Command::new("python3").args(["-c", source]));
    assert_eq!(one.out(), "ready");
    let huge = || -> u64 { crate::common::huge::smaps(one.pid()).iter().map(|usage| usage.anon_huge).sum() };
    assert!(huge() < 16 << 20, "it is huge without us: {}", huge());
    let place = Place::new();
    let watch = place.watch(&["--parts", "anon", &one.pid().to_string()]);
    until("it is not huge", || huge() > 28 << 20);
    let (out, err) = watch.stop(Signal::SIGTERM);
    let turns = out.iter().filter(|line| line.contains("of anonymous memory is on huge pages now")).count();
    assert!(turns >= 1, "{out:?} {err:?}");
    assert_eq!(one.end().1, ["True"]);
}

/// A process that has no transparent huge pages: the line names the reason, with a command.
#[test]
fn a_process_that_has_switched_them_off() {
    let place = Place::new();
    let off = place.start(&["waits", "thp-off"]);
    assert_eq!(off.out(), "ready");
    let pid = off.pid().to_string();
    // They are allowed while its code is copied (`thp_off`); what it writes to stays as it wants it.
    let outcome = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp", &pid]).bare();
    assert!(outcome.stdout.contains(": text ") && !outcome.stdout.contains("text 0 B of "), "{outcome:?}");
    let outcome = Cmd::new([HUGELIFT, "attach", "--parts", "heap", &pid]).bare();
    assert!(outcome.stderr.contains(&format!("THP_enabled is 0 in /proc/{pid}/status")), "{outcome:?}");
    off.end();
}

/// Looking takes a thousandth of a CPU, with processes that come all the time.
#[test]
fn looking_takes_a_thousandth_of_a_cpu() {
    let place = Place::new();
    let watched = || {
        let watch = place.watch(&["--name", &place.name]);
        watch.err();
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end {
            assert!(Command::new("true").status().is_ok_and(|status| status.success()));
        }
        let (_, err) = watch.stop(Signal::SIGTERM);
        err.last().expect("a line").clone()
    };
    // As for a start: the second or third run shows the watcher's own CPU time.
    let lines: Vec<String> =
        (0..3).map(|_| watched()).take_while(|line| !is_a_thousandth(line, 15.0)).collect();
    assert!(lines.len() < 3, "{lines:?}");
}
