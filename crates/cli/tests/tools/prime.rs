// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift prime`: a program that maps the file gets huge pages where the report says so, the
//! obstacles in the report are real, and nothing else is changed.

use crate::common::huge::{assert_unchanged, pieces, smaps};
use crate::common::run::{End, PATIENCE};
use crate::common::{CGroup, Cmd, HUGELIFT, Held, fat, find, fits};
use crate::{need, need_root, skip};
use hugelift_core::smaps::Usage;
use serde_json::Value;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const HUGE: u64 = 2 << 20;

/// Runs `hugelift prime --json` with these words; returns its exit status and its report.
pub fn prime(words: &[&str]) -> (i32, Value) {
    prime_by(HUGELIFT.as_ref(), &[], words)
}

fn prime_by(hugelift: &Path, before: &[&str], words: &[&str]) -> (i32, Value) {
    let hugelift = hugelift.to_str().unwrap();
    let out = Cmd::new([hugelift, "prime", "--json"]).args(words).under(before).bare();
    let End::Code(status) = out.end else { panic!("{out:?}") };
    let report = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    fits("prime", &report);
    (status, report)
}

/// A program with 6 MB of text and 6 MB of constants at a fixed address. It was just copied, so the page
/// cache has it in small pages.
struct Fresh {
    path: PathBuf,
    dir: TempDir,
}

fn fresh_in(parent: &Path) -> Fresh {
    let dir = TempDir::new_in(parent).expect("a temporary directory");
    let path = dir.path().join("victim");
    copy(&fat("hold").flags(&["-no-pie", "-fno-pie"]).build(), &path);
    Fresh { path, dir }
}

fn fresh() -> Fresh {
    fresh_in(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Copies a file with cp(1). Tests run in threads: if this process wrote the file, a child that another
/// thread forks would have it open for writing for a moment.
fn copy(from: &Path, to: &Path) {
    let cp = Command::new("cp").arg(from).arg(to).status().expect("cp");
    assert!(cp.success(), "cp {} {}", from.display(), to.display());
}

impl Fresh {
    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// Returns the reason and the bytes of each obstacle.
fn obstacles(file: &Value) -> Vec<(String, u64)> {
    let segments = file["segments"].as_array().unwrap().iter();
    let of = |s: &Value| s["obstacles"].as_array().unwrap().clone();
    let all = segments.filter(|s| s["whole_bytes"] != 0).flat_map(of);
    all.map(|o| (o["reason"].as_str().unwrap().to_string(), o["bytes"].as_u64().unwrap())).collect()
}

/// Primes `file`. Returns false if its file system has no huge pages.
fn can_prime(file: &Fresh) -> bool {
    let (_, report) = prime(&[file.name()]);
    !obstacles(&report["files"][0]).iter().any(|(reason, _)| reason == "no-large-folios")
}

macro_rules! needs_large_folios {
    () => {
        if !can_prime(&fresh()) {
            skip!("the file system of {} has no large folios", env!("CARGO_TARGET_TMPDIR"));
        }
    };
}

/// Returns the bytes of the program's text and constants that a bare run has mapped huge from the page
/// cache, after it has touched all of them.
fn huge_in_bare_run(program: &Path) -> u64 {
    let held = Held::start(&Cmd::new([program]), None, program);
    let all = smaps(held.pid());
    all.iter().filter(|u| u.mapping.path == program).map(|u| u.file_huge + u.shmem_huge).sum()
}

/// Maps the file and touches the page at `offset`.
fn hold(file: &File, offset: u64) {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap};
    let len = NonZeroUsize::new(file.metadata().unwrap().len() as usize).unwrap();
    // SAFETY: mmap(2) at an address of the kernel's choice; the byte lies inside.
    unsafe {
        let at = mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0).unwrap();
        std::ptr::read_volatile(at.as_ptr().cast::<u8>().add(offset as usize));
    }
}

#[test]
fn a_copied_program_runs_on_huge_pages() {
    needs_large_folios!();
    let file = fresh();
    let before = fs::metadata(&file.path).unwrap();
    let bytes = fs::read(&file.path).unwrap();
    let (status, report) = prime(&[file.name()]);
    assert_eq!(status, 0, "{report:#}");
    let whole = report["files"][0]["whole_bytes"].as_u64().unwrap();
    assert!(whole >= 8 << 20, "{report:#}");
    assert_eq!(report["files"][0]["huge_bytes"], whole);
    assert_eq!((&report["version"], &report["page_size"]), (&1.into(), &HUGE.into()));
    assert_eq!(huge_in_bare_run(&file.path), whole);
    let after = fs::metadata(&file.path).unwrap();
    let stamp = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.size());
    assert_eq!(stamp(&before), stamp(&after));
    assert!(bytes == fs::read(&file.path).unwrap(), "the file's bytes were changed");
    // A second run finds nothing left to do.
    assert_eq!(prime(&[file.name()]).0, 0);
    assert_eq!(prime(&["--check", file.name()]).0, 0);
}

