// SPDX-License-Identifier: Apache-2.0
//! Suite: code from the store, of which all processes share one copy.

use crate::files::disk;
use crate::grow::{Big, grow_in};
use crate::held::Held;
use crate::huge::thp;
use crate::look::From;
use crate::numa::has_nodes;
use crate::place::{alone, hugelift, lacks, tmpfs};
use crate::start::{bare, lifted, run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const OPTIONS: [&str; 2] = ["--backing", "shared"];

/// Makes a directory for a store, and a program for it.
fn stocked(kind: &str) -> Result<(tempfile::TempDir, Big, u64), &'static str> {
    let page = thp().ok_or("no transparent huge pages")?;
    let dir = tempfile::TempDir::new_in(tmpfs().ok_or("no tmpfs from which programs may run")?).unwrap();
    Ok((dir, grow_in(&std::env::temp_dir(), kind, page), page))
}

/// Two processes share one copy, wherever the program is loaded.
fn one_copy(kind: &str) {
    let _alone = alone();
    let (dir, big, page) = match stocked(kind) {
        Ok(stocked) => stocked,
        Err(why) => lacks!("{why}"),
    };
    let store = dir.path().join("store");
    let env = [("HUGELIFT_STORE", store.as_path())];
    let two = [(); 2].map(|()| Held::lifted(&OPTIONS, &big.path, &["hold"], &env));
    let (mut shares, mut whole) = (0, 0);
    for held in &two {
        let look = held.look();
        look.assert_lifted(page, From::Any);
        look.assert_intact();
        whole = look.huge_in_all(From::Any);
        let usages = held.smaps();
        let of_store = usages.iter().filter(|u| u.mapping.path.starts_with(&store));
        shares += of_store.map(|u| u.pss).sum::<u64>();
    }
    println!("shared: {kind}: two processes have {} kB of {} kB", shares >> 10, whole >> 10);
    assert!(whole >= 5 * page && shares.abs_diff(whole) <= whole / 20, "{shares} bytes for {whole}");
    two.into_iter().for_each(Held::finish);
    assert!(verified(&store));
    let run = run(lifted(&OPTIONS, &big.path, &[]).env("HUGELIFT_STORE", &store));
    run.assert_same(&crate::start::run(&mut bare::<&str>(&big.path, &[])));
    run.assert_silent();
}

/// Whatever file system the program is on, the second start takes all of it from the store.
fn from(kind: &str) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let Some(base) = tmpfs() else { lacks!("no tmpfs from which programs may run") };
    let base = tempfile::TempDir::new_in(base).unwrap();
    let store = base.path().join("store");
    let big = grow_in(&dir, "vm_big.pie", page);
    let bare = run(&mut bare::<&str>(&big.path, &[]));
    let copies_after_a_start = || {
        let start = run(lifted(&OPTIONS, &big.path, &[]).env("HUGELIFT_STORE", &store));
        start.assert_silent();
        start.assert_same(&bare);
        start.look().assert_lifted(page, From::Any);
        copies_in(&store)
    };
    let made = copies_after_a_start();
    assert!(!made.is_empty());
    assert_eq!(copies_after_a_start(), made, "it has made another copy");
    assert!(verified(&store));
}

#[test]
fn from_xfs() {
    from("xfs");
}

#[test]
fn from_ext4() {
    from("ext4");
}

#[test]
fn from_btrfs() {
    from("btrfs");
}

#[test]
fn from_nfs() {
    from("nfs");
}

#[test]
fn from_a_loop_mounted_image() {
    from("loop");
}

/// Returns names, inodes and sizes of the files in the store that are large enough to hold code.
fn copies_in(store: &Path) -> Vec<(PathBuf, u64, u64)> {
    let (mut found, mut folders) = (Vec::new(), vec![store.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                folders.push(entry.path());
            } else if about.len() >= 1 << 20 {
                found.push((entry.path(), about.ino(), about.len()));
            }
        }
    }
    found.sort();
    found
}

fn verified(store: &Path) -> bool {
    let done = Command::new(hugelift()).args(["store", "verify"]).env("HUGELIFT_STORE", store).output();
    done.unwrap().status.success()
}

#[test]
fn one_copy_of_a_static_program() {
    one_copy("vm_big.static");
}

#[test]
fn one_copy_of_a_dynamic_program() {
    one_copy("vm_big.dynamic");
}

/// (Not of a static one: its far segments may have the vdso between them, and then it cannot be
/// moved.)
#[test]
fn one_copy_of_a_pie() {
    one_copy("vm_big.pie");
}

/// Returns the names of a store's records.
pub fn records(store: &Path) -> Vec<String> {
    let names = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut records: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    records.sort();
    records
}

/// On a machine with one node the option changes nothing.
#[test]
fn issue_33_8_one_node_has_one_copy() {
    let _alone = alone();
    if has_nodes() {
        lacks!("one memory node: there are more");
    }
    let (dir, big, page) = match stocked("vm_big.static") {
        Ok(stocked) => stocked,
        Err(why) => lacks!("{why}"),
    };
    let store = dir.path().join("store");
    let starts = [&["--backing", "shared", "--numa", "each"][..], &["--backing", "shared"]];
    let all = starts.map(|options| {
        let start = run(lifted(options, &big.path, &[]).env("HUGELIFT_STORE", &store));
        start.look().assert_lifted(page, From::Any);
        records(&store)
    });
    assert!(all[0] == all[1] && all[0].len() == 1 && !all[0][0].contains('@'), "{all:?}");
}
