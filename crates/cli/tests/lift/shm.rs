// SPDX-License-Identifier: Apache-2.0
//! Shared memory of a running process is collapsed once, for all processes that share it.

use crate::common::huge::smaps;
use crate::common::run::{PATIENCE, end_group, lines_of, spawn, until, wait};
use crate::common::{CGroup, Cmd, End, HUGELIFT, Outcome, plain};
use crate::{need, need_root, skip};
use hugelift_core::addr::PageSize;
use hugelift_core::smaps::Usage;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::procfs::Process;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// Bytes of each mapping of the victim.
const BYTES: u64 = 8 << 20;
/// The kinds of memory that one collapse makes huge, without the mapping that shows another one's pages.
const WHOLE: [&str; 6] = ["anonymous", "memfd", "sealed", "segment", "tmpfs", "locked"];

/// The victim, which shares its memory with three children that write to it.
struct Victim {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Where each kind begins.
    starts: BTreeMap<String, u64>,
}

impl Victim {
    /// Starts it with these words in front.
    fn start(front: &[&str]) -> Victim {
        let program = plain("shared").build();
        let mut command = Cmd::new([&program]).under(front).command(None);
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = spawn(&mut command).expect("start the victim");
        let lines = lines_of(child.stdout.take().expect("stdout is piped"));
        let mut starts = BTreeMap::new();
        loop {
            let line = lines.recv_timeout(PATIENCE).expect("a line of the victim");
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [kind, start, _] => starts.insert(kind.into(), u64::from_str_radix(start, 16).expect("hex")),
                ["ready"] => break,
                _ => panic!("{line}"),
            };
        }
        Victim { stdin: child.stdin.take(), child, lines, starts }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its processes.
    fn processes(&self) -> Vec<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = std::fs::read_to_string(path).expect("its children");
        let children = children.split_whitespace().map(|pid| pid.parse().expect("a process id"));
        std::iter::once(self.pid()).chain(children).collect()
    }

    /// Returns the bytes of each kind that are huge in one of its processes.
    fn huge(&self, pid: u32) -> BTreeMap<String, u64> {
        let all = smaps(pid);
        let of = |start: u64| {
            all.iter().find(|u: &&Usage| u.mapping.range.start.0 == start).expect("it is mapped")
        };
        self.starts.iter().map(|(kind, start)| (kind.clone(), of(*start).shmem_huge)).collect()
    }

    /// Returns the page tables of all its processes, in bytes.
    fn tables(&self) -> u64 {
        self.processes()
            .iter()
            .map(|pid| Process::new(*pid).status().expect("status").page_tables.expect("VmPTE"))
            .sum()
    }

    /// Ends it, and asserts that it has found all of its bytes and of its children's writes.
    fn finish(mut self) {
        drop(self.stdin.take());
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("as it should be"));
        assert_eq!(wait(&mut self.child, Instant::now() + PATIENCE), Some(End::Code(0)));
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// Runs attach with as much time as it needs.
fn attach(pid: u32, options: &[&str]) -> Outcome {
    let words = [HUGELIFT, "attach", "--parts", "shm", "--cpu-budget", "60"];
    let outcome = Cmd::new(words).args(options).arg(pid.to_string()).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    outcome
}

/// Runs attach until all is huge that can be: a page that is in use just then, or that the kernel moves, keeps its block small.
/// Returns what the first one printed.
fn attach_to_all(victim: &Victim, attach: impl Fn() -> Outcome) -> String {
    let first = attach().stdout;
    until("all that can be huge is", || {
        let is_done = WHOLE.iter().all(|kind| whole(victim, kind));
        if !is_done {
            attach();
        }
        is_done
    });
    first
}

/// Returns why the tests cannot run on this machine.
fn unfit() -> Option<&'static str> {
    let setting = |name: &str| {
        std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).unwrap_or_default()
    };
    match () {
        () if thp_page() != Some(PageSize::MB2) || base_page() != PageSize::SMALL => {
            Some("needs pages of 4 kB and 2 MB")
        }
        () if ["[always]", "[force]", "[deny]"]
            .iter()
            .any(|word| setting("shmem_enabled").contains(word)) =>
        {
            Some("shmem_enabled is always, force or deny")
        }
        () => None,
    }
}

/// Returns what inspect says of its shared memory, as JSON and in its row.
fn inspect(pid: u32) -> (Value, String) {
    let run = |options: &[&str]| {
        Command::new(HUGELIFT)
            .arg("inspect")
            .args(options)
            .arg(pid.to_string())
            .output()
            .expect("inspect")
            .stdout
    };
    let json: Value = serde_json::from_slice(&run(&["--json"])).expect("JSON of inspect");
    let text = String::from_utf8(run(&[])).expect("UTF-8");
    let row = text.lines().find(|line| line.starts_with("shm ")).unwrap_or_default().to_string();
    (json["shm"].clone(), row)
}

/// Returns whether all of a kind is huge for the first process. One of the two mappings of a file is enough.
fn whole(victim: &Victim, kind: &str) -> bool {
    let huge = victim.huge(victim.pid());
    let other = if kind == "memfd" { huge["again"] } else { 0 };
    // Without the right to lock memory it is shared memory as any other.
    huge.get(kind).or(huge.get("unlocked")).map_or(0, |bytes| (*bytes).max(other)) == BYTES
}

/// Asserts that what cannot be huge is not.
fn assert_rest(victim: &Victim) {
    let huge = victim.huge(victim.pid());
    assert_eq!((huge["skewed"], huge["sparse"]), (0, 0), "{huge:?}");
}

