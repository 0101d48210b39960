// SPDX-License-Identifier: Apache-2.0
//! `hugelift run` and `hugelift attach --watch`: only the code in use is copied, and code that a process uses later follows.

use crate::common::huge::smaps;
use crate::common::run::until;
use crate::common::{End, HUGELIFT, fat, fits, plain};
use crate::need_root;
use crate::running::Running;
use hugelift_core::addr::{Addr, Range};
use hugelift_linux::proc::procfs::Process;
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

pub const HUGE: u64 = 2 << 20;

/// A copy of the victim on a tmpfs: its page cache is in small pages there.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let place = Place { dir: tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm") };
        let copied = Command::new("cp").arg(fat("hot").build()).arg(place.program()).status();
        assert!(copied.is_ok_and(|status| status.success()));
        place
    }

    pub fn program(&self) -> PathBuf {
        self.dir.path().join("hot")
    }

    /// Starts the victim.
    pub fn start(&self, words: &[&str]) -> Running {
        Running::start(Command::new(self.program()).args(words))
    }

    /// Starts a command as `hugelift run -v` with anonymous copies while it runs.
    fn run(&self, by: &[&str], words: &[&str]) -> Running {
        let mut command = Command::new(HUGELIFT);
        command
            .args(["run", "-v", "--budget", "1G", "--children", "lift", "--backing", "thp", "--"])
            .args(by);
        Running::start(command.arg(self.program()).args(words))
    }

    /// Starts `hugelift attach --watch` with anonymous copies.
    fn watch(&self, words: &[&str]) -> Running {
        let options = ["attach", "--watch", "--backing", "thp", "--sample"];
        Running::start(Command::new(HUGELIFT).args(options).args(words))
    }
}

/// Returns the blocks of the victim that runs them now.
pub fn blocks_of(running: &Running) -> Blocks {
    let line = running.out();
    let words: Vec<&str> = line.split(' ').collect();
    let ["at", start, end, "in", pid] = words[..] else { panic!("{line}") };
    let [start, end] =
        [start, end].map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("an address"));
    Blocks { start, end, pid: pid.parse().expect("a process id") }
}

/// Has the victim go on with its next word.
pub fn go_on(running: &mut Running) {
    running.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
}

/// The blocks of code of a victim.
pub struct Blocks {
    pub start: u64,
    pub end: u64,
    pub pid: u32,
}

impl Blocks {
    /// Returns the huge pages that hold bytes of the blocks: the blocks, and whether it is a copy.
    pub fn pages(&self) -> Vec<(Vec<u64>, bool)> {
        let usages = Process::new(self.pid).smaps().unwrap_or_default();
        let size = (self.end - self.start) / 16;
        let is_huge = |page: u64| {
            let range = Range::sized(Addr(page), HUGE).expect("a range");
            usages.iter().any(|usage| usage.mapping.range.covers(range) && usage.anon_huge > 0)
        };
        let blocks = |page: u64| {
            let [first, last] = [page, page + HUGE - 1].map(|byte| (byte - self.start) / size);
            (first..=last).collect()
        };
        // The first and the last huge page also hold code that is no block.
        let pages = (self.start.next_multiple_of(HUGE)..self.end - HUGE + 1).step_by(HUGE as usize);
        pages.map(|page| (blocks(page), is_huge(page))).collect()
    }

    /// Returns whether all huge pages that lie in one block are copies.
    pub fn has(&self, block: u64) -> bool {
        let pages = self.pages();
        let inside: Vec<bool> =
            pages.into_iter().filter(|(blocks, _)| blocks == &[block]).map(|(_, huge)| huge).collect();
        !inside.is_empty() && inside.into_iter().all(|huge| huge)
    }

    /// Checks that nothing is huge that holds no byte of these blocks.
    #[track_caller]
    pub fn assert_only(&self, hot: &[u64]) {
        let pages = self.pages();
        let is_wrong = |(blocks, huge): &&(Vec<u64>, bool)| *huge && !blocks.iter().any(|b| hot.contains(b));
        assert_eq!(pages.iter().filter(is_wrong).collect::<Vec<_>>(), Vec::<&(Vec<u64>, bool)>::new());
    }

