// SPDX-License-Identifier: Apache-2.0
//! Tests that the program runs although its start competes with others, is killed, or has no place for
//! a store.

use super::*;
use crate::{need, need_root, skip};

#[test]
fn twenty_first_starts_at_once() {
    let shelf = shelf!();
    let program = victim("sums");
    let cmd = shelf.cmd([&program]);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let starts: Vec<_> =
            (0..20).map(|_| scope.spawn(|| runs_its_own(&cmd, &SHARED, "one of twenty"))).collect();
        starts.into_iter().map(|start| start.join().expect("a start")).collect()
    });
    // A start that would have to wait too long goes on without the store, and says so.
    let busy = |o: &&Outcome| o.own_lines().iter().any(|l| l.contains("another start"));
    let quiet = |o: &&Outcome| o.own_lines().is_empty();
    let (waited, quiet) = (outcomes.iter().filter(busy).count(), outcomes.iter().filter(quiet).count());
    assert!(waited + quiet == 20 && quiet > 0, "{outcomes:?}");
    let entry = shelf.entry();
    assert_eq!(shelf.names().len(), 2, "an entry and its record: {:?}", shelf.names());
    assert_eq!(shelf.run(&["verify"]), (Some(0), format!("good: {}\n", program.display())));
    assert_eq!(fs::metadata(entry).unwrap().nlink(), 1);
}

#[test]
fn killed_while_it_publishes() {
    let program = fat("sums").size(3 << 20).flags(&["-no-pie"]).build();
    let operations = operations(&shelf!().cmd([&program]));
    let (mut before, mut between, mut after) = (0, 0, 0);
    for n in 0..operations {
        let shelf = shelf!();
        let cmd = shelf.cmd([&program]);
        let what = format!("killed before operation {n} of {operations}");
        let dying = cmd.clone().launcher(WITH_FAULT_POINTS).env("HUGELIFT_TEST_DIE", format!("{n}:helper"));
        runs_its_own(&dying, &SHARED, &what);
        // An incomplete copy has no name; a complete copy may lack its record.
        match shelf.names().len() {
            0 => before += 1,
            1 => between += 1,
            2 => after += 1,
            _ => panic!("{what}: {:?}", shelf.names()),
        }
        let next = runs_its_own(&cmd, &SHARED, &what);
        assert_eq!(next.own_lines(), Vec::<&str>::new(), "{what}: the next start");
        assert_eq!(shelf.names().len(), 2, "{what}: {:?}", shelf.names());
        assert_eq!(shelf.run(&["verify"]).0, Some(0), "{what}");
    }
    assert!(before > 3 && between > 0 && after > 3, "{before} {between} {after}: the fault does not fire");
}

/// A tmpfs that only this test uses, unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Result<Mount, String> {
        let dir = tempfile::TempDir::new().map_err(|e| e.to_string())?;
        let out =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir.path()).output();
        let out = out.map_err(|e| format!("mount: {e}"))?;
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        if out.status.success() { Ok(Mount(dir)) } else { Err(told) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn unsuitable_places_are_named() {
    need_root!();
    need!("mount", "umount");
    let program = victim("sums");
    let told = |path: &Path, words: &str| {
        let cmd = Cmd::new([&program]).env("HUGELIFT_STORE", path);
        let outcome = runs_its_own(&cmd, &SHARED, words);
        let lines = outcome.own_lines();
        assert!(lines.len() == 1 && lines[0].contains(words), "{words}: {lines:?}");
        let strict = cmd.lifted(&["--backing", "shared", "--strict"]);
        assert_eq!((strict.end, strict.stdout.as_str()), (End::Code(125), ""), "{words}");
    };
    for (options, words) in [
        ("size=4m,mode=0755", "no room for"),
        ("size=9m,mode=0755", "no room for"),
        ("size=64m,mode=0755,noexec", "noexec"),
    ] {
        let mount = match Mount::new(options) {
            Ok(mount) => mount,
            Err(why) => skip!("cannot mount a tmpfs: {why}"),
        };
        told(&mount.0.path().join("store"), words);
        // Half of the tmpfs may be used by the store, but another file takes some of that half.
        fs::write(mount.0.path().join("hog"), vec![1; 3 << 20]).unwrap();
        told(&mount.0.path().join("store"), words);
    }
    // Large enough for the budget, but full.
    let mount = Mount::new("size=40m,mode=0755").unwrap();
    fs::write(mount.0.path().join("hog"), vec![1; 38 << 20]).unwrap();
    told(&mount.0.path().join("store"), "no room for");
    let disk = tempfile::TempDir::new().unwrap();
    if !Path::new("/tmp").exists() || fs::read_to_string("/proc/self/mounts").unwrap().contains("tmpfs /tmp ")
    {
        skip!("/tmp is a tmpfs");
    }
    told(&disk.path().join("store"), "not on tmpfs");
}
