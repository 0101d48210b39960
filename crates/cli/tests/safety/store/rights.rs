// SPDX-License-Identifier: Apache-2.0
//! Tests that a process gets from root's store only what it has mapped, whatever its owner does to names and mounts.

use super::*;
use crate::common::mounts::{image, kernel_has, with_own_mounts};
use crate::common::{Held, open_dir, plain};
use crate::{need, need_root, skip};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

/// After this time a file counts as settled: a later change gives it another time.
pub(super) const SETTLED: Duration = Duration::from_secs(5);
/// `setpriv` with which a command runs as the user nobody.
pub(super) const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Makes a copy of a program of which a user knows all but the code from the third MB on.
pub(super) fn known_part(program: &Path, to: &Path) {
    let bytes = fs::read(program).expect("the program");
    fs::write(to, &bytes).expect("a copy");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    let (table, count) = (word(32), u16::from_le_bytes([bytes[56], bytes[57]]));
    let heads = (0..usize::from(count)).map(|n| table + n * 56);
    // PT_LOAD with PF_X
    let code = heads.into_iter().find(|at| bytes[*at] == 1 && bytes[at + 4] & 1 != 0).expect("code");
    let (offset, size) = (word(code + 8), word(code + 32));
    let file = fs::File::options().write(true).open(to).expect("open");
    let hidden = vec![0; size - (2 << 20) - 4096];
    file.write_all_at(&hidden, (offset + (2 << 20)) as u64).expect("write");
}

/// The user nobody arranges that the path of what it has mapped leads to root's private file, which has the same inode
/// number: root's lift of its process does not give it the file's bytes.
#[test]
fn a_path_that_leads_to_a_private_file_is_no_evidence() {
    need_root!();
    need!("mkfs.btrfs", "setpriv");
    if !kernel_has("btrfs") {
        skip!("the kernel has no btrfs");
    }
    with_own_mounts(|| {
        let thief = plain("thief").build();
        let dir = open_dir(&[&thief]);
        let private = image(dir.path(), "btrfs").join("private");
        fs::create_dir(&private).expect("a directory");
        let secret = program(&private, "program");
        fs::set_permissions(&private, Permissions::from_mode(0o700)).expect("chmod");
        fs::set_permissions(&secret, Permissions::from_mode(0o700)).expect("chmod");
        std::thread::sleep(SETTLED);
        let shelf = Shelf::new();
        for start in ["first", "second"] {
            assert_same(&shelf.cmd([&secret]).lifted(&SHARED), start);
        }
        let entry = shelf.entries();
        assert_eq!((&entry[0]["state"], &shelf.record()["evidence"]), (&"good".into(), &"times".into()));

        let fake = dir.path().join("fake");
        known_part(&secret, &fake);
        let over = dir.path().join("over");
        fs::create_dir(&over).expect("a directory");
        fs::set_permissions(&over, Permissions::from_mode(0o777)).expect("chmod");
        let inode = fs::metadata(&secret).expect("stat").ino().to_string();
        let thief = dir.path().join(thief.file_name().expect("a name"));
        let words =
            [thief.as_os_str(), fake.as_os_str(), inode.as_ref(), over.as_os_str(), private.as_os_str()];
        let words: Vec<_> = words.into_iter().chain(["program".as_ref()]).collect();
        let held = Held::start(&Cmd::new(words).under(AS_NOBODY), None, &thief);
        let attach =
            shelf.cmd([HUGELIFT, "attach", "--whole", "--backing", "shared", &held.pid().to_string()]).bare();
        let told = held.finish();
        assert_eq!(told.stdout, "ready\ngot 0\n", "{attach:?} {told:?}");
        // And the entry is as it was. What nobody has mapped has one of its own.
        let of_secret = |e: &Value| e["object"] == secret.to_str().expect("UTF-8");
        let now: Vec<Value> = shelf.entries().into_iter().filter(of_secret).collect();
        assert_eq!(now, entry);
    });
}