#[test]
fn inspect_counts_what_was_primed() {
    needs_large_folios!();
    let file = fresh();
    let (_, report) = prime(&[file.name()]);
    let held = Held::start(&Cmd::new([&file.path]), None, &file.path);
    let shown = Cmd::new([HUGELIFT, "inspect", "--json", &held.pid().to_string()]).bare();
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    let parts = shown["objects"][0]["parts"].as_array().unwrap();
    let huge: u64 = parts.iter().map(|p| p["huge_bytes"].as_u64().unwrap()).sum();
    assert_eq!(huge, report["files"][0]["huge_bytes"].as_u64().unwrap(), "{shown:#}");
    let text = parts.iter().find(|p| p["part"] == "text").unwrap();
    assert_eq!((&text["backing"], &text["huge_bytes"]), (&"pagecache".into(), &text["liftable_bytes"]));
}

#[test]
fn check_changes_nothing() {
    let file = fresh();
    // The whole file is in memory, in small pages.
    let (status, report) = prime(&["--check", file.name()]);
    assert_eq!(status, 1);
    assert!(obstacles(&report["files"][0]).iter().all(|(r, _)| r == "not-primed"), "{report:#}");
    assert_eq!(huge_in_bare_run(&file.path), 0);
    // The file is not in memory.
    let opened = File::open(&file.path).unwrap();
    opened.sync_all().unwrap();
    let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    nix::fcntl::posix_fadvise(&opened, 0, 0, advice).unwrap();
    let before = in_memory(&opened);
    let (status, report) = prime(&["--check", file.name()]);
    assert_eq!(status, 1);
    let cold = obstacles(&report["files"][0]);
    assert!(cold.iter().any(|(reason, _)| reason == "not-read"), "{report:#}");
    // Only its headers were read.
    assert!(in_memory(&opened) <= before + 64, "{} pages, then {}", before, in_memory(&opened));
}

/// Returns the number of the file's base pages that are in memory.
fn in_memory(file: &File) -> usize {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    let len = NonZeroUsize::new(file.metadata().unwrap().len() as usize).unwrap();
    let mut pages = vec![0u8; len.get().div_ceil(4096)];
    // SAFETY: mmap(2), mincore(2) and munmap(2) of that mapping; a byte for each page.
    unsafe {
        let at = mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0).unwrap();
        assert_eq!(libc::mincore(at.as_ptr(), len.get(), pages.as_mut_ptr()), 0);
        munmap(at, len.get()).unwrap();
    }
    pages.iter().filter(|p| **p & 1 != 0).count()
}

#[test]
fn a_file_in_use_keeps_the_pages_in_use() {
    needs_large_folios!();
    let file = fresh();
    let opened = File::open(&file.path).unwrap();
    hold(&opened, 5 << 20);
    let (status, report) = prime(&[file.name()]);
    assert_eq!(status, 1, "{report:#}");
    let of = &report["files"][0];
    assert_eq!(obstacles(of), [("in-use".to_string(), HUGE)], "{report:#}");
    assert_eq!(of["huge_bytes"].as_u64().unwrap(), of["whole_bytes"].as_u64().unwrap() - HUGE);
    let text = Cmd::new([HUGELIFT, "prime", file.name()]).bare();
    let named = format!("in use by {} (", std::process::id());
    assert!(text.stdout.contains(&named), "{text:?}");
}

