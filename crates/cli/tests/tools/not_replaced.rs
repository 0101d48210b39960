// SPDX-License-Identifier: Apache-2.0
//! What `hugelift prime --replace` prints about a file that it does not replace: always the reason, and never the advice to
//! do what has just failed.

use super::replace::{Place, skewed, text};
use crate::common::{Cmd, End, HUGELIFT, Victim, fat, mounts};
use crate::{need, need_root};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// The options, and a program that they would replace: one with a text that is not congruent, and one whose code has a
/// whole huge page only if it is separated.
fn both() -> [(&'static [&'static str], Victim); 2] {
    [(&[], skewed()), (&["--separate"], fat("hold").size(1 << 20))]
}

/// Replaces the file as a user does, in a command that follows `before`, and checks what is said.
fn is_refused(file: &Path, before: &[&str], options: &[&str], why: &str) {
    let words = [&[HUGELIFT, "prime", "--replace"][..], options, &[file.to_str().unwrap()]].concat();
    let out = Cmd::new(words).under(before).bare();
    assert_eq!(out.end, End::Code(1), "{out:?}");
    let line = out.stdout.lines().find(|line| line.contains("not replaced: "));
    assert!(line.is_some_and(|line| line.contains(why)), "{why}: {out:?}");
    assert!(!out.stdout.contains("prime --replace"), "it advises what has failed: {out:?}");
}

