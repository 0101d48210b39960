// SPDX-License-Identifier: Apache-2.0
//! The store of shared code: one copy for all, and whatever happens to it, a program runs its
//! own bytes.

mod common;

use common::held::needed;
use common::huge::{Piece, assert_no_wx, assert_unchanged, pieces, smaps};
use common::{Cmd, End, HUGELIFT, Held, Outcome, fat, find, open_dir};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SHARED: [&str; 2] = ["--backing", "shared"];
const PAGE: u64 = 2 << 20;

/// A store of the test's own, gone with it.
struct Shelf {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Shelf {
    /// # Errors
    /// There is no tmpfs to have it on.
    fn new() -> Result<Shelf, String> {
        let dir = tempfile::TempDir::new_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let line = mounts.lines().rfind(|l| l.split(' ').nth(1) == Some("/dev/shm")).unwrap_or_default();
        if !line.contains(" tmpfs ") || line.contains("noexec") {
            return Err(format!("needs a tmpfs that allows code on /dev/shm, not '{line}'"));
        }
        let path = dir.path().join("hugelift/store");
        Ok(Shelf { _dir: dir, path })
    }

    fn cmd<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Cmd {
        Cmd::new(args).env("HUGELIFT_STORE", &self.path)
    }

    /// `hugelift store`, with its exit status.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let out = Command::new(HUGELIFT)
            .arg("store")
            .args(args)
            .env("HUGELIFT_STORE", &self.path)
            .stdin(Stdio::null())
            .output()
            .expect("hugelift starts");
        let told = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8(told).expect("UTF-8"))
    }

    fn entries(&self) -> Vec<Value> {
        let (status, text) = self.run(&["list", "--json"]);
        assert_eq!(status, Some(0), "{text}");
        let listed: Value = serde_json::from_str(&text).expect("JSON");
        listed["entries"].as_array().expect("entries").clone()
    }

    /// The one entry that there is: its path.
    fn entry(&self) -> PathBuf {
        let entries = self.entries();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        self.path.join(entry["entry"].as_str().expect("a name"))
    }

    /// The files in it that are neither entries in use nor the lock.
    fn names(&self) -> Vec<String> {
        let Ok(dir) = fs::read_dir(&self.path) else { return vec![] };
        let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = dir.map(name).filter(|n| n != "lock").collect();
        names.sort();
        names
    }
}

macro_rules! shelf {
    () => {
        match Shelf::new() {
            Ok(shelf) => shelf,
            Err(why) => skip!("{why}"),
        }
    };
}

/// At a fixed address.
fn victim(source: &'static str) -> PathBuf {
    fat(source).flags(&["-no-pie"]).build()
}

/// A copy of its own, which may be changed.
fn copy(dir: &Path, program: &Path) -> PathBuf {
    let own = dir.join("program");
    fs::copy(program, &own).expect("copy");
    own
}

/// It compares its memory with its file.
fn runs_its_own(cmd: &Cmd, options: &[&str], what: &str) -> Outcome {
    let outcome = cmd.lifted(options);
    let sound = outcome.end == End::Code(0) && outcome.stdout.ends_with("wrong 0\n");
    assert!(sound && outcome.stdout.contains(" text "), "{what}: {outcome:?}");
    outcome
}

/// All whole huge pages are huge, and the store's.
fn assert_shared(shelf: &Shelf, pid: u32, objects: &[PathBuf]) -> Vec<Piece> {
    let pieces: Vec<Piece> = pieces(pid, objects).into_iter().filter(|p| p.inner.is_some()).collect();
    assert!(!pieces.is_empty());
    let usage = smaps(pid);
    for piece in &pieces {
        let inner = piece.inner.expect("a whole huge page");
        let of_store = usage.iter().filter(|u| u.mapping.path.starts_with(&shelf.path));
        let here = of_store.filter(|u| inner.covers(u.mapping.range));
        let bytes: u64 = here.map(|u| u.shmem_huge).sum();
        assert_eq!(bytes, inner.len(), "{}: {} kB are the store's", piece.object.display(), bytes >> 10);
        assert_eq!(piece.huge, inner.len());
    }
    assert_unchanged(pid, &pieces);
    assert_no_wx(pid, &pieces);
    pieces
}

