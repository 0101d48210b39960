// SPDX-License-Identifier: Apache-2.0
//! Huge pages that writes after a fork have split are joined again, once no other process shares
//! them: never before, never more than there were, and only from outside the program.

use crate::common::guard::Settings;
use crate::common::huge::smaps;
use crate::common::run::{NO_STORE, until};
use crate::common::{Cmd, End, HUGELIFT, find, open_dir, plain};
use crate::{need, need_root, skip};
use hugelift_core::addr::{Addr, Range};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MB: u64 = 1 << 20;
const SIZE: u64 = 64 * MB;
/// Other memory of the victim's bss that may be huge as well.
const OTHER: u64 = 4 * MB;
const BSS: [&str; 2] = ["--parts", "bss"];

fn victim() -> PathBuf {
    plain("join").build()
}

/// Returns the watcher of `pid`: the hugelift process that holds a pidfd of it.
fn beside(pid: u32) -> Option<u32> {
    let hugelift = Path::new(HUGELIFT).canonicalize().expect("hugelift");
    let all = fs::read_dir("/proc").expect("proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let mut ours = all.filter(|p| fs::read_link(format!("/proc/{p}/exe")).is_ok_and(|exe| exe == hugelift));
    ours.find(|p: &u32| {
        let files = fs::read_dir(format!("/proc/{p}/fdinfo")).into_iter().flatten().flatten();
        files.filter_map(|f| fs::read_to_string(f.path()).ok()).any(|info| {
            info.lines().any(|line| line.split_whitespace().eq(["Pid:", pid.to_string().as_str()]))
        })
    })
}

/// Returns how often a process has gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a count").trim().parse().expect("a number")
}

/// What smaps shows of the victim's memory.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Seen {
    huge: u64,
    resident: u64,
}

/// A victim that follows commands on its stdin. Ended when dropped.
struct Told {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The process id of the program, and its memory.
    pid: u32,
    memory: Range,
}

impl Told {
    /// Starts the victim. `between` are words in front of the program.
    fn start(options: &[&str], between: &[&str], program: &Path, args: &[&str]) -> Told {
        let mut command = Command::new(HUGELIFT);
        command.arg("run").args(options).arg("--").args(between).arg(program).args(args);
        command.env("HUGELIFT_STORE", NO_STORE).process_group(0);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hugelift starts");
        let (stdin, stdout) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        let pid = child.id();
        let mut told = Told { child, stdin, stdout: BufReader::new(stdout), pid, memory: Range::default() };
        let line = told.line();
        let numbers: Vec<u64> = line.split(' ').map(|n| u64::from_str_radix(n, 16).expect("hex")).collect();
        told.memory = Range::sized(Addr(numbers[0]), numbers[1]).expect("its memory");
        told
    }

    fn with(options: &[&str]) -> Told {
        Told::start(&[&BSS, options].concat(), &[], &victim(), &[])
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("its stdout");
        line.trim_end().to_string()
    }

    fn tell(&mut self, word: &str) -> String {
        writeln!(self.stdin, "{word}").expect("its stdin");
        self.line()
    }

    fn seen(&self) -> Seen {
        let inside: Vec<_> = smaps(self.pid)
            .into_iter()
            .filter(|u| u.mapping.range.intersect(self.memory).is_some())
            .collect();
        let sum = |of: fn(&hugelift_core::smaps::Usage) -> u64| inside.iter().map(of).sum();
        Seen { huge: sum(|u| u.anon_huge), resident: sum(|u| u.rss) }
    }

    /// Waits until the watcher has looked at the victim once more.
    fn looked_at(&self) {
        let joiner = beside(self.pid).expect("the victim has a watcher");
        let before = sleeps(joiner);
        until("a look", || sleeps(joiner) >= before + 2);
    }

    /// Makes the victim fork and split each huge page.
    fn split(&mut self) -> Seen {
        let before = self.seen();
        self.looked_at();
        self.tell("fork");
        assert_eq!(self.tell("huge"), "written");
        let split = self.seen();
        assert!(split.huge <= OTHER, "{before:?}, {split:?}");
        before
    }