    fn huge_bytes(&self) -> u64 {
        smaps(self.pid).iter().filter(|u| u.mapping.prot.exec).map(|u| u.anon_huge).sum()
    }
}

/// A block that becomes hot is copied as well, and nothing else. The victim checks its own code all the time.
#[test]
fn the_code_in_use_of_a_run_and_what_becomes_hot() {
    need_root!();
    let place = Place::new();
    let mut victim = place.run(&[], &["3", "run", "9", "run"]);
    let blocks = blocks_of(&victim);
    until("block 3 is copied", || blocks.has(3));
    blocks.assert_only(&[3]);
    go_on(&mut victim);
    let blocks = blocks_of(&victim);
    until("block 9 is copied", || blocks.has(9));
    blocks.assert_only(&[3, 9]);
    // The watcher reads the process once more before it says what was lifted, so the process must still be there.
    let mut lifts = Vec::new();
    until("it says both", || {
        lifts.extend(victim.err.try_iter().filter(|line| line.contains(" samples chose ")));
        lifts.len() >= 2
    });
    assert!(lifts.iter().all(|line| line.contains("while it ran, after ")), "{lifts:?}");
    let (end, out, err) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]), "{err:?}");
    assert!(err.iter().any(|line| line.contains(" ms for samples")), "{err:?}");
}

/// The budget is the sum of all copies of a process, whenever they were made.
#[test]
fn a_process_that_is_watched_within_a_budget() {
    need_root!();
    let place = Place::new();
    let mut victim = place.start(&["3", "run", "9", "run"]);
    let blocks = blocks_of(&victim);
    let watch = place.watch(&["100ms", "--json", "--budget", "6M", &victim.pid().to_string()]);
    let row: Value = serde_json::from_str(&watch.out()).expect("JSON");
    fits("attach-watch", &row);
    let line = row["lines"][0].as_str().expect("a line");
    assert!(line.starts_with("text ") && line.contains(" samples chose "), "{row}");
    assert!(row["error"].is_null() && row["pid"] == blocks.pid, "{row}");
    blocks.assert_only(&[3]);
    go_on(&mut victim);
    let blocks = blocks_of(&victim);
    until("the budget is used up", || blocks.huge_bytes() == 6 << 20);
    blocks.assert_only(&[3, 9]);
    let (end, out, _) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
    let (end, _, err) = watch.end();
    assert!(end == Some(End::Code(0)) && err[0].contains("1 process lifted"), "{err:?}");
}

/// The total is that of all processes together: one has what the other has left.
#[test]
fn issue_33_processes_that_are_watched_within_a_total() {
    need_root!();
    let place = Place::new();
    let victims = [(), ()].map(|()| place.start(&["3", "run"]));
    let blocks = victims.each_ref().map(blocks_of);
    let pids = victims.each_ref().map(|victim| victim.pid().to_string());
    let watch = place.watch(&["100ms", "--total", "6M", &pids[0], &pids[1]]);
    let all = || blocks.each_ref().map(Blocks::huge_bytes);
    until("the total is used up", || all().iter().sum::<u64>() == 6 << 20);
    // Both go on, and are sampled on.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(all().iter().sum::<u64>(), 6 << 20);
    for victim in victims {
        let (end, out, _) = victim.end();
        assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
    }
    // The first one may have all of it.
    let (end, _, err) = watch.end();
    assert!(end == Some(End::Code(0)) && err[0].contains("lifted"), "{err:?}");
}

