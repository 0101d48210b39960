// SPDX-License-Identifier: Apache-2.0
//! What becomes of a replaced file, and of its original, when something else than hugelift has to do with them.

use super::replace::{Place, can, prime, skewed, stamp, text};
use crate::common::{HUGELIFT, fat};
use crate::{need, need_root, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

fn clean(target: &Path) -> String {
    let out = prime(&["--clean"], target);
    assert!(out.status.success(), "{out:?}");
    text(&out.stderr)
}

/// The command that a message names is one that helps.
#[test]
fn issue_29_a3_a_copy_that_was_stripped_does_not_cost_the_original() {
    need!("strip");
    for (options, victim) in [(&[][..], skewed()), (&["--separate"][..], fat("hold").size(1 << 20))]
        .map(|(o, v)| (o, v.flags(&["-g"])))
    {
        let victim = victim.flags(&["-Wl,--build-id"]);
        let place = Place::new(&victim);
        let old = fs::read(&place.file).expect("read");
        assert!(place.replace(options).1["replaced"].is_object());
        assert!(Command::new("strip").arg("-g").arg(&place.file).status().expect("strip").success());
        let out = prime(&["--restore"], &place.file);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{said}");
        assert!(said.contains("it has the same build-id") && !said.contains("rm "), "{said}");
        assert!(clean(&place.file).contains("kept, as its file is here"));
        let (_, command) = said.trim_end().split_once("to have the original back: ").expect(&said);
        assert!(Command::new("sh").args(["-c", command]).status().expect("sh").success(), "{command}");
        assert!(fs::read(&place.file).expect("read") == old);
        assert_eq!(place.names(), ["program"]);
    }
}

/// A package manager removes the file, but not the original, of which it does not know.
#[test]
fn issue_29_a3_originals_whose_file_is_gone_or_upgraded_are_cleaned() {
    let victim = skewed().flags(&["-Wl,--build-id"]);
    let place = Place::new(&victim);
    assert!(place.replace(&[]).1["replaced"].is_object());
    let folder = place.dir.path().to_owned();
    assert!(clean(&folder).contains(".program.hugelift-orig: kept, as its file is here"));
    fs::remove_file(&place.file).expect("unlink");
    let out = prime(&["--restore"], &place.file);
    let said = text(&out.stderr);
    assert!(
        out.status.code() == Some(125) && said.contains("is gone, as after the removal of its package"),
        "{said}"
    );
    let command = format!("hugelift prime --clean {}", place.file.display());
    assert!(said.contains(&command), "{said}");
    assert!(clean(&folder).contains(".program.hugelift-orig: removed, as its file is gone"));
    assert_eq!(place.names(), [""; 0]);
    assert_eq!(clean(&folder), "");
    // An upgrade has another build-id.
    crate::common::cache::copy(victim.build(), &place.file);
    assert!(place.replace(&[]).1["replaced"].is_object());
    let upgrade = skewed().flags(&["-Wl,--build-id", "-DUPGRADE", "-O2"]).build();
    crate::common::cache::copy(upgrade, place.dir.path().join("new"));
    fs::rename(place.dir.path().join("new"), &place.file).expect("rename");
    let out = prime(&["--restore"], &place.file);
    let said = text(&out.stderr);
    assert!(said.contains("it has another build-id") && said.contains(&command), "{said}");
    assert!(clean(&place.file).contains("removed, as its file has another build-id"));
    assert_eq!(place.names(), ["program"]);
}

/// The sandbox, which is nobody, reads the copy as it reads the file.
#[test]
fn issue_29_a3_a_file_of_nobody_that_others_may_not_read_is_replaced() {
    need_root!();
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    for (uid, gid, mode) in [(65534, 60, 0o750), (0, 65534, 0o750), (0, 60, 0o750)] {
        let place = Place::new(&fat("hold").size(1 << 20));
        chown(&place.file, Some(uid), Some(gid)).expect("chown");
        fs::set_permissions(&place.file, Permissions::from_mode(mode)).expect("chmod");
        let before = stamp(&place.file);
        let (out, report) = place.replace(&["--separate"]);
        assert!(report["replaced"].is_object(), "{uid}:{gid} {out:?} {report:#}");
        let after = stamp(&place.file);
        assert_eq!((after.1, after.2, after.3), (before.1, before.2, before.3));
        // root:games 0750 cannot be read by nobody, and that is said.
        let can_read = uid == 65534 || gid == 65534;
        assert_eq!(!text(&out.stderr).contains("was not compared"), can_read, "{out:?}");
        // The copy of align is the caller's, whom nobody cannot read.
        let (copy, kept) = (place.dir.path().join("copy"), place.kept());
        let words = ["align", "--separate", "-o", copy.to_str().unwrap(), kept.to_str().unwrap()];
        let out = Command::new(HUGELIFT).args(words).output().expect("hugelift");
        assert!(out.status.success(), "{out:?}");
        assert!(text(&out.stderr).contains("was not compared: the user nobody"), "{out:?}");
    }
}

#[test]
fn issue_29_a3_flags_of_the_file_are_kept() {
    need!("chattr", "lsattr");
    let place = Place::new(&skewed());
    let flags = |file: &Path| {
        let out = Command::new("lsattr").arg(file).output().expect("lsattr");
        text(&out.stdout).split(' ').next().unwrap_or_default().to_string()
    };
    let set = Command::new("chattr").arg("+dA").arg(&place.file).output().expect("chattr");
    if !set.status.success() {
        skip!("this file system has no flags: {}", text(&set.stderr));
    }
    let before = flags(&place.file);
    assert!(before.contains('d') && before.contains('A'), "{before}");
    assert!(place.replace(&[]).1["replaced"].is_object());
    assert_eq!(flags(&place.file), before);
    assert!(prime(&["--restore"], &place.file).status.success());
    assert_eq!(flags(&place.file), before);
}
