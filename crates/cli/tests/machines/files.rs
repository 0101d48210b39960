// SPDX-License-Identifier: Apache-2.0
//! Suite: programs on real file systems, one with large folios and one without.
//! `HUGELIFT_DISKS` lists directories as `xfs:/mnt/xfs ext4:/mnt/ext4`.

use crate::grow::grow_in;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks};
use crate::start::compare;
use std::fs::{self, File};
use std::path::PathBuf;

fn disk(kind: &str) -> Option<PathBuf> {
    let disks = std::env::var("HUGELIFT_DISKS").ok()?;
    disks.split(' ').find_map(|d| d.strip_prefix(kind)?.strip_prefix(':').map(PathBuf::from))
}

/// `cold`: with its pages not yet in memory when it starts.
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
