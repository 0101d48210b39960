// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --parts files`: the data files that a process has mapped come onto huge pages while it uses them.

use crate::common::huge::smaps;
use crate::common::run::{PATIENCE, end_group, lines_of, spawn, until, wait};
use crate::common::{Cmd, End, HUGELIFT, Outcome, fits, plain};
use crate::{need_root, skip};
use hugelift_core::smaps::Usage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MB: u64 = 1 << 20;
/// Bytes of a file, whose end is in no whole huge page.
const BYTES: u64 = 16 * MB + 3 * 4096;
const WHOLE: u64 = 16 * MB;
/// Makes all words of a file different, as in datafile.c.
const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

/// A data file that was just written: it is in memory in small pages.
pub struct Data {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Data {
    fn new() -> Data {
        Data::within(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn within(folder: &Path) -> Data {
        let dir = TempDir::new_in(folder).expect("a folder");
        let path = dir.path().join("data");
        let words: Vec<u8> = (0..BYTES / 8).flat_map(|n| n.wrapping_mul(PRIME).to_le_bytes()).collect();
        // By small writes, which make no large folios.
        let mut file = File::create(&path).expect("a file");
        words.chunks(4096).for_each(|page| file.write_all(page).expect("write"));
        file.sync_all().expect("fsync");
        Data { _dir: dir, path }
    }
}

/// A process that uses a data file.
pub struct User {
    child: Child,
    lines: Receiver<String>,
    start: u64,
}

impl User {
    pub fn new(kind: &str, file: &Path) -> User {
        let program = plain("datafile").flags(&["-pthread"]).build();
        let mut command = Cmd::new([&program]).args([kind]).arg(file).command(None);
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = spawn(&mut command).expect("start the victim");
        let lines = lines_of(child.stdout.take().expect("stdout is piped"));
        let ready = lines.recv_timeout(PATIENCE).expect("a line of the victim");
        let start = ready.strip_prefix("ready ").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        User { child, lines, start: start.unwrap_or_else(|| panic!("{ready}")) }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Has it check all of its words, which touches every page.
    fn is_right(&mut self) {
        self.child.stdin.as_mut().expect("stdin").write_all(b"check\n").expect("write");
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("wrong 0"));
    }

    /// Returns the bytes of its mapping that are huge.
    fn huge(&self) -> u64 {
        self.usage().file_huge
    }

    /// Returns the bytes of its mapping that are in its page tables.
    fn resident(&self) -> u64 {
        self.usage().rss
    }

    fn usage(&self) -> Usage {
        let all = smaps(self.child.id());
        all.into_iter().find(|usage| usage.mapping.range.start.0 == self.start).expect("its mapping")
    }

    /// Checks it once more, and ends it.
    pub fn finish(mut self) {
        self.is_right();
        drop(self.child.stdin.take());
        assert_eq!(wait(&mut self.child, Instant::now() + PATIENCE), Some(End::Code(0)));
    }
}

impl Drop for User {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

fn attach(words: &[&str]) -> Outcome {
    Cmd::new([HUGELIFT, "attach", "--parts", "files"]).args(words).bare()
}

/// Returns what became of a file, and what was complained of.
pub fn attached(user: &User, file: &Path, words: &[&str]) -> (Value, String) {
    let outcome = attach(&[words, &["--json", &user.pid()]].concat());
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let all: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    fits("attach", &all);
    let files = all["processes"][0]["files"].as_array().unwrap_or_else(|| panic!("no files: {outcome:?}"));
    let path = file.to_str().expect("UTF-8");
    if words.contains(&"--dry-run") {
        let row = &all["processes"][0];
        assert!(row["borrowed"] == 0 && row["lines"].as_array().is_some_and(Vec::is_empty), "{outcome:?}");
    }
    let found = files.iter().find(|one| one["path"] == path).unwrap_or_else(|| panic!("{outcome:?}"));
    (found.clone(), outcome.stderr)
}

fn huge_bytes(file: &Value) -> u64 {
    file["huge_bytes"].as_u64().unwrap_or_else(|| panic!("{file:#}"))
}

/// Returns why nothing here can be huge, if the file system has no large folios.
fn unfit() -> Option<String> {
    let data = Data::new();
    let path = data.path.to_str().expect("UTF-8");
    let text = Cmd::new([HUGELIFT, "prime", "--json", path]).bare().stdout;
    text.contains("no-large-folios").then(|| format!("no huge pages from the file system: {text}"))
}

/// Skips a test where nothing can be huge, or not by this user.
macro_rules! need_fit {
    () => {
        need_root!();
        if let Some(why) = unfit() {
            skip!("{why}");
        }
    };
}

/// Runs the kinds of use of which all becomes huge while the process goes on.
#[test]
fn issue_32_1_files_in_use_become_huge_for_the_process_that_uses_them() {
    need_fit!();
    for kind in ["shared", "private", "writes"] {
        let data = Data::new();
        let mut user = User::new(kind, &data.path);
        assert_eq!(user.huge(), 0, "{kind}");
        let (file, _) = attached(&user, &data.path, &["--dry-run"]);
        assert_eq!((huge_bytes(&file), user.huge()), (0, 0), "{kind}: {file:#}");
        assert!(file.to_string().contains("in-use"), "{kind}: {file:#}");
        let helps = format!("hugelift attach --parts files {} ", user.pid());
        assert!(file.to_string().contains(&helps), "{kind}: {file:#}");
        let (file, _) = attached(&user, &data.path, &[]);
        assert_eq!(file["whole_bytes"].as_u64(), Some(WHOLE), "{kind}: {file:#}");
        user.is_right();
        // A page that its thread has touched again in that moment stays small.
        let (huge, least) = (huge_bytes(&file), if kind == "writes" { WHOLE / 2 } else { WHOLE });
        println!("{kind}: {} of {} MB", user.huge() / MB, WHOLE / MB);
        assert!(huge >= least && user.huge() >= least, "{kind}: {} bytes: {file:#}", user.huge());
        attached(&user, &data.path, &["--dry-run"]);
        user.finish();
    }
}

/// Pages that are touched all the time may stay small, and the report says so. No byte is wrong.
#[test]
fn issue_32_1_files_that_are_touched_all_the_time_stay_right() {
    need_fit!();
    let data = Data::new();
    let mut user = User::new("busy", &data.path);
    for _ in 0..3 {
        let (file, _) = attached(&user, &data.path, &[]);
        println!("busy: {} of {} MB", huge_bytes(&file) / MB, WHOLE / MB);
        assert!(huge_bytes(&file) == WHOLE || file.to_string().contains("kept-by-process"), "{file:#}");
        user.is_right();
    }
    user.finish();
}

#[test]
fn issue_32_1_files_that_cannot_be_huge_for_a_process_are_named() {
    need_fit!();
    // It keeps what it maps. The command that has just failed is not advised.
    for (kind, says) in [
        ("written", "has a private mapping of it that it may write to"),
        ("twice", "maps it more than once"),
        ("locked", "has locked it (mlock)"),
    ] {
        let data = Data::new();
        let user = User::new(kind, &data.path);
        let (file, _) = attached(&user, &data.path, &[]);
        let text = file.to_string();
        assert!(text.contains("kept-by-process") && text.contains(says), "{kind}: {file:#}");
        assert!(!text.contains("hugelift attach"), "{kind}: {file:#}");
        user.finish();
    }
    // Two processes hold the pages of each other.
    let data = Data::new();
    let users = [User::new("shared", &data.path), User::new("shared", &data.path)];
    let (file, _) = attached(&users[0], &data.path, &[]);
    let text = file.to_string();
    assert!(users.iter().all(|user| text.contains(&user.pid())), "{file:#}");
    users.into_iter().for_each(User::finish);
    // The file becomes huge, and this mapping does not.
    let data = Data::new();
    let user = User::new("misplaced", &data.path);
    let (file, said) = attached(&user, &data.path, &[]);
    assert!(file.to_string().contains("which maps it where no huge page fits"), "{file:#}");
    let line = said.lines().find(|line| line.contains(data.path.to_str().expect("UTF-8")));
    assert!(line.is_some_and(|line| line.contains("address and file offset differ modulo 2 MB")), "{said}");
    assert_eq!(user.huge(), 0);
    user.finish();
    assert!(fs::read(&data.path).expect("read").len() as u64 == BYTES);
}

/// Files that are excluded, or not named where some are, stay as they are.
#[test]
fn issue_32_1_files_are_chosen_by_their_names() {
    need_fit!();
    let data = Data::new();
    let user = User::new("shared", &data.path);
    let path = data.path.to_str().expect("UTF-8");
    for words in [["--exclude", path], ["--object", "*.so"]] {
        let outcome = attach(&[&words[..], &["--json", &user.pid()]].concat());
        assert_eq!((outcome.end, user.huge()), (End::Code(0), 0), "{outcome:?}");
        assert!(!outcome.stdout.contains(path), "{outcome:?}");
    }
    let (file, _) = attached(&user, &data.path, &["--object", "data"]);
    assert_eq!((huge_bytes(&file), user.huge()), (WHOLE, WHOLE), "{file:#}");
    user.finish();
}

/// hugelift is killed while files come onto huge pages: no byte of the file or of the process is wrong, and the next one does it.
#[test]
fn issue_32_1_hugelift_is_killed_while_it_brings_files_onto_huge_pages() {
    need_fit!();
    let data = Data::new();
    let before = fs::read(&data.path).expect("read");
    let mut user = User::new("writes", &data.path);
    for n in 0..50 {
        let pid = user.pid();
        let path = data.path.to_str().expect("UTF-8");
        let words: &[&str] =
            if n % 2 == 0 { &["attach", "--parts", "files", &pid] } else { &["prime", path] };
        let mut command = Cmd::new([HUGELIFT]).args(words).command(None);
        let mut child = spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).expect("hugelift");
        std::thread::sleep(Duration::from_micros(1500 * n));
        end_group(&mut child);
        if n % 10 == 0 {
            user.is_right();
        }
    }
    user.finish();
    // The process has written to the second word of each page.
    let after = fs::read(&data.path).expect("read");
    let same = |n: usize| n % 4096 / 8 == 1 || before[n] == after[n];
    assert!(before.len() == after.len() && (0..before.len()).all(same), "the file has other bytes");
    let user = User::new("writes", &data.path);
    let (file, _) = attached(&user, &data.path, &[]);
    assert!(huge_bytes(&file) >= WHOLE / 2, "{file:#}");
    user.finish();
}

/// A process that cannot be changed keeps the pages of its files, and files in tmpfs are memory of their processes.
#[test]
fn issue_32_1_files_that_are_left_alone() {
    need_root!();
    let data = Data::new();
    let user = User::new("shared", &data.path);
    let pid = Pid::from_raw(user.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).expect("kill");
    until("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    });
    let outcome = attach(&[&user.pid()]);
    assert!(outcome.end == End::Code(125) && outcome.stderr.contains("it is stopped"), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    kill(pid, Signal::SIGCONT).expect("kill");
    assert_eq!(user.resident(), BYTES);
    user.finish();
    let data = Data::within(Path::new("/dev/shm"));
    let user = User::new("shared", &data.path);
    let outcome = attach(&["--json", &user.pid()]);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    assert!(!outcome.stdout.contains(data.path.to_str().expect("UTF-8")), "{outcome:?}");
    user.finish();
}

#[test]
fn issue_32_1_files_are_taken_of_running_processes_alone() {
    let refused = |words: &[&str], says: &str| {
        let outcome = Cmd::new([HUGELIFT]).args(words).bare();
        assert_eq!((outcome.end, outcome.own_lines().len()), (End::Code(125), 1), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{outcome:?}");
    };
    refused(&["run", "--parts", "files", "true"], "hugelift prime FILE");
    refused(&["inspect", "--parts", "files,text", "true"], "hugelift prime FILE");
    let own = std::process::id().to_string();
    refused(&["attach", "--watch", "--parts", "files", &own], "hugelift service");
}
