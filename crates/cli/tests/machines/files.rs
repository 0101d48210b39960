// SPDX-License-Identifier: Apache-2.0
//! Suite: programs on real file systems, one with large folios and one without.
//! `HUGELIFT_DISKS` lists directories as `xfs:/mnt/xfs ext4:/mnt/ext4`; `loop` is an image of XFS
//! on ext4.

use crate::grow::{grow_at, grow_in};
use crate::huge::thp;
use crate::look::{From, Look};
use crate::place::{alone, hugelift, lacks, tmpfs};
use crate::start::{bare, compare};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub fn disk(kind: &str) -> Option<PathBuf> {
    let disks = std::env::var("HUGELIFT_DISKS").ok()?;
    disks.split(' ').find_map(|d| d.strip_prefix(kind)?.strip_prefix(':').map(PathBuf::from))
}

/// Lifts programs from a file system of this kind. `cold`: no page is in memory when the program
/// starts.
fn lifts_from(kind: &str, cold: bool) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mounted = format!(" {} {kind} ", dir.display());
    assert!(mounts.contains(&mounted), "no{mounted}in {mounts}");
    for victim in ["vm_big.static", "vm_big.pie"] {
        let big = grow_in(&dir, victim, page);
        if cold {
            File::open(&big.path).unwrap().sync_all().unwrap();
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        }
        let run = compare(&["--backing", "thp"], &big.path);
        run.look().assert_lifted(page, From::Thp);
        run.assert_silent();
    }
}

#[test]
fn xfs_cold() {
    lifts_from("xfs", true);
}

#[test]
fn xfs_just_written() {
    lifts_from("xfs", false);
}

#[test]
fn ext4_cold() {
    lifts_from("ext4", true);
}

#[test]
fn ext4_just_written() {
    lifts_from("ext4", false);
}

/// `MADV_COLLAPSE` of code on tmpfs returns EINVAL on Linux 6.1 although it collapses the code; on
/// newer kernels it succeeds. hugelift reports what smaps shows, whatever the call returned, and
/// the program is lifted like any other.
#[test]
fn tmpfs_collapsed() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let Some(dir) = tmpfs() else { lacks!("no tmpfs from which programs may run") };
    let big = grow_at(dir, "vm_big.static", [2 * page, 64 << 10], page);
    let mut held = bare(&big.path, &["collapse"]);
    let mut child = held.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("\nend\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let inspected = Command::new(hugelift()).args(["inspect", "--json", &child.id().to_string()]).output();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));

    let look = &Look::all(&text)[0];
    let huge = look.huge(look.text, From::Any);
    let said = text.lines().find_map(|l| l.strip_prefix("collapse: ")).unwrap();
    println!("madvise(MADV_COLLAPSE): {said}; {huge} of {} bytes are huge", 2 * page);
    assert!(said != "done" || huge == 2 * page, "{look:#x?}");
    let report: serde_json::Value = serde_json::from_slice(&inspected.unwrap().stdout).unwrap();
    assert_eq!(report["totals"]["text"]["huge_bytes"], huge, "{report}");

    let lifted = compare(&["--backing", "thp"], &big.path);
    assert_eq!(lifted.look().huge(lifted.look().text, From::Any), 2 * page);
    lifted.assert_silent();
}
