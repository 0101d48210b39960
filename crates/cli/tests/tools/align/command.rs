// SPDX-License-Identifier: Apache-2.0
//! Tests of the command itself: what it writes, prints and refuses.

use crate::align::relaid::align;
use crate::common::{Cmd, HUGELIFT, build::must, fat, find, fits, plain};
use crate::{need, need_root, skip};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program as lld lays it out: the address of its text is some pages off.
fn skewed() -> PathBuf {
    fat("sums").flags(&["-no-pie", "-Wl,-z,max-page-size=0x1000", "-Wl,-Ttext=0x1003000"]).build()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the command ended with this status, printed one line with `words`, and left no temporary
/// file in `dir`.
fn refused(out: &Output, status: i32, words: &str, dir: &Path) {
    let said = text(&out.stderr);
    assert_eq!((out.status.code(), said.lines().count()), (Some(status), 1), "{said}");
    assert!(said.starts_with("hugelift: ") && said.contains(words), "{said}");
    assert_eq!(text(&out.stdout), "");
    let left: Vec<_> = std::fs::read_dir(dir).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().contains(".hugelift-")), "{left:?}");
}

#[test]
fn the_copy_has_the_mode_and_replaces_what_was_there() {
    let (dir, input) = (tempfile::tempdir().expect("dir"), skewed());
    let output = dir.path().join("out");
    std::fs::write(&output, "old").expect("write");
    let old = std::fs::File::open(&output).expect("open");
    let out = align(&input, &output, &[]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    let (a, b) = (std::fs::metadata(&input).unwrap(), std::fs::metadata(&output).unwrap());
    assert_eq!(a.mode() & 0o777, b.mode() & 0o777);
    assert_eq!(std::io::read_to_string(old).unwrap(), "old", "a file opened before must keep its content");
    assert!(text(&out.stdout).contains("before 0 B"), "{}", text(&out.stdout));
    // Re-laying the copy, with a link as the output: the bytes are the same.
    let (again, link) = (dir.path().join("again"), dir.path().join("link"));
    std::fs::write(&again, "old").expect("write");
    std::os::unix::fs::symlink("again", &link).expect("symlink");
    assert!(align(&output, &link, &[]).status.success());
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&again).unwrap());
    let out = align(&output, &again, &[]);
    assert!(text(&out.stdout).contains("aligned already"), "{}", text(&out.stdout));
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&again).unwrap());
}

#[test]
fn a_dry_run_writes_nothing_and_json_says_all() {
    let (dir, input) = (tempfile::tempdir().expect("dir"), skewed());
    let output = dir.path().join("out");
    let out = align(&input, &output, &["--dry-run", "--json"]);
    assert!(out.status.success() && !output.exists());
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    fits("align", &said);
    assert_eq!((&said["version"], &said["output"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(said["page_size"], 2 << 20);
    assert!(said["huge_bytes_after"].as_u64() >= said["huge_bytes_before"].as_u64());
    let segments = said["segments"].as_array().expect("segments");
    assert!(segments.iter().any(|s| s["prot"] == "r-x" && s["huge_bytes_after"].as_u64() > Some(2 << 20)));
    // Without an output only a dry run is possible.
    let bare = Command::new(HUGELIFT).arg("align").arg(&input).output().expect("run");
    assert_eq!(bare.status.code(), Some(125));
}

#[test]
fn what_cannot_be_re_laid_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("dir");
    let at = |name: &str| dir.path().join(name);
    let (good, out) = (skewed(), at("out"));
    let bytes = std::fs::read(&good).unwrap();
    let made = |name: &str, bytes: &[u8]| {
        std::fs::write(at(name), bytes).expect("write");
        at(name)
    };
    let changed = |name: &str, at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        made(name, &bytes)
    };
    let payload = [&bytes[..], b"PK\x03\x04"].concat();
    for (input, words) in [
        (made("text", b"#!/bin/sh\n"), "not an ELF file (starts with #!/b)"),
        (made("empty", b""), "not an ELF file"),
        (made("cut", &bytes[..bytes.len() / 2]), "it is cut off"),
        (changed("32", 4, 1), "a 32-bit program"),
        (changed("object", 16, 1), "an object file or a kernel module"),
        (changed("core", 16, 4), "a core dump"),
        (made("payload", &payload), "4 B behind the end"),
        (at("missing"), "cannot read"),
        (dir.path().to_owned(), "is not a regular file"),
        (PathBuf::from("/dev/zero"), "is not a regular file"),
    ] {
        refused(&align(&input, &out, &[]), 125, words, dir.path());
        assert!(!out.exists(), "{}", input.display());
    }
    let small = plain("tiny").flags(&["-nostdlib", "-static"]).build();
    refused(&align(&small, &out, &[]), 1, "nothing to gain", dir.path());
    refused(&align(&good, &good, &[]), 125, "prime --replace", dir.path());
    let link = at("link");
    std::os::unix::fs::symlink(&good, &link).expect("symlink");
    refused(&align(&good, &link, &[]), 125, "is the file itself", dir.path());
    refused(&align(&good, Path::new("/dev/null"), &[]), 125, "is not a regular file", dir.path());
    refused(&align(&good, &at("no/such/dir"), &[]), 125, "cannot make a file in", dir.path());
    let full = align(&good, Path::new("/proc/self/out"), &[]);
    refused(&full, 125, "cannot make a file in", dir.path());
}

#[test]
fn a_full_file_system_is_reported_and_left_clean() {
    need_root!();
    need!("unshare");
    let dir = tempfile::tempdir().expect("dir");
    let script = "mount -t tmpfs -o size=4m none \"$1\" && \"$2\" align \"$3\" -o \"$1/out\"
        echo \"status $?\"; ls -A \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args([dir.path(), Path::new(HUGELIFT), &skewed()]);
    let out = command.output().expect("unshare");
    assert_eq!(text(&out.stdout), "status 125\n", "{out:?}");
    assert!(text(&out.stderr).contains("No space left on device"), "{out:?}");
}

#[test]
fn a_file_without_a_section_table_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let mut bytes = std::fs::read(skewed()).unwrap();
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::write(&input, bytes).expect("write");
    refused(&align(&input, &out, &[]), 125, "no section table", dir.path());
}

