// SPDX-License-Identifier: Apache-2.0
//! Tests of the store of shared code: all processes share one copy, and whatever happens to the copy, a
//! program runs its own bytes.

mod admin;
mod damage;
mod hot;
mod sharing;
mod starts;

use crate::common::held::needed;
use crate::common::huge::{Piece, assert_no_wx, assert_unchanged, pieces, smaps};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, WITH_FAULT_POINTS, fat, find, fits, open_dir};
use crate::skip;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SHARED: [&str; 2] = ["--backing", "shared"];
const PAGE: u64 = 2 << 20;

/// A store that only this test uses; it is removed at the end.
struct Shelf {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Shelf {
    /// # Errors
    /// There is no tmpfs for the store.
    fn new() -> Result<Shelf, String> {
        let dir = tempfile::TempDir::new_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let line = mounts.lines().rfind(|l| l.split(' ').nth(1) == Some("/dev/shm")).unwrap_or_default();
        if !line.contains(" tmpfs ") || line.contains("noexec") {
            return Err(format!("needs a tmpfs that allows code on /dev/shm, not '{line}'"));
        }
        let path = dir.path().join("hugelift/store");
        Ok(Shelf { _dir: dir, path })
    }

    fn cmd<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Cmd {
        Cmd::new(args).env("HUGELIFT_STORE", &self.path)
    }

    /// Runs `hugelift store` and returns its exit status and its output.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let out = Command::new(HUGELIFT)
            .arg("store")
            .args(args)
            .env("HUGELIFT_STORE", &self.path)
            .stdin(Stdio::null())
            .output()
            .expect("hugelift starts");
        let told = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8(told).expect("UTF-8"))
    }

    fn entries(&self) -> Vec<Value> {
        let (status, text) = self.run(&["list", "--json"]);
        assert_eq!(status, Some(0), "{text}");
        let listed: Value = serde_json::from_str(&text).expect("JSON");
        fits("store-list", &listed);
        listed["entries"].as_array().expect("entries").clone()
    }

    /// Returns the path of the only entry.
    fn entry(&self) -> PathBuf {
        let entries = self.entries();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        self.path.join(entry["files"][0].as_str().expect("a name"))
    }

    /// Returns the names of the files in the store, without the lock and the secret.
    fn names(&self) -> Vec<String> {
        let Ok(dir) = fs::read_dir(&self.path) else { return vec![] };
        let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = dir.map(name).filter(|n| n != "lock" && n != "key").collect();
        names.sort();
        names
    }
}

macro_rules! shelf {
    () => {
        match Shelf::new() {
            Ok(shelf) => shelf,
            Err(why) => skip!("{why}"),
        }
    };
}
use shelf;

/// Builds a victim at a fixed address.
fn victim(source: &'static str) -> PathBuf {
    fat(source).flags(&["-no-pie"]).build()
}

/// Makes a copy of `program` that the test may change.
fn copy(dir: &Path, program: &Path) -> PathBuf {
    let own = dir.join("program");
    crate::common::cache::copy(program, &own);
    own
}

/// Checks that the program, which compares its memory with its file, prints the same as without hugelift.
fn runs_its_own(cmd: &Cmd, options: &[&str], what: &str) -> Outcome {
    let (bare, outcome) = (cmd.bare(), cmd.lifted(options));
    let sound = outcome.end == End::Code(0) && !outcome.stdout.contains("DIFFERS");
    assert!(sound && outcome.stdout.contains(" text "), "{what}: {outcome:?}");
    assert_eq!(outcome.stdout, bare.stdout, "{what}");
    outcome
}

/// Returns the number of ptrace operations of a start.
fn operations(cmd: &Cmd) -> usize {
    let cmd = cmd.clone().launcher(WITH_FAULT_POINTS);
    let outcome = cmd.env("HUGELIFT_TEST_DIE", "count").lifted(&SHARED);
    let count = outcome.stderr.lines().find_map(|l| l.strip_prefix("hugelift-test: ptrace operations: "));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("no count: {outcome:?}"))
}

/// Checks that all whole huge pages of the objects are huge and belong to the store.
fn assert_shared(shelf: &Shelf, pid: u32, objects: &[PathBuf]) -> Vec<Piece> {
    let pieces: Vec<Piece> = pieces(pid, objects).into_iter().filter(|p| p.inner.is_some()).collect();
    assert!(!pieces.is_empty());
    let usage = smaps(pid);
    for piece in &pieces {
        let inner = piece.inner.expect("a whole huge page");
        let of_store = usage.iter().filter(|u| u.mapping.path.starts_with(&shelf.path));
        let here = of_store.filter(|u| inner.covers(u.mapping.range));
        let bytes: u64 = here.map(|u| u.shmem_huge).sum();
        assert_eq!(bytes, inner.len(), "{}: {} kB belong to the store", piece.object.display(), bytes >> 10);
        assert_eq!(piece.huge, inner.len());
    }
    assert_unchanged(pid, &pieces);
    assert_no_wx(pid, &pieces);
    pieces
}

/// Starts ten processes, and checks that together they have as much of the store's memory as was lifted
/// in each.
fn ten_of(shelf: &Shelf, cmd: &Cmd, program: &Path) {
    let objects = needed(program);
    let held: Vec<Held> = (0..10).map(|_| Held::start(cmd, Some(&SHARED), program)).collect();
    let (mut pss, mut one) = (0, 0);
    for held in &held {
        let pieces = assert_shared(shelf, held.pid(), &objects);
        one = pieces.iter().filter_map(|p| p.inner).map(|r| r.len()).sum();
        let usage = smaps(held.pid());
        // Every part that was lifted, whatever file is mapped there now.
        let lifted = |u: &&hugelift_core::smaps::Usage| {
            pieces.iter().filter_map(|p| p.inner).any(|inner| inner.covers(u.mapping.range))
        };
        pss += usage.iter().filter(lifted).map(|u| u.pss).sum::<u64>();
    }
    assert!(one >= 2 * PAGE);
    assert!(pss.abs_diff(one) <= one / 20, "ten processes have {pss} bytes of {one}");
    let users: usize = shelf.entries().iter().map(|e| e["users"].as_array().unwrap().len()).max().unwrap();
    assert_eq!(users, 10);
    for held in held {
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.own_lines()), (End::Code(0), vec![]));
    }
}