    fn end(mut self) {
        assert_eq!(self.tell("check"), "0 wrong");
        let joiner = beside(self.pid);
        drop(self.stdin);
        assert_eq!(self.child.wait().expect("wait").code(), Some(0));
        // The watcher ends with the victim.
        until("the watcher's end", || joiner.is_none_or(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    }
}

impl Told {
    /// Asserts that split pages are joined only when the child has ended.
    fn assert_joined(mut self, huge: u64) {
        let before = self.split();
        assert!((huge..=huge + OTHER).contains(&before.huge), "{before:?}");
        self.looked_at();
        self.looked_at();
        assert!(self.seen().huge <= OTHER, "joined while a child shares it: {:?}", self.seen());
        assert_eq!(self.tell("end"), "right");
        until("joined", || self.seen().huge >= huge);
        assert!(self.seen().resident <= before.resident, "{before:?}, now {:?}", self.seen());
        self.end();
    }
}

/// The settings of khugepaged. It would join the pages within some minutes by itself, and also
/// blocks that were never huge.
const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";

/// How many tests need khugepaged to be idle now, and the guard that restores its settings after
/// the last of them.
static QUIET: Mutex<(usize, Option<Settings>)> = Mutex::new((0, None));

/// Keeps khugepaged idle while it exists. Several tests of this file may each hold one at the same
/// time.
struct Quiet;

impl Quiet {
    fn lock() -> MutexGuard<'static, (usize, Option<Settings>)> {
        QUIET.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> Quiet {
        let mut quiet = Quiet::lock();
        if quiet.1.is_none() {
            let settings =
                [("max_ptes_none", "0"), ("max_ptes_shared", "0"), ("scan_sleep_millisecs", "600000")];
            let path = |name: &str| format!("{KHUGEPAGED}/{name}");
            let paths = settings.map(|(name, _)| path(name));
            quiet.1 = Some(Settings::keep(&paths.each_ref().map(String::as_str)).expect(KHUGEPAGED));
            for (name, value) in settings {
                fs::write(path(name), value).expect(name);
            }
        }
        quiet.0 += 1;
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let mut quiet = Quiet::lock();
        quiet.0 -= 1;
        if quiet.0 == 0 {
            quiet.1 = None;
        }
    }
}

macro_rules! need_joining {
    () => {{
        need_root!();
        if let Err(why) = hugelift_lift::watcher::joiner::Joiner::new(
            &hugelift_lift::watcher::process::Program::open(std::process::id()).expect("this process"),
        ) {
            skip!("{why}");
        }
        Quiet::new()
    }};
}

#[test]
fn joined_when_the_child_has_ended() {
    let _quiet = need_joining!();
    Told::with(&[]).assert_joined(SIZE);
}

#[test]
fn static_programs_too() {
    let _quiet = need_joining!();
    let program = plain("join").flags(&["-static"]).build();
    Told::start(&BSS, &[], &program, &[]).assert_joined(SIZE);
}

#[test]
fn what_was_never_huge_does_not_grow() {
    let _quiet = need_joining!();
    Told::start(&BSS, &[], &victim(), &["sparse"]).assert_joined(SIZE / 2);
}

/// The victim has written to all of the memory, so all of it is its own, and joining takes no more
/// memory.
#[test]
fn what_no_child_shares_is_joined_at_once() {
    let _quiet = need_joining!();
    let mut told = Told::with(&[]);
    let before = told.split();
    told.tell("page");
    until("joined", || told.seen().huge >= SIZE);
    assert!(told.seen().resident <= before.resident);
    assert_eq!(told.tell("end"), "right");
    told.end();
}

#[test]
fn a_child_that_has_become_another_program_holds_nothing_back() {
    let _quiet = need_joining!();
    let mut told = Told::with(&[]);
    told.split();
    assert_eq!(told.tell("exec"), "told");
    until("joined", || told.seen().huge >= SIZE);
    assert_eq!(told.tell("kill"), "killed");
    told.end();
}

#[test]
fn other_memory_in_its_place_does_not_grow() {
    let _quiet = need_joining!();
    let mut told = Told::with(&[]);
    told.split();
    assert_eq!(told.tell("remap"), "mapped");
    let before = told.seen();
    assert!(before.huge <= OTHER && before.resident <= SIZE / 512 + OTHER, "{before:?}");
    assert_eq!(told.tell("end"), "right");
    told.looked_at();
    told.looked_at();
    assert!(told.seen().resident <= before.resident + OTHER, "{before:?}, now {:?}", told.seen());
    told.end();
}

/// The memory is unmapped, mapped and forked while it is joined.
#[test]
fn memory_that_comes_and_goes() {
    let _quiet = need_joining!();
    let mut told = Told::with(&[]);
    assert_eq!(told.tell("churn"), "0 wrong");
    told.looked_at();
    assert!(told.seen().resident <= SIZE + OTHER, "{:?}", told.seen());
    told.end();
}

#[test]
fn left_to_the_kernel() {
    let _quiet = need_joining!();
    let told = Told::start(&["--parts", "bss", "--after-fork", "leave"], &[], &victim(), &[]);
    assert_eq!(beside(told.pid), None);
    told.end();
}

/// The watcher traces nothing, is no child of the program, and has none of its files open.
#[test]
fn the_program_does_not_notice_its_watcher() {
    let _quiet = need_joining!();
    let told = Told::with(&["--after-fork", "join"]);
    let joiner = beside(told.pid).expect("the victim has a watcher");
    let status = fs::read_to_string(format!("/proc/{joiner}/status")).expect("its status");
    assert!(!status.contains(&format!("PPid:\t{}\n", told.pid)), "{status}");
    let own = fs::read_to_string(format!("/proc/{}/status", told.pid)).expect("its status");
    assert!(own.contains("TracerPid:\t0\n"), "{own}");
    // The program runs before the watcher has closed its files.
    until("it has no file of the program", || {
        let files = fs::read_dir(format!("/proc/{joiner}/fd")).expect("its files").flatten();
        let mut open: Vec<PathBuf> = files.filter_map(|f| fs::read_link(f.path()).ok()).collect();
        open.retain(|f| !f.starts_with(format!("/proc/{}", told.pid)) && f != Path::new("/dev/null"));
        let cwd = fs::read_link(format!("/proc/{joiner}/cwd")).expect("its cwd");
        open == [Path::new("anon_inode:[pidfd]")] && cwd == Path::new("/")
    });
    told.end();
}

/// After an exec the memory that the watcher examined is gone, and the watcher ends.
#[test]
fn not_beside_another_program() {
    let _quiet = need_joining!();
    let mut child = Command::new(HUGELIFT)
        .args(["run", "--parts", "heap", "sh", "-c", "exec cat"])
        .env("HUGELIFT_STORE", NO_STORE)
        .stdin(Stdio::piped())
        .spawn()
        .expect("hugelift starts");
    until("cat", || {
        fs::read_to_string(format!("/proc/{}/comm", child.id())).is_ok_and(|name| name == "cat\n")
    });
    until("the end of the watcher", || beside(child.id()).is_none());
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}

#[test]
fn a_missing_capability_is_reported_only_on_request() {
    need_root!();
    need!("setpriv");
    let program = victim();
    let dir = open_dir(&[&program]);
    let program = dir.path().join(program.file_name().expect("a name"));
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let run = |how: &str| {
        let cmd = Cmd::new([&program]).under(nobody).launcher(dir.path().join("hugelift"));
        cmd.lifted(&["--parts", "bss", "--after-fork", how])
    };
    for (how, lines) in [("join", 1), ("auto", 0), ("leave", 0)] {
        let seen = run(how);
        assert_eq!((seen.end, seen.own_lines().len()), (End::Code(0), lines), "{seen:?}");
        let told = |line: &&str| line.contains("CAP_SYS_NICE") && line.contains("stay split");
        assert!(seen.own_lines().iter().all(told), "{seen:?}");
    }
}

#[test]
fn a_program_that_adopts_orphans_has_no_watcher() {
    need_root!();
    let cmd = Cmd::new([victim()]).under(["unshare", "-pf", "--mount-proc"]);
    let seen = cmd.lifted(&["--parts", "bss", "--after-fork", "join"]);
    assert_eq!((seen.end, seen.own_lines().len()), (End::Code(0), 1), "{seen:?}");
    assert!(seen.own_lines()[0].contains("pid 1"), "{seen:?}");
    let seen = cmd.lifted(&BSS);
    assert_eq!((seen.end, seen.stderr.as_str()), (End::Code(0), ""), "{seen:?}");
}

/// A server that saves itself while its clients write.
#[test]
fn redis() {
    let _quiet = need_joining!();
    need!("redis-server", "redis-cli", "redis-benchmark");
    let home = tempfile::TempDir::new().expect("a folder");
    let socket = home.path().join("socket");
    let mut server = Command::new(HUGELIFT)
        .args(["run", "--parts", "all", "--"])
        .env("HUGELIFT_STORE", NO_STORE)
        .arg(find("redis-server").expect("redis-server"))
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
        .args(["--disable-thp", "no", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("hugelift starts");
    let cli = |words: &[&str]| {
        let out = Command::new("redis-cli").arg("-s").arg(&socket).args(words).output().expect("redis-cli");
        String::from_utf8(out.stdout).expect("UTF-8").trim().to_string()
    };
    let load = |requests: &str| {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(&socket).args(["-t", "set", "-d", "2000", "-r", "40000", "-q", "-n", requests]);
        assert!(command.stdout(Stdio::null()).status().expect("redis-benchmark").success());
    };
    let huge = || smaps(server.id()).iter().map(|u| u.anon_huge).sum::<u64>();
    let is_saving = || cli(&["info", "persistence"]).contains("rdb_bgsave_in_progress:1");
    until("ready", || cli(&["ping"]) == "PONG");
    load("200000");
    let joiner = beside(server.id()).expect("the server has a watcher");
    let looks = sleeps(joiner);
    until("a look", || sleeps(joiner) >= looks + 2);
    let before = huge();
    assert!(before >= 64 * MB, "{} MB", before / MB);
    // Saves so slowly that all writes happen meanwhile.
    assert_eq!(cli(&["config", "set", "rdb-key-save-delay", "200"]), "OK");
    assert_eq!(cli(&["bgsave"]), "Background saving started");
    load("20000");
    assert!(is_saving(), "redis has saved too fast");
    let split = huge();
    assert!(split < before / 2, "{} of {} MB", split / MB, before / MB);
    let digest = cli(&["debug", "digest"]);
    until("saved", || !is_saving());
    // Relative to what is mapped now: the allocator gives back what the clients' requests took.
    let there = || smaps(server.id()).iter().map(|u| u.anonymous).sum::<u64>();
    until("joined", || huge() >= before.min(there()) / 8 * 7);
    assert_eq!(cli(&["debug", "digest"]), digest);
    cli(&["shutdown", "nosave"]);
    assert_eq!(server.wait().expect("wait").code(), Some(0));
}