/// What all processes together have of the store's memory, and what was lifted in each.
fn ten_of(shelf: &Shelf, cmd: &Cmd, program: &Path) {
    let objects = needed(program);
    let held: Vec<Held> = (0..10).map(|_| Held::start(cmd, Some(&SHARED), program)).collect();
    let (mut pss, mut one) = (0, 0);
    for held in &held {
        let pieces = assert_shared(shelf, held.pid(), &objects);
        one = pieces.iter().filter_map(|p| p.inner).map(|r| r.len()).sum();
        let usage = smaps(held.pid());
        // Every part that was lifted, whatever maps it now.
        let lifted = |u: &&hugelift_core::smaps::Usage| {
            pieces.iter().filter_map(|p| p.inner).any(|inner| inner.covers(u.mapping.range))
        };
        pss += usage.iter().filter(lifted).map(|u| u.pss).sum::<u64>();
    }
    assert!(one >= 2 * PAGE);
    assert!(pss.abs_diff(one) <= one / 20, "ten processes have {pss} bytes of {one}");
    let users: usize = shelf.entries().iter().map(|e| e["users"].as_array().unwrap().len()).max().unwrap();
    assert_eq!(users, 10);
    for held in held {
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.own_lines()), (End::Code(0), vec![]));
    }
}

#[test]
fn ten_processes_have_one_copy() {
    let shelf = shelf!();
    let program = victim("hold");
    ten_of(&shelf, &shelf.cmd([&program]), &program);
}

#[test]
fn ten_static_processes_have_one_copy() {
    let shelf = shelf!();
    let program = fat("hold").flags(&["-static"]).build();
    ten_of(&shelf, &shelf.cmd([&program]), &program);
}

#[test]
fn ten_compilers_have_one_copy() {
    need!("clang++-19");
    let shelf = shelf!();
    let program = find("clang++-19").unwrap().canonicalize().unwrap();
    ten_of(&shelf, &shelf.cmd(["clang++-19", "-x", "c++", "-E", "-"]), &program);
}

