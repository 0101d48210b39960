// SPDX-License-Identifier: Apache-2.0
//! Tests that the store and its notes accept file names with any bytes.

use super::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const NAME: &[u8] = b"pro\xffgram \xc3";

#[test]
fn paths_that_are_not_utf_8_are_stored() {
    let shelf = Shelf::new();
    let dir = shelf.dir.path().join(OsStr::from_bytes(b"\xfe"));
    fs::create_dir(&dir).expect("a directory");
    let path = program(&dir, OsStr::from_bytes(NAME));
    // The store's own path is not UTF-8 either.
    let store = dir.join("store");
    let cmd = Cmd::new([&path]).env("HUGELIFT_STORE", &store);
    let list = || {
        let mut command = Command::new(HUGELIFT);
        command.args(["store", "list", "--json"]).env("HUGELIFT_STORE", &store);
        let out = command.output().expect("hugelift starts");
        let listed: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        listed["entries"].as_array().expect("entries").clone()
    };
    assert_same(&cmd.lifted(&SHARED), "first start");
    let first = list();
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0]["state"], "good");
    assert_same(&cmd.lifted(&SHARED), "second start");
    assert_eq!(list()[0]["made"], first[0]["made"]);
    assert_eq!(list()[0]["files"], first[0]["files"]);
    let mut drop = Command::new(HUGELIFT);
    let drop = drop.args(["store", "drop"]).arg("pro*gram*").env("HUGELIFT_STORE", &store);
    let out = drop.output().expect("hugelift starts");
    assert!(out.status.success() && list().is_empty(), "{out:?}");
}

/// JSON reports contain the bytes of such a path, text reports the escaped path.
#[test]
fn reports_show_paths_that_are_not_utf_8() {
    let shelf = Shelf::new();
    let path = program(shelf.dir.path(), OsStr::from_bytes(NAME));
    let report = shelf.dir.path().join("report");
    let outcome = Cmd::new([&path]).lifted(&["--report", report.to_str().expect("UTF-8")]);
    assert_same(&outcome, "--report");
    let text = fs::read(&report).expect("a report");
    let lifted: Value = serde_json::from_slice(&text).expect("JSON");
    let bytes: Vec<Value> = path.as_os_str().as_bytes().iter().map(|byte| (*byte).into()).collect();
    assert_eq!(lifted["objects"][0]["path"]["bytes"], Value::Array(bytes.clone()), "{lifted}");
    for words in [&["inspect", "--json"][..], &["prime", "--json"], &["run", "--dry-run"]] {
        let out = Command::new(HUGELIFT).args(words).arg(&path).output().expect("hugelift starts");
        assert!(out.status.code().is_some_and(|c| c <= 1), "{words:?}: {out:?}");
        let text = String::from_utf8_lossy(&out.stdout);
        let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let exact = serde_json::to_string(&bytes).expect("JSON");
        assert!(text.contains("pro\\xffgram") || digits.contains(&exact), "{words:?}: {out:?}");
    }
}
