// SPDX-License-Identifier: Apache-2.0
//! Tests that `hugelift doctor` finds planted faults and nothing else, and that every command that it
//! prints removes its finding. Faults that can be undone are planted on this machine, others on a recorded
//! machine.

mod command;
mod here;
mod planted;
mod processes;

use crate::common::guard::{CGroup, Exclusive, Settings};
use crate::common::recorded::Recorded;
use crate::common::{Cmd, End, HUGELIFT, Held, Pool, fat, find, fits, open_dir};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

fn doctor<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(HUGELIFT).arg("doctor").args(args).output().expect("hugelift runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn findings(out: &Output) -> Vec<Value> {
    assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    fits("doctor", &report);
    let all = report["findings"].as_array().expect("findings").clone();
    for finding in &all {
        let word = |name: &str| finding[name].as_str().is_some_and(|w| !w.is_empty());
        assert!(word("key") && word("title") && word("why") && word("severity"), "{finding}");
        assert!(word("command") || word("advice"), "the finding has neither a command nor advice: {finding}");
        assert!(
            !finding["read"].as_array().expect("what was read").is_empty() || finding["key"] == "thp-absent"
        );
    }
    all
}

fn on(machine: &Recorded) -> Vec<Value> {
    findings(&doctor([OsStr::new("--json"), OsStr::new("--root"), machine.root().as_os_str()]))
}

fn here(args: &[&str]) -> Vec<Value> {
    findings(&doctor([&["--json"], args].concat()))
}

fn keys(all: &[Value]) -> Vec<&str> {
    all.iter().map(|f| f["key"].as_str().expect("a key")).collect()
}

fn finding<'a>(all: &'a [Value], key: &str) -> &'a Value {
    all.iter().find(|f| f["key"] == key).unwrap_or_else(|| panic!("no {key} in {:?}", keys(all)))
}

fn command(finding: &Value) -> &str {
    finding["command"].as_str().unwrap_or_else(|| panic!("no command in {finding}"))
}

/// Runs a command as the user would, with this hugelift on PATH.
fn run(command: &str) {
    let folder = Path::new(HUGELIFT).parent().expect("its folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let out = Command::new("sh").args(["-c", command]).env("PATH", path).output().expect("sh runs");
    assert!(out.status.success(), "{command}: {out:?}");
}