#[test]
fn shared_code_is_reported_as_its_objects() {
    let shelf = shelf!();
    let program = victim("hold");
    let report = shelf._dir.path().join("report");
    let options = [&SHARED[..], &["--report", report.to_str().unwrap()]].concat();
    let held = Held::start(&shelf.cmd([&program]), Some(&options), &program);
    let inspected = Command::new(HUGELIFT).args(["inspect", "--json", &held.pid().to_string()]).output();
    let now: Value = serde_json::from_slice(&inspected.unwrap().stdout).unwrap();
    let then: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    for report in [now, then] {
        let object = &report["objects"][0];
        assert_eq!(object["path"], program.to_str().unwrap(), "{report}");
        let parts = object["parts"].as_array().unwrap();
        let text: Vec<&Value> = parts.iter().filter(|p| p["part"] == "text").collect();
        let [text] = text[..] else { panic!("{parts:?}") };
        assert_eq!(text["backing"], "shared", "{text}");
        assert_eq!(text["huge_bytes"], text["liftable_bytes"], "{text}");
        let from_store = |o: &Value| o["path"].as_str().unwrap().starts_with(shelf.path.to_str().unwrap());
        assert!(!report["objects"].as_array().unwrap().iter().any(from_store), "{report}");
    }
    held.finish();
}

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
    // Who would have had to wait for too long goes on without, and says so.
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
    let count = |shelf: &Shelf| {
        let outcome = shelf.cmd([&program]).env("HUGELIFT_TEST_DIE", "count").lifted(&SHARED);
        let told = outcome.stderr.lines().find_map(|l| l.strip_prefix("hugelift-test: ptrace operations: "));
        told.and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or_else(|| panic!("no count: {outcome:?}"))
    };
    let operations = count(&shelf!());
    let (mut before, mut between, mut after) = (0, 0, 0);
    for n in 0..operations {
        let shelf = shelf!();
        let cmd = shelf.cmd([&program]);
        let what = format!("killed before operation {n} of {operations}");
        runs_its_own(&cmd.clone().env("HUGELIFT_TEST_DIE", format!("{n}:helper")), &SHARED, &what);
        // A copy that was not complete has no name; a complete one may lack its record.
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

/// A tmpfs of its own, unmounted when dropped.
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
fn places_that_will_not_do() {
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
        // Full for others' sake: half of it may be used, and that half is not to be had.
        fs::write(mount.0.path().join("hog"), vec![1; 3 << 20]).unwrap();
        told(&mount.0.path().join("store"), words);
    }
    // Enough for the budget, and yet full.
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

/// Changes the file of an entry, as only its owner can.
fn damage(path: &Path, change: impl FnOnce(&fs::File)) {
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().write(true).read(true).open(path).unwrap();
    change(&file);
    fs::set_permissions(path, Permissions::from_mode(0o400)).unwrap();
}

fn flip(file: &fs::File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[test]
fn a_damaged_entry_is_not_used() {
    let shelf = shelf!();
    let program = victim("sums");
    let cmd = shelf.cmd([&program]);
    runs_its_own(&cmd, &SHARED, "first");
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 9] = [
        ("a bit", |entry, _| damage(entry, |f| flip(f, PAGE + 12345))),
        ("the last bit", |entry, _| damage(entry, |f| flip(f, f.metadata().unwrap().len() - 1))),
        ("shorter", |entry, _| damage(entry, |f| f.set_len(PAGE + 4096).unwrap())),
        ("empty", |entry, _| damage(entry, |f| f.set_len(0).unwrap())),
        ("longer", |entry, _| damage(entry, |f| f.set_len(1 << 30).unwrap())),
        ("gone", |entry, _| fs::remove_file(entry).unwrap()),
        ("another file", |entry, _| {
            let bytes = fs::read(entry).unwrap();
            fs::remove_file(entry).unwrap();
            fs::write(entry, bytes.iter().map(|b| b ^ 1).collect::<Vec<_>>()).unwrap();
            fs::set_permissions(entry, Permissions::from_mode(0o400)).unwrap();
        }),
        ("no record", |_, record| fs::write(record, "{\"version\":1}").unwrap()),
        ("a record cut short", |_, record| {
            let json = fs::read(record).unwrap();
            fs::write(record, &json[..json.len() / 2]).unwrap();
        }),
    ];
    for (what, change) in changes {
        let entry = shelf.entry();
        let record = shelf.names().into_iter().find(|n| n.ends_with(".json")).unwrap();
        change(&entry, &shelf.path.join(record));
        let outcome = runs_its_own(&cmd, &SHARED, what);
        assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{what}");
        // Made again.
        assert_eq!(shelf.run(&["verify"]).0, Some(0), "{what}");
    }
}

/// A store through a mapping leaves the times as they are: reading all of it finds it.
#[test]
fn verify_reads_every_byte() {
    let shelf = shelf!();
    let program = victim("sums");
    runs_its_own(&shelf.cmd([&program]), &SHARED, "first");
    let entry = shelf.entry();
    let times = || {
        let meta = fs::metadata(&entry).unwrap();
        (meta.mtime_nsec(), meta.ctime_nsec())
    };
    let before = times();
    let file = fs::OpenOptions::new().read(true).write(true).open(&entry);
    let Ok(file) = file else { skip!("needs root, to write to a file without write permission") };
    let len = std::num::NonZeroUsize::new(fs::metadata(&entry).unwrap().len() as usize).unwrap();
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: mmap(2) at an address of the kernel's choice; one byte in the middle is changed.
    unsafe {
        let map = mmap(None, len, both, MapFlags::MAP_SHARED, &file, 0).unwrap();
        *map.as_ptr().cast::<u8>().add(len.get() / 2 + 77) ^= 1;
        munmap(map, len.get()).unwrap();
    }
    assert_eq!(times(), before, "this kernel would tell");
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(shelf.run(&["verify"]), (Some(1), format!("damaged: {}\n", program.display())));
    assert_eq!(shelf.names(), Vec::<String>::new());
    let next = runs_its_own(&shelf.cmd([&program]), &SHARED, "next");
    assert_eq!(next.own_lines(), Vec::<&str>::new());
}

#[test]
fn planted_links_and_directories() {
    need_root!();
    let program = victim("sums");
    let shelf = shelf!();
    let cmd = shelf.cmd([&program]);
    let refused = |what: &str, words: &str| {
        let outcome = runs_its_own(&cmd, &SHARED, what);
        let lines = outcome.own_lines();
        assert!(lines.len() == 1 && lines[0].contains(words), "{what}: {lines:?}");
        let (status, told) = shelf.run(&["list"]);
        assert!(status == Some(125) && told.contains(words), "{what}: {told}");
    };
    let parent = shelf.path.parent().unwrap();
    // The store, or its parent, leads elsewhere.
    let elsewhere = tempfile::TempDir::new_in("/dev/shm").unwrap();
    fs::create_dir_all(parent).unwrap();
    symlink(elsewhere.path(), &shelf.path).unwrap();
    refused("a link", "is a symbolic link");
    fs::remove_file(&shelf.path).unwrap();
    fs::remove_dir(parent).unwrap();
    symlink(elsewhere.path(), parent).unwrap();
    refused("a link above", "is a symbolic link");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    fs::remove_file(parent).unwrap();
    // Somebody else's, or open to others.
    fs::create_dir_all(&shelf.path).unwrap();
    for (owner, mode, words) in
        [(65534, 0o755, "another user"), (0, 0o777, "by others"), (0, 0o775, "by others")]
    {
        for path in [&shelf.path, parent] {
            chown(path, Some(owner), None).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            refused(words, words);
            chown(path, Some(0), None).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
    }
    fs::remove_dir(&shelf.path).unwrap();
    fs::write(&shelf.path, "").unwrap();
    refused("a file", "is not a directory");
    fs::remove_file(&shelf.path).unwrap();

    // Inside: names that are not what they should be.
    runs_its_own(&cmd, &SHARED, "first");
    let target = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let (entry, record) = (shelf.entry(), shelf.names().into_iter().find(|n| n.ends_with(".json")).unwrap());
    let record = shelf.path.join(record);
    let (bytes, json) = (fs::read(&entry).unwrap(), fs::read(&record).unwrap());
    let plant: [(&str, &dyn Fn()); 6] = [
        ("entry is a link", &|| {
            fs::write(target.path(), &bytes).unwrap();
            fs::remove_file(&entry).unwrap();
            symlink(target.path(), &entry).unwrap();
        }),
        ("entry is somebody else's", &|| chown(&entry, Some(65534), None).unwrap()),
        ("entry can be written", &|| fs::set_permissions(&entry, Permissions::from_mode(0o666)).unwrap()),
        ("record is a link", &|| {
            fs::write(target.path(), &json).unwrap();
            fs::remove_file(&record).unwrap();
            symlink(target.path(), &record).unwrap();
        }),
        ("record is somebody else's", &|| chown(&record, Some(65534), None).unwrap()),
        ("record is a FIFO", &|| {
            fs::remove_file(&record).unwrap();
            nix::unistd::mkfifo(&record, nix::sys::stat::Mode::S_IRUSR).unwrap();
        }),
    ];
    for (what, plant) in plant {
        plant();
        let outcome = runs_its_own(&cmd, &SHARED, what);
        assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{what}");
        assert_eq!(shelf.entry(), entry, "{what}: made again");
        assert_eq!(shelf.run(&["verify"]).0, Some(0), "{what}");
    }
    assert_eq!(fs::read(target.path()).unwrap(), json, "what a link leads to was changed");
}

/// Other bytes under the same name: renamed over it, written into it, and with all its times
/// put back; on a disk, and on a tmpfs, whose times tell less.
#[test]
fn an_upgraded_binary_runs_its_own_bytes() {
    let shelf = shelf!();
    let other = fat("sums").size(7 << 20).flags(&["-no-pie"]).build();
    for (place, dir) in [
        ("disk", tempfile::TempDir::new().unwrap()),
        ("tmpfs", tempfile::TempDir::new_in("/dev/shm").unwrap()),
    ] {
        let program = copy(dir.path(), &victim("sums"));
        let cmd = shelf.cmd([&program]);
        let shared = |what: &str| {
            for time in ["first", "second"] {
                let what = format!("{place}: {what}, {time} start");
                let outcome = runs_its_own(&cmd, &SHARED, &what);
                assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{what}");
            }
        };
        shared("as built");
        let next = dir.path().join("next");
        fs::copy(&other, &next).unwrap();
        fs::rename(&next, &program).unwrap();
        shared("renamed over");
        fs::write(&program, fs::read(victim("sums")).unwrap()).unwrap();
        shared("written over");
        let times = fs::metadata(&program).unwrap();
        let mut bytes = fs::read(&program).unwrap();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        fs::write(&program, &bytes).unwrap();
        let file = fs::File::options().write(true).open(&program).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
        drop(file);
        shared("one bit, and the time of before");
        // Entries of files that are gone go with them.
        drop(dir);
        let (status, told) = shelf.run(&["gc"]);
        assert!(status == Some(0) && told.contains("dropped"), "{told}");
        assert_eq!(shelf.names(), Vec::<String>::new(), "{told}");
    }
}

#[test]
fn auto_stores_what_is_started_twice() {
    let shelf = shelf!();
    // On a tmpfs without huge pages: what the page cache has huge needs no copy.
    let program = copy(shelf._dir.path(), &victim("hold"));
    let backing = || {
        let held = Held::start(&shelf.cmd([&program]), Some(&["--backing", "auto"]), &program);
        let shared: u64 = smaps(held.pid()).iter().map(|u| u.shmem_huge).sum();
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.own_lines()), (End::Code(0), vec![]));
        shared > 0
    };
    assert!(!backing() && !shelf.path.exists(), "without a store it makes none");
    fs::create_dir_all(&shelf.path).unwrap();
    assert!(!backing() && shelf.entries().is_empty(), "the first start copies nothing");
    assert!(backing() && backing());
    assert_eq!(shelf.entries().len(), 1);
}