/// Where no event can be opened all of the code is copied, and a line says why.
#[test]
fn a_process_that_cannot_be_sampled() {
    let deny = plain("deny").build();
    let number = nix::libc::SYS_perf_event_open.to_string();
    for (errno, want) in [("1", "EPERM: kernel.perf_event_paranoid is "), ("38", "ENOSYS: a seccomp filter")]
    {
        let place = Place::new();
        let victim = place.start(&["3", "run"]);
        let blocks = blocks_of(&victim);
        let mut command = Command::new(&deny);
        command.args([errno, &number, &number, "140000", HUGELIFT, "attach", "--watch", "--backing", "thp"]);
        let watch = Running::start(
            command.args(["--sample", "100ms", &victim.pid().to_string()]).env("DENY_SHOW", "1"),
        );
        until("all of it is copied", || (1..15).all(|block| blocks.has(block)));
        let (end, out, _) = victim.end();
        assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
        let (_, out, err) = watch.end();
        let why =
            format!("the code in use cannot be sampled, so all code is copied: perf_event_open: {want}");
        let is_it =
            |line: &&String| line.contains(&why) || errno == "1" && line.contains("perf_event_paranoid is");
        assert_eq!(err.iter().filter(is_it).count(), 1, "{out:?} {err:?}");
    }
}

/// Without samples nothing says what of it is to be within the budget.
#[test]
fn a_process_that_cannot_be_sampled_within_a_budget() {
    let deny = plain("deny").build();
    let number = nix::libc::SYS_perf_event_open.to_string();
    let place = Place::new();
    let victim = place.start(&["3", "run"]);
    let blocks = blocks_of(&victim);
    let mut command = Command::new(&deny);
    command.args(["38", &number, &number, "140000", HUGELIFT, "attach", "--watch", "--backing", "thp"]);
    command.args(["--budget", "8M", &victim.pid().to_string()]).env("DENY_SHOW", "1");
    let watch = Running::start(&mut command);
    let why = "the code in use cannot be sampled, so no code is copied (--budget): perf_event_open: ENOSYS";
    until("it says so", || watch.err().contains(why));
    assert_eq!(blocks.huge_bytes(), 0);
    let (end, out, _) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
    watch.end();
}

/// What was sampled of a program is nothing to the one that it becomes by execve(2).
#[test]
fn a_program_that_becomes_another_one_while_it_is_sampled() {
    need_root!();
    let place = Place::new();
    let script = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done; exec \"$@\"";
    let victim = place.run(&["sh", "-c", script, "sh"], &["5", "run"]);
    let blocks = blocks_of(&victim);
    until("block 5 is copied", || blocks.has(5));
    blocks.assert_only(&[5]);
    let (end, out, err) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]), "{err:?}");
}

/// The process that is left has the code of the one that has ended, and is sampled for itself.
#[test]
fn a_process_that_the_program_leaves_behind_is_followed() {
    need_root!();
    let place = Place::new();
    let victim = place.run(&[], &["3", "burn", "leave", "run"]);
    let blocks = blocks_of(&victim);
    assert_ne!(blocks.pid, victim.child.id());
    until("block 3 is copied", || blocks.has(3));
    blocks.assert_only(&[3]);
    let (end, out, err) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]), "{err:?}");
}

/// A process that ends while it is sampled ends the watch, and was not changed.
#[test]
fn a_process_that_ends_while_it_is_sampled() {
    need_root!();
    let place = Place::new();
    let victim = place.start(&["3", "run"]);
    let blocks = blocks_of(&victim);
    let watch = place.watch(&["60m", &victim.pid().to_string()]);
    // perf_event_open(2) has made files of the watcher.
    let events = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", watch.child.id())).into_iter().flatten();
        let is_event = |file: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_link(file.ok()?.path()).ok().filter(|to| to.ends_with("anon_inode:[perf_event]"))
        };
        files.filter_map(is_event).count()
    };
    until("it is sampled", || events() > 0);
    blocks.assert_only(&[]);
    let (end, out, _) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
    let (end, out, err) = watch.end();
    assert!(end == Some(End::Code(0)) && err[0].contains("0 processes lifted"), "{out:?} {err:?}");
}
