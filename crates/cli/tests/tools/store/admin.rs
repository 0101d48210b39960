// SPDX-License-Identifier: Apache-2.0
//! Tests of the rights to use a store, and of the commands that keep it small.

use super::*;
use crate::{need, need_root};

#[test]
fn a_set_uid_program_does_not_use_the_store() {
    need_root!();
    let shelf = shelf!();
    let dir = tempfile::TempDir::new().unwrap();
    let program = copy(dir.path(), &victim("sums"));
    runs_its_own(&shelf.cmd([&program]), &SHARED, "as built");
    let used = || shelf.entries()[0]["used"].clone();
    let before = used();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let outcome = runs_its_own(&shelf.cmd([&program]), &SHARED, "set-uid");
    assert!(outcome.stderr.contains("set-uid"), "{}", outcome.stderr);
    assert_eq!(used(), before);
}

#[test]
fn making_room() {
    let shelf = shelf!();
    let dir = tempfile::TempDir::new().unwrap();
    let programs: Vec<PathBuf> = (0..3)
        .map(|n| {
            let own = dir.path().join(format!("program{n}"));
            crate::common::cache::copy(fat("sums").size((6 + n) << 20).flags(&["-no-pie"]).build(), &own);
            own
        })
        .collect();
    for program in &programs {
        runs_its_own(&shelf.cmd([program]), &SHARED, "first");
    }
    // The first program becomes the most recently used one.
    runs_its_own(&shelf.cmd([&programs[0]]), &SHARED, "second");
    let listed = |entries: &[Value]| -> Vec<String> {
        entries
            .iter()
            .map(|e| e["object"].as_str().unwrap().rsplit('/').next().unwrap().to_string())
            .collect()
    };
    let entries = shelf.entries();
    assert_eq!(listed(&entries), ["program0", "program2", "program1"]);
    for entry in &entries {
        assert_eq!(entry["huge_bytes"], entry["bytes"]);
        assert_eq!((&entry["state"], entry["users"].as_array().unwrap().len()), (&"good".into(), 0));
    }
    let two: u64 = entries[..2].iter().map(|e| e["bytes"].as_u64().unwrap()).sum();
    let (status, told) = shelf.run(&["gc", "--budget", &two.to_string()]);
    assert!(status == Some(0) && told.ends_with("program1\n") && told.lines().count() == 1, "{told}");
    assert_eq!(listed(&shelf.entries()), ["program0", "program2"]);
    assert_eq!(shelf.run(&["gc"]), (Some(0), "nothing to drop\n".into()));
    let (status, told) = shelf.run(&["list"]);
    assert!(status == Some(0) && told.contains("2 entries") && told.contains("program2"), "{told}");
    assert!(shelf.run(&["drop", "program2"]).1.contains("program2"));
    assert_eq!(listed(&shelf.entries()), ["program0"]);
    // `store drop` does not remove a file that hugelift did not make.
    fs::write(shelf.path.join("theirs"), "").unwrap();
    assert_eq!(shelf.run(&["drop", "--all"]).0, Some(125));
    assert_eq!(shelf.names(), ["theirs"]);
    fs::remove_file(shelf.path.join("theirs")).unwrap();
    assert_eq!(shelf.run(&["drop", "--all"]).0, Some(0));
    assert!(!shelf.path.exists());
    assert_eq!(shelf.run(&["list"]), (Some(0), format!("there is no store at {}\n", shelf.path.display())));
}

/// All users share root's store, except for copies of files that they may not read. The test has its own
/// mount namespace, where `/run` is a tmpfs mounted noexec, as in Debian.
#[test]
fn the_machines_store() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let dir = open_dir(&[]);
    let inside = dir.path().join("closed");
    fs::create_dir(&inside).unwrap();
    // Each program has its own code.
    let [open, closed, private] = [("open", 6), ("closed/program", 7), ("private", 8)].map(|(name, size)| {
        let path = dir.path().join(name);
        crate::common::cache::copy(fat("sums").size(size << 20).flags(&["-no-pie"]).build(), &path);
        path
    });
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&inside, Permissions::from_mode(0o700)).unwrap();
    let script = format!(
        "set -e
        mount -t tmpfs -o noexec,mode=0755 tmpfs /run
        run='{launcher} run --backing shared'
        modes() {{ stat -c %a $(find /run/hugelift/store -size +1M) | sort | xargs echo modes; }}
        for program in {private} {closed}; do $run $program > /dev/null; done; modes
        $run {open} > /dev/null; modes
        user='setpriv --reuid=65534 --regid=65534 --clear-groups'
        $user $run -v {open}
        for file in /run/hugelift/store/*; do $user cat $file > /dev/null && echo readable; done
        {launcher} store drop --all
        [ -e /run/hugelift ] || echo gone",
        launcher = dir.path().join("hugelift").display(),
        private = private.display(),
        closed = closed.display(),
        open = open.display(),
    );
    let mut cmd = Command::new("unshare");
    cmd.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &script]).current_dir("/");
    let out = cmd.env_remove("HUGELIFT_STORE").stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(stdout.contains("modes 400 400\nmodes 400 400 444\n"), "{stdout}{stderr}");
    assert!(stdout.contains("wrong 0\n") && stdout.matches("readable\n").count() == 2, "{stdout}{stderr}");
    assert!(stderr.contains("text 6 MB of 6 MB") || stderr.contains("text 4 MB of 4 MB"), "{stdout}{stderr}");
    assert!(stdout.ends_with("\ngone\n"), "{stdout}{stderr}");
}