/// Where nearly all of a part is in huge folios, a lift does not copy the rest. `inspect` and `doctor` say why it is small,
/// and do not advise the command that has just left it so.
#[test]
fn issue_29_c13_a_page_that_a_lift_leaves_small_has_its_reason() {
    needs_large_folios!();
    // The kernel may split a huge page of the file meanwhile, to join memory for another test. Then nothing is shown.
    assert!((0..5).any(|_| one_page_stays_small()), "the kernel has split pages of the file five times");
}

/// Returns whether the kernel has left the page cache of the file as it was primed.
fn one_page_stays_small() -> bool {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let file = Fresh { path: dir.path().join("victim"), dir };
    copy(&fat("hot").flags(&["-no-pie", "-fno-pie"]).build(), &file.path);
    hold(&File::open(&file.path).unwrap(), 21 << 20);
    let (_, primed) = prime(&[file.name()]);
    assert_eq!(obstacles(&primed["files"][0]), [("in-use".to_string(), HUGE)], "{primed:#}");
    let held = Held::start(&Cmd::new([&file.path]).args(["wait"]), None, &file.path);
    let pid = held.pid().to_string();
    let is_as_primed =
        || prime(&["--check", file.name()]).1["files"][0]["huge_bytes"] == primed["files"][0]["huge_bytes"];
    for lifts in [false, true] {
        if lifts {
            let attach = Cmd::new([HUGELIFT, "attach", "--whole", &pid]).bare();
            let [huge, whole] =
                ["huge_bytes", "whole_bytes"].map(|name| primed["files"][0][name].as_u64().unwrap() >> 20);
            let is_said = attach.stdout.contains(&format!("text {huge} MB of {whole} MB on huge pages"));
            if !is_said && !is_as_primed() {
                return false;
            }
            assert!(is_said, "{attach:?}");
        }
        let inspect = Cmd::new([HUGELIFT, "inspect", "--json", &pid]).bare();
        let report: Value = serde_json::from_str(&inspect.stdout).unwrap();
        let parts = report["objects"].as_array().unwrap().iter().flat_map(|o| o["parts"].as_array().unwrap());
        let skips = parts.filter(|p| p["part"] == "text").flat_map(|p| p["skips"].as_array().unwrap());
        let small: Vec<&Value> = skips.filter(|skip| skip["reason"] == "small-folios").collect();
        let is_one = small.len() == 1 && small[0]["bytes"] == HUGE;
        if !is_one && !is_as_primed() {
            return false;
        }
        assert!(is_one, "{report:#}");
        let hint = small[0]["hint"].as_str().unwrap();
        assert!(hint.starts_with("hugelift prime ") && !hint.contains("auto"), "{hint}");
        let could = |text: &str| text.contains("could be lifted");
        let doctor = Cmd::new([HUGELIFT, "doctor", "--pid", &pid]).bare();
        assert!(!lifts || !could(&inspect.stdout) && !could(&doctor.stdout), "{inspect:?} {doctor:?}");
    }
    true
}

