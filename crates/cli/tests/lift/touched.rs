// SPDX-License-Identifier: Apache-2.0
//! hugelift copies what past runs touched, and their CPU time decides whether copying is worth it.
//! Whatever the notes contain, the program runs its own bytes.

use crate::common::huge::{assert_no_wx, assert_unchanged, pieces, smaps};
use crate::common::run::PATIENCE;
use crate::common::{Cmd, End, HUGELIFT, Held, fat};
use crate::skip;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MB: u64 = 1 << 20;
const SEEN: [&str; 4] = ["--touched", "seen", "--backing", "thp"];

/// A program and notes for one test. Removed when dropped.
struct Place {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    /// # Errors
    /// Fails without a tmpfs from which programs may run. On a tmpfs the page cache is in small
    /// pages, so code must be copied.
    fn new() -> Result<Place, String> {
        let dir = tempfile::TempDir::new_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
        let program = dir.path().join("program");
        // Copied with cp(1): a child that another test forks would inherit a file that is open for
        // writing here, and then the file cannot be executed.
        let built = fat("hot").size(4 << 20).flags(&["-no-pie"]).build();
        assert!(Command::new("cp").arg(built).arg(&program).status().is_ok_and(|s| s.success()));
        match Command::new(&program).stdout(Stdio::null()).status() {
            Ok(status) if status.success() => Ok(Place { dir, program }),
            other => Err(format!("needs a tmpfs that allows code on /dev/shm: {other:?}")),
        }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn notes(&self) -> PathBuf {
        self.dir.path().join("store.seen")
    }

    fn cmd(&self, args: &[&str]) -> Cmd {
        Cmd::new([&self.program]).args(args).env("HUGELIFT_STORE", self.store())
    }

    /// Runs `hugelift store`, which must succeed, and returns its output.
    fn run(&self, args: &[&str]) -> String {
        let out = Command::new(HUGELIFT).arg("store").args(args).env("HUGELIFT_STORE", self.store()).output();
        let out = out.expect("hugelift starts");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).expect("UTF-8")
    }

    /// Returns the program's note as listed.
    fn listed(&self) -> Option<Value> {
        let listed: Value = serde_json::from_str(&self.run(&["list", "--json"])).expect("JSON");
        let notes = listed["notes"].as_array().expect("notes").clone();
        notes.into_iter().find(|n| n["object"] == self.program.to_str().unwrap())
    }

    /// Waits until the program's note counts `runs` runs.
    fn told(&self, runs: u64) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.listed() {
                Some(note) if note["runs"].as_u64() >= Some(runs) => return note,
                note if Instant::now() > until => panic!("not {runs} runs: {note:?}"),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Returns the file of the program's note.
    fn note(&self) -> PathBuf {
        let files = fs::read_dir(self.notes()).expect("notes").map(|e| e.unwrap().path());
        let is_note = |path: &PathBuf| path.extension().is_some_and(|e| e == "json");
        let of_program = |path: &PathBuf| fs::read_to_string(path).unwrap().contains("/program\"");
        files.filter(is_note).find(of_program).expect("a note of the program")
    }

    /// Changes the content of the note.
    fn rewrite(&self, change: impl FnOnce(&mut Value)) {
        let path = self.note();
        let mut note: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut note);
        fs::write(&path, note.to_string()).unwrap();
    }

    /// Makes the note say that there was one run, with this CPU time.
    fn lived(&self, cpu: Duration) {
        let cpu = u64::try_from(cpu.as_micros()).unwrap();
        self.rewrite(|note| note["lives"] = serde_json::json!({ "runs": 1, "cpu_us": cpu }));
    }

    /// Runs the program and examines it meanwhile. Returns how many bytes of its text were copied.
    fn copied(&self, options: &[&str], blocks: &[&str]) -> u64 {
        self.held(options, blocks, false)
    }

    /// Like [`Place::copied`], and compares all bytes with the file. Reading them touches them.
    fn copied_right(&self, options: &[&str], blocks: &[&str]) -> u64 {
        self.held(options, blocks, true)
    }

    fn held(&self, options: &[&str], blocks: &[&str], compare: bool) -> u64 {
        let cmd = self.cmd(&[blocks, &["wait"]].concat());
        let held = Held::start(&cmd, Some(&without_store(options)), &self.program);
        let pieces = pieces(held.pid(), std::slice::from_ref(&self.program));
        if compare {
            assert_unchanged(held.pid(), &pieces);
        }
        assert_no_wx(held.pid(), &pieces);
        let text = pieces.iter().find(|p| p.text).expect("text").range;
        assert!(text.len() > 64 * MB);
        let here = smaps(held.pid());
        let inside = here.iter().filter(|u| text.covers(u.mapping.range));
        let copied = inside.map(|u| u.anon_huge + u.hugetlb()).sum();
        let outcome = held.finish();
        assert_eq!((outcome.stdout.as_str(), outcome.end), ("ready\nwrong 0\n", End::Code(0)), "{options:?}");
        assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{options:?}");
        copied
    }

