// SPDX-License-Identifier: Apache-2.0
//! Real programs at work with all their parts lifted: the results are the same, the parts are on
//! huge pages, and the programs take hardly more memory. The tests print how much.

mod attached;
mod compared;
mod interpreters;
pub mod servers;
mod shared;

use crate::common::run::NO_STORE;
use crate::common::{CGroup, HUGELIFT};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The memory of the watcher that stays beside the program: in a build without optimization 1.3 MB
/// of its own, its page tables and its kernel stack (a release build has 0.1 MB).
const HELPER: u64 = 2 << 20;
const ALL: [&str; 3] = ["--eager", "--parts", "all"];
/// The longest time that a load may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one run of a program showed.
struct Run {
    /// The result of its work: the same in every run.
    result: String,
    /// The output of `hugelift inspect --json` when most of the work was done.
    seen: Value,
    /// The peak of the memory of its control group in bytes, without the files in the page cache: how
    /// much of a database's own files is there depends on when the kernel writes them back.
    peak: u64,
}

/// A program at work, in its own control group.
struct Load {
    child: Child,
    group: CGroup,
    seen: Value,
    /// The bytes of files in the page cache when most of the work was done.
    files: u64,
    /// Its stderr: shown if the test fails.
    log: File,
}

impl Load {
    /// Starts `words`, lifted or bare. `front` are words in front of them in a bare run; `options`
    /// are further options of hugelift in a lifted run.
    ///
    /// # Errors
    /// Fails if no control group can be made.
    fn start(words: &[OsString], lifted: bool, front: &[&str], options: &[&str]) -> Result<Load, String> {
        let group = CGroup::new("memory")?;
        let mut all: Vec<OsString> = group.words().into_iter().map(OsString::from).collect();
        if lifted {
            all.extend(
                [HUGELIFT, "run"].iter().chain(&ALL).chain(options).chain(&["--"]).map(OsString::from),
            );
        } else {
            all.extend(front.iter().map(OsString::from));
        }
        all.extend(words.iter().cloned());
        let log = tempfile::tempfile().map_err(|e| format!("a temporary file: {e}"))?;
        let mut command = Command::new(&all[0]);
        command
            .args(&all[1..])
            .env("HUGELIFT_STORE", NO_STORE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().map_err(|e| e.to_string())?);
        let child = command.spawn().map_err(|e| format!("{all:?}: {e}"))?;
        Ok(Load { child, group, seen: Value::Null, files: 0, log })
    }

    fn wait_for(&mut self, what: &str, mut is_ready: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_ready() {
            if let Some(status) = self.child.try_wait().expect("wait") {
                panic!("it ended, {status}, before {what}");
            }
            assert!(began.elapsed() < PATIENCE, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Records what is huge now.
    fn look(&mut self) {
        let pid = self.child.id().to_string();
        let out = Command::new(HUGELIFT).args(["inspect", "--json", "--parts", "all", &pid]).output();
        self.seen = serde_json::from_slice(&out.expect("run inspect").stdout).expect("JSON of inspect");
        self.files = self.group.file_cache().expect("the page cache of its group");
    }

    /// Asks it to end.
    fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("kill");
    }

    /// Waits for its end, and returns what it did and how much memory it took.
    fn end(mut self, result: String) -> Run {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
        };
        assert_eq!(status.code(), Some(0), "{result}");
        let peak = self.group.peak().expect("the peak of its memory");
        let peak = peak.saturating_sub(self.files);
        Run { result, seen: std::mem::take(&mut self.seen), peak }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It still runs if its test has failed, or does not wait for its end. A server may have workers. SIGTERM
        // lets it remove what it has in /dev/shm.
        self.group.end();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut text = String::new();
            let _ = self.log.rewind().and_then(|()| self.log.read_to_string(&mut text));
            eprintln!("{text}");
        }
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns how many bytes of code and constants this process has a copy of.
fn copied(seen: &Value) -> u64 {
    let objects = seen["objects"].as_array().expect("objects").iter();
    let parts = objects.flat_map(|o| o["parts"].as_array().expect("parts"));
    let copies = parts.filter(|p| ["text", "rodata"].contains(&p["part"].as_str().expect("a part")));
    let copies = copies.filter(|p| p["backing"] == "thp" || p["backing"] == "hugetlb");
    copies.map(|p| p["huge_bytes"].as_u64().expect("bytes")).sum()
}

/// Asserts that the results are the same, that the `parts` are huge as far as possible, and that
/// the lifted program takes at most a tenth more memory.
fn compare(name: &str, run: impl Fn(bool) -> Run, parts: &[&str]) {
    // Each way runs twice, and the better run counts: a machine that evicts idle memory may take page
    // cache away before the program is examined.
    let bytes = |run: &Run, part: &str, key: &str| run.seen["totals"][part][key].as_u64().unwrap_or(0);
    let enough = |run: &Run, part: &str| {
        let whole = bytes(run, part, "liftable_bytes");
        // Writable memory that was never touched has no pages at all.
        let least = if ["text", "rodata"].contains(&part) { whole - whole / 10 } else { 1 };
        whole > 0 && bytes(run, part, "huge_bytes") >= least
    };
    let worse = |run: &Run| (!parts.iter().all(|part| enough(run, part)), run.peak);
    let least = |lifted| [run(lifted), run(lifted)].into_iter().min_by_key(worse).expect("two");
    let (bare, mut lifted) = (least(false), least(true));
    // inspect gives an object the backing that most of it has, so where there are copies, a few
    // more are not counted.
    let most = |lifted: &Run| bare.peak + bare.peak / 10 + HELPER + copied(&lifted.seen) / 16;
    for _ in 0..2 {
        if worse(&lifted).0 || lifted.peak.saturating_sub(copied(&lifted.seen)) > most(&lifted) {
            lifted = std::cmp::min_by_key(lifted, run(true), worse);
        }
    }
    assert_eq!(lifted.result, bare.result, "{name}");
    let most = most(&lifted);
    let (copied, total) = (copied(&lifted.seen), |part: &str| lifted.seen["totals"][part].clone());
    let huge: Vec<String> = ["text", "rodata", "relro", "data", "bss", "heap"]
        .iter()
        .filter(|part| total(part)["liftable_bytes"].as_u64() > Some(0))
        .map(|part| {
            let mb = |key: &str| megabytes(total(part)[key].as_u64().expect("bytes"));
            format!("{part} {:.0} of {:.0}", mb("huge_bytes"), mb("liftable_bytes"))
        })
        .collect();
    println!(
        "{name}: peak memory {:.0} MB bare, {:.0} MB lifted ({:.2}), of it {:.0} MB a copy of code; huge, in MB: {}",
        megabytes(bare.peak),
        megabytes(lifted.peak),
        lifted.peak as f64 / bare.peak as f64,
        megabytes(copied),
        huge.join(", ")
    );
    for part in parts {
        assert!(enough(&lifted, part), "{name}: {part}: {} is huge", total(part));
    }
    let peak = lifted.peak.saturating_sub(copied);
    assert!(peak <= most, "{name}: {peak} bytes without copies of code, where bare has {}", bare.peak);
}

/// Brings a program's files into huge folios, so that nothing needs to be copied. Where that is
/// impossible, copies are made, which [`compare`] takes into account.
fn prime(program: &Path) {
    let out = Command::new(HUGELIFT).args(["prime", "--with-libs"]).arg(program).output().expect("prime");
    drop(out);
}