#[test]
fn issue_29_a4_each_reason_of_the_file_is_printed() {
    for (options, victim) in both() {
        let place = Place::new(&victim);
        let refused = |more: &[&str], why: &str| is_refused(&place.file, &[], &[options, more].concat(), why);
        let mode = |mode| fs::set_permissions(&place.file, Permissions::from_mode(mode)).expect("chmod");
        mode(0o4755);
        refused(&[], "is set-uid or set-gid");
        mode(0o755);
        let second = place.dir.path().join("second");
        fs::hard_link(&place.file, &second).expect("link");
        refused(&[], "has 2 names (hard links)");
        fs::remove_file(second).expect("unlink");
        refused(&["--try", "case {} in */.program*) exit 3;; esac"], "exit status: 3 instead of");
        let writer = File::options().append(true).open(&place.file).expect("open");
        refused(&[], "being written");
        drop(writer);
        // CAP_NET_BIND_SERVICE, permitted: struct vfs_cap_data, version 2.
        let capabilities = [0x0200_0000_u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
        if xattr::set(&place.file, "security.capability", &capabilities).is_ok() {
            refused(&[], "has file capabilities");
            xattr::remove(&place.file, "security.capability").expect("remove");
        }
        if xattr::set(&place.file, "security.ima", b"\x01hash").is_ok() {
            refused(&[], "signed or measured (IMA)");
            xattr::remove(&place.file, "security.ima").expect("remove");
        }
        let chattr = |flag: &str| Command::new("chattr").arg(flag).arg(&place.file).status();
        if chattr("+i").is_ok_and(|status| status.success()) {
            let first = format!("cannot be renamed (chattr +i); first: chattr -i {}", place.file.display());
            refused(&[], &first);
            assert!(chattr("-i").expect("chattr").success());
        }
        fs::write(place.kept(), "of another user").expect("write");
        if chown(place.kept(), Some(1234), None).is_ok() {
            refused(&[], "is in the way");
        }
        fs::remove_file(place.kept()).expect("unlink");
        let out = Command::new(HUGELIFT).args(["prime", "--replace"]).args(options).arg(&place.file).output();
        let said = text(&out.expect("hugelift").stdout);
        assert!(said.contains("replaced by a re-laid copy"), "without a reason it is replaced: {said}");
    }
}

#[test]
fn issue_29_a4_a_file_system_that_takes_no_copy_is_named() {
    need_root!();
    need!("mount");
    for (options, victim) in both() {
        let bytes = fs::metadata(victim.build()).expect("stat").len();
        mounts::with_own_mounts(move || {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let at = dir.path().to_str().expect("a name");
            let size = format!("size={}", bytes + (1 << 20));
            mounts::mount(&["-t", "tmpfs", "-o", &size, "none", at]);
            let place = Place::new_in(dir.path(), &victim);
            is_refused(&place.file, &[], options, "No space left on device");
            mounts::mount(&["-o", "remount,ro", at]);
            is_refused(&place.file, &[], options, "Read-only file system");
            mounts::mount(&["-o", "remount,rw", at]);
        });
    }
}

#[test]
fn issue_29_a4_a_folder_that_the_user_may_not_write_to_is_named() {
    need_root!();
    need!("setpriv");
    let there = tempfile::tempdir_in("/tmp").expect("a directory");
    fs::set_permissions(there.path(), Permissions::from_mode(0o755)).expect("chmod");
    for (options, victim) in both() {
        let place = Place::new_in(there.path(), &victim);
        fs::set_permissions(place.dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        let hugelift = place.dir.path().join("hugelift");
        let cp = Command::new("cp").arg(HUGELIFT).arg(&hugelift).status().expect("cp");
        assert!(cp.success());
        let out = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&hugelift)
            .args(["prime", "--replace"])
            .args(options)
            .arg(&place.file)
            .output()
            .expect("setpriv");
        let said = text(&out.stdout);
        let why =
            format!("not replaced: cannot make a file in {}: Permission denied", place.dir.path().display());
        assert!(out.status.code() == Some(1) && said.contains(&why), "{out:?}");
        assert!(!said.contains("prime --replace"), "it advises what has failed: {said}");
    }
}

/// A file of which nothing can be separated is left as it is, and the reason is printed.
#[test]
fn issue_29_a4_what_is_not_separated_is_said() {
    let place = Place::new(&fat("hold").size(64 << 10));
    let run = |more: &[&str]| {
        let mut command = Command::new(HUGELIFT);
        command.args(["prime", "--replace", "--separate"]).arg(&place.file).args(more);
        text(&command.output().expect("hugelift").stdout)
    };
    let said = run(&[]);
    assert!(said.contains("not separated: nothing to gain: it has "), "{said}");
    // Among others it is only counted.
    let said = run(&["/bin/true"]);
    assert_eq!(said, "2 files without a whole huge page\n");
    // What is no gain for one is an obstacle for the other.
    let fixed = Place::new(&fat("hold").size(1 << 20).flags(&["-no-pie", "-Wl,-z,noseparate-code"]));
    let said = run(&[fixed.file.to_str().unwrap()]);
    let line = format!("{}: ", fixed.file.display());
    assert!(
        said.contains(&line) && said.contains("not separated: it is linked for fixed addresses"),
        "{said}"
    );
    assert!(!said.contains("prime --replace"), "it advises what has failed: {said}");
}

/// A file that is not replaced would not be in a dry run either.
#[test]
fn issue_29_a4_a_dry_run_knows_what_is_not_replaced() {
    let place = Place::new(&fat("hold").size(1 << 20));
    let plan = || {
        let mut command = Command::new(HUGELIFT);
        command.args(["prime", "--replace", "--separate", "--dry-run"]).arg(&place.file);
        text(&command.output().expect("hugelift").stdout)
    };
    assert!(plan().contains("1 of 1 files"), "{}", plan());
    fs::set_permissions(&place.file, Permissions::from_mode(0o4755)).expect("chmod");
    let said = plan();
    let line = format!("not separated: {} is set-uid or set-gid", place.file.display());
    assert!(said.contains(&line) && said.contains("0 of 1 files"), "{said}");
}

/// The message of a file that cannot be read names it once.
#[test]
fn issue_29_c13_a_path_is_named_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (fifo, data) = (dir.path().join("fifo"), dir.path().join("data.bin"));
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    fs::write(&data, "data").expect("write");
    let missing = dir.path().join("missing");
    for (file, says) in [
        (&fifo, "is not a regular file"),
        (&data, "not an ELF file (starts with data)"),
        (&missing, "No such file or directory"),
    ] {
        for options in [
            &[][..],
            &["--check"],
            &["--with-libs"],
            &["--replace"],
            &["--replace", "--separate", "--dry-run"],
        ] {
            let out = Command::new(HUGELIFT).arg("prime").args(options).arg(file).output().expect("hugelift");
            let said = text(&out.stdout);
            let line = said.lines().next().unwrap_or_default();
            assert_eq!(line.matches(file.to_str().unwrap()).count(), 1, "{options:?}: {said}");
            // A data file is primed, but never replaced.
            let is_primed = file == &data && !options.contains(&"--replace");
            assert!(line.contains(if is_primed { ": no whole huge page" } else { says }), "{said}");
        }
    }
}