#[test]
fn a_copy_is_not_set_uid() {
    let dir = tempfile::tempdir().expect("dir");
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    crate::common::cache::copy(skewed(), &input);
    std::fs::set_permissions(&input, std::fs::Permissions::from_mode(0o4755)).expect("chmod");
    let out = align(&input, &output, &[]);
    assert!(out.status.success() && text(&out.stderr).contains("not set-uid"), "{out:?}");
    assert_eq!(std::fs::metadata(&output).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_copy_without_the_capabilities_of_the_file_is_announced() {
    need_root!();
    let dir = tempfile::tempdir().expect("dir");
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    crate::common::cache::copy(skewed(), &input);
    // Version 2, effective: CAP_NET_BIND_SERVICE.
    let value = [0x0200_0001_u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    if let Err(e) = xattr::set(&input, "security.capability", &value) {
        skip!("this file system cannot have security.capability: {e}");
    }
    let out = align(&input, &output, &[]);
    assert!(out.status.success() && text(&out.stderr).contains("without the file capabilities"), "{out:?}");
    assert_eq!(xattr::get(&output, "security.capability").expect("read"), None);
}

/// The copy keeps symbols, debug information and the build-id: gdb finds lines, and strip(1) works.
#[test]
fn tools_read_the_copy() {
    need!("gdb", "strip");
    let (dir, input) = (tempfile::tempdir().expect("dir"), skewed());
    let output = dir.path().join("out");
    assert!(align(&input, &output, &[]).status.success());
    let gdb = |file: &Path| {
        let commands = ["-nx", "-batch", "-ex", "info line main", "-ex", "disassemble main"];
        must(Command::new(find("gdb").expect("needed above")).args(commands).arg(file))
    };
    let shown = gdb(&input);
    assert!(shown.contains("sums.c"), "{shown}");
    assert_eq!(gdb(&output), shown);
    let ids = |file: &Path| {
        let notes = must(Command::new("readelf").arg("-n").arg(file));
        notes.lines().find(|l| l.contains("Build ID")).map(str::to_string)
    };
    assert_eq!(ids(&input), ids(&output));
    // p_align tells strip(1) to keep the padding.
    must(Command::new("strip").arg(&output));
    let out = align(&output, &dir.path().join("again"), &["--json"]);
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(said["huge_bytes_before"], said["huge_bytes_after"], "{said}");
    let bare = Cmd::new([&output]).bare();
    assert!(bare.stdout.ends_with("wrong 0\n"), "{bare:?}");
}