/// Each at another random address, moved to where the copy fits.
#[test]
fn ten_position_independent_processes_have_one_copy() {
    let shelf = shelf!();
    for flags in [&["-pie"][..], &["-static-pie"]] {
        let program = fat("hold").flags(flags).build();
        ten_of(&shelf, &shelf.cmd([&program]), &program);
        let bases = (0..4).map(|_| {
            let held = Held::start(&shelf.cmd([&program]), Some(&SHARED), &program);
            held.proc("maps").split('-').next().unwrap().to_string()
        });
        assert!(bases.collect::<std::collections::BTreeSet<_>>().len() > 1, "always the same base");
    }
}

#[test]
fn a_set_uid_program_has_nothing_to_do_with_it() {
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
            fs::copy(fat("sums").size((6 + n) << 20).flags(&["-no-pie"]).build(), &own).unwrap();
            own
        })
        .collect();
    for program in &programs {
        runs_its_own(&shelf.cmd([program]), &SHARED, "first");
    }
    // The first becomes the one used last.
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
    // What others put there is not ours to remove.
    fs::write(shelf.path.join("theirs"), "").unwrap();
    assert_eq!(shelf.run(&["drop", "--all"]).0, Some(125));
    assert_eq!(shelf.names(), ["theirs"]);
    fs::remove_file(shelf.path.join("theirs")).unwrap();
    assert_eq!(shelf.run(&["drop", "--all"]).0, Some(0));
    assert!(!shelf.path.exists());
    assert_eq!(shelf.run(&["list"]), (Some(0), format!("there is no store at {}\n", shelf.path.display())));
}

/// Root's store is for all, but for what they may not read; in a world of its own, where
/// `/run` is a tmpfs that allows no code, as in Debian.
#[test]
fn the_machines_store() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let dir = open_dir(&[]);
    let inside = dir.path().join("closed");
    fs::create_dir(&inside).unwrap();
    // Each with code of its own.
    let [open, closed, private] = [("open", 6), ("closed/program", 7), ("private", 8)].map(|(name, size)| {
        let path = dir.path().join(name);
        fs::copy(fat("sums").size(size << 20).flags(&["-no-pie"]).build(), &path).unwrap();
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
        grep -c '^hugelift /run/hugelift ' /proc/mounts || true",
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
    assert!(stdout.ends_with("\n0\n"), "{stdout}{stderr}");
}
