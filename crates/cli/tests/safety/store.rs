// SPDX-License-Identifier: Apache-2.0
//! Tests that the store never runs stale code and never reveals private data.

mod moments;
mod names;
mod privacy;
mod rights;
mod service;
mod stale;

use crate::common::{Cmd, End, HUGELIFT, Outcome, fat};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const SHARED: [&str; 2] = ["--backing", "shared"];

/// A store on a tmpfs that only this test uses; it is removed at the end.
struct Shelf {
    /// Holds the store and nothing else.
    dir: TempDir,
    /// The store.
    path: PathBuf,
}

impl Shelf {
    fn new() -> Shelf {
        let dir = TempDir::new_in("/dev/shm").expect("a directory in /dev/shm");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        let path = dir.path().join("store");
        Shelf { dir, path }
    }

    /// Makes a command that uses this store.
    fn cmd<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Cmd {
        Cmd::new(args).env("HUGELIFT_STORE", &self.path)
    }

    /// Runs `hugelift store` and returns its exit status and its output.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(HUGELIFT);
        command.arg("store").args(args).env("HUGELIFT_STORE", &self.path).stdin(Stdio::null());
        let out = command.output().expect("hugelift starts");
        (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    /// Returns the entries that `hugelift store list --json` shows.
    fn entries(&self) -> Vec<Value> {
        let (status, text) = self.run(&["list", "--json"]);
        assert_eq!(status, Some(0), "{text}");
        let listed: Value = serde_json::from_str(&text).expect("JSON");
        listed["entries"].as_array().expect("entries").clone()
    }

    /// Returns the only record in the store.
    fn record(&self) -> Value {
        let files = fs::read_dir(&self.path).expect("the store").map(|e| e.unwrap().path());
        let records: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
        let [record] = &records[..] else { panic!("{records:?}") };
        serde_json::from_slice(&fs::read(record).expect("the record")).expect("JSON")
    }
}

/// Checks that the program `sums`, which compares its objects in memory with their files, found no
/// difference, and that hugelift printed nothing.
#[track_caller]
fn assert_same(outcome: &Outcome, what: &str) {
    let sound = outcome.end == End::Code(0) && !outcome.stdout.contains("DIFFERS");
    assert!(sound && outcome.stdout.contains(" text "), "{what}: {outcome:?}");
    assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{what}");
}

/// Makes a copy of the program `sums` that the test may change. It has 6 MB of code at a fixed address.
fn program(dir: &Path, name: impl AsRef<Path>) -> PathBuf {
    let path = dir.join(name);
    crate::common::cache::copy(fat("sums").flags(&["-no-pie"]).build(), &path);
    path
}