#[test]
fn a_file_that_is_being_written_is_left_alone() {
    let file = fresh();
    let mut writer = Command::new("sh")
        .args(["-c", "exec 3<>\"$1\"; echo; read line", "sh", file.name()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let (status, report) = prime(&[file.name()]);
    assert_eq!(status, 1, "{report:#}");
    assert_eq!(report["files"][0]["huge_bytes"], 0);
    assert!(obstacles(&report["files"][0]).iter().all(|(r, _)| r == "being-written"), "{report:#}");
    let holder = &report["files"][0]["segments"][1]["obstacles"][0]["holders"][0];
    assert_eq!(holder["pid"], writer.id(), "{report:#}");
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert_eq!(huge_in_bare_run(&file.path), 0);
}

#[test]
fn what_cannot_be_huge_is_reported() {
    // A file without a whole huge page needs none, so none is missing.
    let out = Cmd::new([HUGELIFT, "prime", "/bin/true"]).bare();
    assert_eq!((out.end, out.stdout.as_str()), (End::Code(0), "/bin/true: no whole huge page\n"));
    // lld puts each segment 4 kB further in memory than in the file.
    need!("clang-19", "ld.lld-19");
    let skewed = fat("hold").compiler("clang-19").flags(&["-fuse-ld=lld"]).build();
    let (status, report) = prime(&[skewed.to_str().unwrap()]);
    assert_eq!(status, 1, "{report:#}");
    assert!(obstacles(&report["files"][0]).iter().any(|(r, _)| r == "not-congruent"), "{report:#}");
}

#[test]
fn what_cannot_be_read_is_a_failure() {
    for (word, says) in [
        ("/no/such/file", "No such file"),
        ("no-such-program", "cannot execute 'no-such-program'"),
        ("/", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
    ] {
        let (status, report) = prime(&[word]);
        assert_eq!(status, 125, "{word}: {report:#}");
        assert!(report["files"][0]["error"].as_str().unwrap().contains(says), "{report:#}");
    }
    let gone = Cmd::new([HUGELIFT, "prime", "--pid", "4194305"]).bare();
    assert_eq!(gone.end, End::Code(125), "{gone:?}");
    assert!(gone.stdout.contains("no process 4194305"), "{gone:?}");
    // The other files are primed although one cannot be read.
    let file = fresh();
    let (status, report) = prime(&["/no/such/file", file.name()]);
    assert_eq!(status, 125);
    assert_eq!(report["files"][1]["path"], file.name());
    // A file that is cut off in the middle of its text is primed as far as it goes.
    File::options().write(true).open(&file.path).unwrap().set_len(5 << 20).unwrap();
    let (_, report) = prime(&[file.name()]);
    assert!(report["files"][0]["whole_bytes"].as_u64().unwrap() < 5 << 20, "{report:#}");
}

#[test]
fn a_script_stands_for_its_interpreter() {
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let (_, report) = prime(&[script.to_str().unwrap()]);
    assert_eq!(report["files"][0]["path"], "/bin/sh");
}

#[test]
fn pid_covers_all_files_that_a_process_has_mapped() {
    let file = fresh();
    let held = Held::start(&Cmd::new([&file.path]), None, &file.path);
    let paths = |report: &Value| -> Vec<String> {
        let files = report["files"].as_array().unwrap().iter();
        files.map(|f| f["path"].as_str().unwrap().to_string()).collect()
    };
    let (_, report) = prime(&["--check", "--pid", &held.pid().to_string()]);
    assert_eq!(paths(&report).len(), 3, "the program, the loader and libc: {report:#}");
    assert!(paths(&report).contains(&file.name().to_string()), "{report:#}");
    let of = |name: &str| {
        let files = report["files"].as_array().unwrap();
        files.iter().find(|f| f["path"].as_str().unwrap().contains(name)).unwrap().clone()
    };
    assert_eq!(of("libc.so")["error"], Value::Null);
    let victim = of("victim");
    assert!(obstacles(&victim).iter().all(|(r, _)| r == "in-use"), "{victim:#}");
    let holders = &victim["segments"][1]["obstacles"][0]["holders"];
    assert_eq!((&holders[0]["pid"], &holders[0]["name"]), (&held.pid().into(), &"victim".into()));
    // After an upgrade the process has the old file, which no other process will map again.
    fs::remove_file(&file.path).unwrap();
    let (status, report) = prime(&["--check", "--pid", &held.pid().to_string()]);
    assert_eq!(status, 1);
    assert!(report.to_string().contains("deleted or replaced since process"), "{report:#}");
    drop(file.dir);
}

#[test]
fn a_user_who_may_read_a_file_may_prime_it() {
    need_root!();
    need!("setpriv");
    let victim = fresh_in(&std::env::temp_dir());
    let hugelift = victim.dir.path().join("hugelift");
    copy(Path::new(HUGELIFT), &hugelift);
    fs::set_permissions(victim.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let nobody = |words: &[&str]| prime_by(&hugelift, &setpriv, words);
    let (status, report) = nobody(&["--check", victim.name()]);
    assert_eq!(status, 1);
    assert!(obstacles(&report["files"][0]).iter().all(|(r, _)| r == "not-owner"), "{report:#}");
    let (status, report) = nobody(&[victim.name()]);
    let obstacles = obstacles(&report["files"][0]);
    if obstacles.iter().any(|(reason, _)| reason == "no-large-folios") {
        skip!("{} has no large folios", victim.name());
    }
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["files"][0]["huge_bytes"], report["files"][0]["whole_bytes"]);
    // A user who may not read the file may not prime it.
    fs::set_permissions(&victim.path, PermissionsExt::from_mode(0o700)).unwrap();
    let (status, report) = nobody(&[victim.name()]);
    assert_eq!(status, 125);
    assert!(report["files"][0]["error"].as_str().unwrap().contains("Permission denied"), "{report:#}");
}

#[test]
fn under_a_memory_limit_nothing_is_dropped() {
    need_root!();
    let file = fresh();
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "7M") {
        skip!("{why}");
    }
    let before = in_memory(&File::open(&file.path).unwrap());
    let words = group.words();
    let before_words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (status, report) = prime_by(HUGELIFT.as_ref(), &before_words, &[file.name()]);
    assert_eq!(status, 1, "{report:#}");
    assert!(obstacles(&report["files"][0]).iter().all(|(r, _)| r == "memory-short"), "{report:#}");
    assert_eq!(in_memory(&File::open(&file.path).unwrap()), before);
}

#[test]
fn clang_with_its_libraries() {
    need!("clang++-19");
    needs_large_folios!();
    // Other processes may be running it for a moment.
    let deadline = std::time::Instant::now() + PATIENCE;
    let report = loop {
        let (status, report) = prime(&["--with-libs", "clang++-19"]);
        if status == 0 {
            break report;
        }
        if std::time::Instant::now() > deadline {
            let all = report["files"].as_array().unwrap().iter().flat_map(obstacles);
            skip!("clang++-19 cannot be primed: {:?}", all.collect::<Vec<_>>());
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    };
    let files = report["files"].as_array().unwrap();
    assert!(files.iter().any(|f| f["path"].as_str().unwrap().contains("libLLVM")), "{report:#}");
    // A compiler that waits for its input.
    let clang = find("clang++-19").unwrap().canonicalize().unwrap();
    let cmd = Cmd::new(["clang++-19", "-fintegrated-cc1", "-x", "c++", "-fsyntax-only", "-"]);
    let held = Held::start(&cmd, None, &clang);
    let all: Vec<PathBuf> = files.iter().map(|f| f["path"].as_str().unwrap().into()).collect();
    let all: Vec<PathBuf> = all.iter().map(|path| path.canonicalize().unwrap()).collect();
    // Pages that it has not touched are not mapped yet: comparing its memory touches them.
    assert_unchanged(held.pid(), &pieces(held.pid(), &all));
    let text = |u: &&Usage| u.mapping.prot.exec && all.contains(&u.mapping.path);
    let by_smaps: u64 = smaps(held.pid()).iter().filter(text).map(|u| u.file_huge).sum();
    let shown = Cmd::new([HUGELIFT, "inspect", "--json", &held.pid().to_string()]).bare();
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    let text = &shown["totals"]["text"];
    let [whole, huge] = ["liftable_bytes", "huge_bytes"].map(|k| text[k].as_u64().unwrap());
    assert!(whole > 100 << 20 && huge * 100 >= whole * 95, "{huge} of {whole}: {shown:#}");
    assert_eq!(huge, by_smaps);
}