    /// Returns what hugelift prints about the program's text with `-v`.
    fn said(&self, options: &[&str]) -> String {
        let outcome = self.cmd(&["3"]).lifted(&without_store(&[&["-v"], options].concat()));
        assert_eq!((outcome.stdout.as_str(), outcome.end), ("wrong 0\n", End::Code(0)), "{options:?}");
        outcome.stderr
    }
}

/// The store has one copy for all processes, so the decision does not apply to it. With `--numa` each
/// process has its own copy.
fn without_store<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let placement: &[&str] = if options.contains(&"--backing") { &[] } else { &["--numa", "local"] };
    [options, placement].concat()
}

macro_rules! place {
    () => {
        match Place::new() {
            Ok(place) => place,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The size of all whole huge pages in 64 MB.
const WHOLE: u64 = 62 * MB;

/// The size of a block: it is in three huge pages at most, and the code that the start of the
/// program runs is in one more at each end.
const BLOCK: std::ops::RangeInclusive<u64> = 4 * MB..=10 * MB;

#[test]
fn the_first_run_records_and_the_second_copies_what_it_touched() {
    let place = place!();
    assert_eq!(place.copied(&SEEN, &["5"]), 0, "nothing is known yet");
    let note = place.told(1);
    let touched = note["touched_bytes"].as_u64().unwrap();
    assert!((4 * MB..6 * MB).contains(&touched), "{note}");
    let one = place.copied(&SEEN, &["5"]);
    assert!(BLOCK.contains(&one), "{} MB", one >> 20);
    // Another block runs: it stays on small pages, and is copied the next time.
    place.told(2);
    assert_eq!(place.copied(&SEEN, &["9"]), one);
    place.told(3);
    let two = place.copied_right(&SEEN, &["9"]);
    assert!(two > one && BLOCK.contains(&(two - one)), "{} and {} MB", one >> 20, two >> 20);
    // On request all is copied, with every backing.
    assert!(place.copied_right(&["--touched", "all"], &["5"]) >= WHOLE);
    assert!(place.copied(&["--backing", "thp"], &["5"]) >= WHOLE);
}

#[test]
fn what_is_not_copied_is_reported() {
    let place = place!();
    place.copied(&SEEN, &["5"]);
    place.told(1);
    let report = place.dir.path().join("report");
    let options = [&SEEN[..], &["--report", report.to_str().unwrap(), "-v"]].concat();
    let outcome = place.cmd(&["5"]).lifted(&options);
    assert_eq!(outcome.end, End::Code(0));
    assert!(outcome.stderr.contains("are known to be touched: only that is copied"), "{}", outcome.stderr);
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let parts = report["objects"][0]["parts"].as_array().unwrap();
    let text = parts.iter().find(|p| p["part"] == "text").unwrap();
    let skips = text["skips"].as_array().unwrap();
    let untouched = skips.iter().find(|s| s["reason"] == "not-touched").unwrap();
    let [huge, left, whole] = [&text["huge_bytes"], &untouched["bytes"], &text["liftable_bytes"]]
        .map(|bytes| bytes.as_u64().unwrap());
    assert!(BLOCK.contains(&huge) && huge + left == whole && whole >= WHOLE, "{text}");
}

#[test]
fn auto_copies_what_is_worth_it() {
    let place = place!();
    let first = place.said(&[]);
    assert!(first.contains("nothing is known of past runs: worth it"), "{first}");
    assert!(place.told(1)["cpu_seconds"].as_f64() < Some(0.5));
    let second = place.said(&[]);
    assert!(second.contains("a past run took") && second.contains("not worth it"), "{second}");
    assert!(second.contains("text 0 B of 6"), "{second}");
    // An explicit request overrides the decision.
    for options in [&["--backing", "thp"][..], &["--touched", "all"], &["--strict"]] {
        let told = place.said(options);
        assert!(!told.contains("worth it") && !told.contains("text 0 B"), "{options:?}: {told}");
    }
    // A program that is not copied is observed, if it lives long enough.
    place.told(2);
    place.copied(&[], &["3"]);
    let touched = place.told(3)["touched_bytes"].as_u64();
    assert!(touched >= Some(3 * MB), "{:?}", place.listed());
    // This CPU time makes a copy of the touched pages worth it, and the second one a copy of
    // everything.
    place.lived(Duration::from_millis(450));
    let partly = place.copied_right(&[], &["3"]);
    assert!(BLOCK.contains(&partly), "{} MB", partly >> 20);
    place.told(2);
    place.lived(Duration::from_secs(60));
    assert!(place.copied(&[], &["3"]) >= WHOLE);
    // `--dry-run` says the same.
    place.told(2);
    place.lived(Duration::from_millis(1));
    let mut preview = Command::new(HUGELIFT);
    preview
        .args(["run", "--dry-run", "--numa", "local"])
        .arg(&place.program)
        .env("HUGELIFT_STORE", place.store());
    let shown = String::from_utf8(preview.output().unwrap().stdout).unwrap();
    assert!(shown.contains("a past run took 1.0 ms of CPU time: not worth it"), "{shown}");
    assert!(shown.contains("plan: nothing to lift"), "{shown}");
}

#[test]
fn what_a_run_took_is_noted() {
    let place = place!();
    let outcome = place.cmd(&["3", "burn"]).lifted(&without_store(&[]));
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("wrong 0\n", End::Code(0)));
    let cpu = place.told(1)["cpu_seconds"].as_f64().unwrap();
    assert!((0.45..5.0).contains(&cpu), "half a second, and a little for its start: {cpu}");
    assert!(place.said(&[]).contains("a past run took"));
    let mean = place.told(2)["cpu_seconds"].as_f64().unwrap();
    assert!(mean < cpu, "{mean} and {cpu}");
}

#[test]
fn a_program_that_leaves_a_child_behind_counts_as_long() {
    let place = place!();
    let cmd = place.cmd(&["3", "leave", "wait"]);
    // The parent ends at once; its child waits for the end of stdin.
    let mut command = cmd.command(Some(&without_store(&[])));
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    assert!(child.wait().unwrap().success());
    let note = place.told(1);
    drop(stdin);
    assert_eq!(note["cpu_seconds"].as_f64(), Some(3600.0), "{note}");
    assert!(place.said(&[]).contains(": worth it"), "it was taken for a short run");
}

/// Replaces the note with one that hugelift must not trust; each start then knows nothing of past
/// runs.
#[test]
fn hostile_notes_are_ignored() {
    let place = place!();
    place.copied(&SEEN, &["5"]);
    place.told(1);
    place.lived(Duration::from_millis(1));
    assert!(place.said(&[]).contains("not worth it"));
    place.told(2);
    let (path, elsewhere) = (place.note(), place.dir.path().join("elsewhere"));
    let good = fs::read(&path).unwrap();
    type Change<'a> = &'a dyn Fn();
    let write = |bytes: &[u8]| fs::write(&path, bytes).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let mut changes: Vec<(&str, Change)> = Vec::new();
    let cut = || write(&good[..good.len() / 2]);
    let garbage = || write(&[0xff; 4096]);
    let long = || write(" ".repeat(1 << 20).as_bytes());
    let bits = || write(text.replace("\"bits\":\"", "\"bits\":\"xyz").as_bytes());
    let other = || write(text.replace("\"inode\":", "\"inode\":1").as_bytes());
    let writable = || fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let link = || {
        fs::write(&elsewhere, &good).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&elsewhere, &path).unwrap();
    };
    let fifo = || {
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    let foreign = || chown(&path, Some(65534), None).unwrap();
    changes.extend([("cut short", &cut as Change), ("garbage", &garbage), ("too long", &long)]);
    changes.extend([("invalid bits", &bits as Change), ("of another file", &other), ("a link", &link)]);
    changes.extend([("others can write it", &writable as Change), ("a FIFO", &fifo)]);
    if nix::unistd::geteuid().is_root() {
        changes.push(("another user's", &foreign));
    }
    for (what, change) in changes {
        let _ = fs::remove_file(&path);
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        change();
        let told = place.said(&[]);
        assert!(told.contains("nothing is known of past runs: worth it"), "{what}: {told}");
        // The run is recorded in a new note, as the first. The target of a link stays as it was.
        place.told(1);
        assert!(!elsewhere.exists() || fs::read(&elsewhere).unwrap() == good, "{what}");
    }
}

#[test]
fn a_directory_that_is_not_ours_alone_is_not_used() {
    let place = place!();
    let notes = place.notes();
    type Make = fn(&Path);
    let hostile: [(&str, Make); 3] = [
        ("can be written by others", |path| {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }),
        ("is a symbolic link", |path| symlink("/dev/shm", path).unwrap()),
        ("is not a directory", |path| fs::write(path, "").unwrap()),
    ];
    for (what, make) in hostile {
        make(&notes);
        // As without a directory, all is copied, and hugelift prints nothing.
        assert!(place.copied(&[], &["3"]) >= WHOLE, "{what}");
        // With `--touched seen` hugelift reports it.
        let outcome = place.cmd(&["3"]).lifted(&SEEN);
        assert_eq!((outcome.stdout.as_str(), outcome.end), ("wrong 0\n", End::Code(0)), "{what}");
        let lines = outcome.own_lines();
        assert!(lines.len() == 1 && lines[0].contains(what), "{what}: {lines:?}");
        if notes.is_dir() && !notes.is_symlink() {
            fs::remove_dir(&notes).unwrap();
        } else {
            fs::remove_file(&notes).unwrap();
        }
    }
}

#[test]
fn another_binary_of_the_same_name_is_unknown() {
    let place = place!();
    place.copied(&SEEN, &["5"]);
    place.told(1);
    assert!(place.copied(&SEEN, &["5"]) > 0);
    place.told(2);
    let same = fs::read(&place.program).unwrap();
    // Overwritten in place: the same inode, with a new time.
    let copy = |to: &Path| {
        fs::write(place.dir.path().join("bytes"), &same).unwrap();
        let from = place.dir.path().join("bytes");
        assert!(Command::new("cp").arg(from).arg(to).status().is_ok_and(|s| s.success()));
    };
    copy(&place.program);
    assert_eq!(place.copied(&SEEN, &["5"]), 0);
    place.told(1);
    // A package upgrade: another inode.
    let new = place.dir.path().join("new");
    copy(&new);
    fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, &place.program).unwrap();
    assert_eq!(place.copied(&SEEN, &["5"]), 0);
    place.told(1);
    assert!(place.run(&["gc"]).contains("dropped 1 notes"), "the note of the file that is gone was kept");
    assert_eq!(place.told(1)["state"], "good");
}

#[test]
fn twenty_runs_at_once_leave_one_note() {
    let place = place!();
    std::thread::scope(|scope| {
        for n in 0..20 {
            let cmd = place.cmd(&[["3", "5", "9"][n % 3]]);
            scope.spawn(move || {
                let outcome = cmd.lifted(&SEEN);
                assert_eq!((outcome.stdout.as_str(), outcome.end), ("wrong 0\n", End::Code(0)));
                assert_eq!(outcome.own_lines(), Vec::<&str>::new());
            });
        }
    });
    place.told(8);
    // Runs of a program that is already known need no observer.
    let until = Instant::now() + PATIENCE;
    while !observers(&place.program).is_empty() {
        assert!(Instant::now() < until, "an observer still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let names: Vec<String> =
        fs::read_dir(place.notes()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|n| n == "lock" || n.ends_with(".json")), "{names:?}");
    assert_eq!(names.len(), 2, "{names:?}");
    let note = fs::metadata(place.note()).unwrap();
    assert_eq!((note.permissions().mode() & 0o777, note.len() < 8 << 10), (0o600, true));
    assert!(place.run(&["drop", "program"]).contains("dropped 1 notes"));
    assert!(place.listed().is_none());
    place.run(&["drop", "--all"]);
    assert!(!place.notes().exists());
    assert!(place.run(&["list"]).starts_with("there is no store at "));
}

/// Returns the processes of hugelift that were started for `program`.
fn observers(program: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    let is_ours = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let exe = fs::read_link(format!("/proc/{pid}/exe"));
        exe.is_ok_and(|exe| exe == Path::new(HUGELIFT).canonicalize().unwrap())
            && String::from_utf8_lossy(&words).contains(program.to_str().unwrap())
    };
    pids.filter(is_ours).collect()
}

#[test]
fn the_program_does_not_notice_its_observer() {
    let place = place!();
    let cmd = place.cmd(&["3", "wait"]);
    let held = Held::start(&cmd, Some(&SEEN), &place.program);
    let looking = observers(&place.program);
    let [observer] = looking[..] else { panic!("{looking:?}") };
    assert_ne!(observer.cast_unsigned(), held.pid());
    // The observer is no child of the program, traces nothing, and has none of its files open.
    let stat = fs::read_to_string(format!("/proc/{observer}/status")).unwrap();
    assert!(!stat.contains(&format!("PPid:\t{}\n", held.pid())), "{stat}");
    assert!(held.is_untraced());
    let open = |pid: i32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|e| e.unwrap().path());
        files.filter_map(|f| fs::read_link(f).ok()).collect::<Vec<PathBuf>>()
    };
    let theirs = open(held.pid().cast_signed());
    let common: Vec<PathBuf> = open(observer).into_iter().filter(|f| theirs.contains(f)).collect();
    assert!(common.iter().all(|f| f.starts_with("/dev/null")), "{common:?}");
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(observer, libc::SIGKILL) };
    let outcome = held.finish();
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("ready\nwrong 0\n", End::Code(0)));
    assert!(place.listed().is_none(), "a note exists although its observer was killed");
    // The next run is like the first, and its observer ends with the program.
    assert_eq!(place.copied(&SEEN, &["3"]), 0);
    place.told(1);
    let until = Instant::now() + PATIENCE;
    while !observers(&place.program).is_empty() {
        assert!(Instant::now() < until, "an observer still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}