#[test]
fn issue_32_2_shared_memory_of_each_kind_is_huge_for_all_that_share_it() {
    need_root!();
    if let Some(why) = unfit() {
        skip!("{why}");
    }
    let victim = Victim::start(&[]);
    let before = victim.tables();
    let (seen, _) = inspect(victim.pid());
    assert_eq!(seen["huge_bytes"], 0, "{seen}");
    assert_eq!(
        (&seen["bytes"], &seen["incongruent_bytes"]),
        (&Value::from(9 * BYTES), &Value::from(BYTES - (2 << 20))),
        "{seen}"
    );
    let done = attach_to_all(&victim, || attach(victim.pid(), &[]));
    assert!(done.contains(" of shared memory is on huge pages now"), "{done}");
    assert!(done.contains("the page tables of the 4 processes that share it had "), "{done}");
    assert!(
        done.contains("8 MB is left: it is shared memory whose address does not match its offset"),
        "{done}"
    );
    assert!(
        done.contains("8 MB is left: less than half of each of its huge pages would hold data"),
        "{done}"
    );
    assert_rest(&victim);
    // The children map it as they write to it.
    for pid in victim.processes() {
        let kinds = || WHOLE.iter().filter(|kind| victim.huge(pid)[**kind] == BYTES).count();
        until("most of it is huge in each process", || kinds() >= 5);
    }
    let after = victim.tables();
    assert!(after < before, "{before} bytes of page tables before, {after} after");
    let (seen, row) = inspect(victim.pid());
    assert!(seen["huge_bytes"].as_u64() >= Some(6 * BYTES), "{seen}");
    assert!(row.contains("6 MB is at addresses that do not match its offsets"), "{row}");
    // Nothing is left to do, in any of them.
    for pid in victim.processes() {
        until("nothing is left to do", || {
            let again = attach(pid, &[]).stdout;
            again.contains("0 B of memory is on huge pages now")
                && again.contains("MB is left: it is on huge pages already")
        });
    }
    victim.finish();
}

/// Without root the file cannot be opened, and without CAP_SYS_NICE a borrowed thread makes the calls.
#[test]
fn issue_32_2_of_the_own_user_without_rights() {
    need_root!();
    if let Some(why) = unfit() {
        skip!("{why}");
    }
    need!("setpriv");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let victim = Victim::start(&user);
    let words = [HUGELIFT, "attach", "--parts", "shm", "--cpu-budget", "60"];
    let attach = || {
        let outcome = Cmd::new(words).arg(victim.pid().to_string()).under(user).bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        outcome
    };
    let done = attach_to_all(&victim, attach);
    assert!(done.contains(" of shared memory is on huge pages now"), "{done}");
    assert_rest(&victim);
    victim.finish();
}

/// A hugelift that is killed at any moment leaves the memory as it was.
#[test]
fn issue_32_2_hugelift_is_killed() {
    need_root!();
    if let Some(why) = unfit() {
        skip!("{why}");
    }
    let mut killed = 0;
    // How long a whole one takes.
    let began = Instant::now();
    let victim = Victim::start(&[]);
    let started = began.elapsed();
    attach(victim.pid(), &[]);
    let time = began.elapsed() - started;
    victim.finish();
    for _ in 0..25 {
        let victim = Victim::start(&[]);
        for _ in 0..2 {
            let mut command = Command::new(HUGELIFT);
            command.args(["attach", "--parts", "shm"]).arg(victim.pid().to_string());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut attach = command.spawn().expect("hugelift");
            std::thread::sleep(time.mul_f64(0.8 * fastrand::f64()));
            killed += u32::from(attach.try_wait().expect("wait").is_none());
            let _ = attach.kill();
            attach.wait().expect("wait");
        }
        attach_to_all(&victim, || attach(victim.pid(), &[]));
        victim.finish();
    }
    println!("{killed} of 50 were killed before their end");
    assert!(killed > 0);
}

/// The watcher of a program that is started lifted collapses what the program shares later.
#[test]
fn issue_32_2_the_watcher_of_run_takes_it() {
    need_root!();
    if let Some(why) = unfit() {
        skip!("{why}");
    }
    let program = plain("shared").build();
    let victim = Victim::start(&[HUGELIFT, "run", "--parts", "shm", "--"]);
    assert_eq!(
        std::fs::read_link(format!("/proc/{}/exe", victim.pid())).expect("its exe"),
        Path::new(&program)
    );
    // What has become huge is mapped so by those that use it: the children.
    let huge = || {
        let all: Vec<_> = victim.processes().into_iter().map(|pid| victim.huge(pid)).collect();
        let most = |kind: &&str| all.iter().map(|huge| huge[*kind]).max().unwrap_or(0);
        WHOLE.iter().map(most).sum::<u64>()
    };
    until("all that can be huge is", || huge() == WHOLE.len() as u64 * BYTES);
    victim.finish();
}

/// The charge of what another control group has filled moves to that of the process. So no more of it is moved than the process can
/// do without.
#[test]
fn issue_32_2_a_limited_group_is_not_filled() {
    need_root!();
    if let Some(why) = unfit() {
        skip!("{why}");
    }
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "96M") {
        skip!("{why}");
    }
    let victim = Victim::start(&[]);
    group.take(victim.pid());
    let said = attach(victim.pid(), &[]).stdout;
    let all = || victim.huge(victim.pid()).values().sum::<u64>() >> 20;
    assert!((2..=16).contains(&all()), "{} MB: {said}", all());
    assert!(said.contains("that another control group was charged for count against"), "{said}");
    let said = attach(victim.pid(), &["--spare", "24M"]).stdout;
    assert!((24..=44).contains(&all()), "{} MB: {said}", all());
    assert!(!group.was_full());
    victim.finish();
}
