// SPDX-License-Identifier: Apache-2.0
//! `hugelift prime` and the store on each file system that commonly holds programs. The result depends on
//! the kernel. So the tests check that the report is true, and that the file systems that are known to
//! give huge pages on every kernel give them. docs/filesystems.md has the results; `--nocapture` prints
//! them.

use crate::common::huge::smaps;
use crate::common::mounts::{image, kernel_has, mount, run, with_own_mounts};
use crate::common::run::until;
use crate::common::{Cmd, HUGELIFT, Held, fat};
use crate::files::{Data, User, attached};
use crate::{need, need_root, skip};
use hugelift_core::addr::PageSize;
use hugelift_linux::proc::reservation::Reservation;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Bytes of a data file, whose end is in no whole huge page.
const DATA: u64 = (8 << 20) + 12_345 * 8;
const HUGE: u64 = 2 << 20;
/// Makes all words of it different.
const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

/// The result of priming.
#[derive(Debug)]
struct Result {
    whole: u64,
    huge: u64,
    reasons: Vec<String>,
}

/// Copies a program to `dir`.
fn victim(dir: &Path) -> PathBuf {
    let path = dir.join("victim");
    let built = fat("hold").flags(&["-no-pie", "-fno-pie"]).build();
    run(&["cp", built.to_str().unwrap(), path.to_str().unwrap()]);
    path
}

/// Primes a file, and asserts that the report is consistent.
fn primed(name: &str, path: &Path) -> Result {
    let out = Cmd::new([HUGELIFT, "prime", "--json", path.to_str().unwrap()]).bare();
    let report: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let file = &report["files"][0];
    let number = |key: &str| file[key].as_u64().unwrap();
    let segments = file["segments"].as_array().unwrap();
    let obstacles = segments.iter().flat_map(|s| s["obstacles"].as_array().unwrap());
    let reasons = obstacles.filter(|o| o["bytes"] != 0).map(|o| o["detail"].as_str().unwrap().to_string());
    let result =
        Result { whole: number("whole_bytes"), huge: number("huge_bytes"), reasons: reasons.collect() };
    println!("{name}: {} of {} kB huge {:?}", result.huge >> 10, result.whole >> 10, result.reasons);
    assert_eq!(result.huge == result.whole, out.end == crate::common::End::Code(0), "{out:?}");
    assert_eq!(result.reasons.is_empty(), result.huge == result.whole, "{report:#}");
    assert!(result.whole > 0, "{report:#}");
    result
}

/// Primes the program, runs it, and asserts that it sees what was reported.
fn try_on(name: &str, program: &Path) -> Result {
    let result = primed(name, program);
    // The mappings of the running program, which has touched all its bytes in its check.
    let held = Held::start(&Cmd::new([program]), None, program);
    let of_file = smaps(held.pid()).into_iter().filter(|u| u.mapping.path == program);
    let seen: u64 = of_file.map(|u| u.file_huge + u.shmem_huge).sum();
    assert_eq!(seen, result.huge, "{result:?}");
    let outcome = held.finish();
    assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n");
    shared_from(name, program, result.whole);
    result
}

/// Whatever the program's file system is, the first start puts a copy of it into the store, and the
/// second start uses that copy.
fn shared_from(name: &str, program: &Path, whole: u64) {
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let store = dir.path().join("store");
    let cmd = Cmd::new([program]).env("HUGELIFT_STORE", &store);
    // Not the record: the second start writes it anew if the file was too young for the first one.
    let copies = || {
        let files = fs::read_dir(&store).unwrap().map(|e| e.unwrap().metadata().unwrap());
        files.filter(|file| file.len() >= whole).map(|file| file.ino()).collect()
    };
    let mut before: Vec<u64> = vec![];
    for start in ["first", "second"] {
        let held = Held::start(&cmd, Some(&["--backing", "shared"]), program);
        let of_store = smaps(held.pid()).into_iter().filter(|u| u.mapping.path.starts_with(&store));
        let huge: u64 = of_store.map(|u| u.shmem_huge).sum();
        assert_eq!(huge, whole, "{name}: {start} start");
        let outcome = held.finish();
        assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n", "{name}: {start} start");
        assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{name}: {start} start");
        let now: Vec<u64> = copies();
        assert!(!now.is_empty(), "{name}: {start} start");
        assert!(start == "first" || now == before, "{name}: the copy was made again");
        before = now;
    }
    println!("{name}: {} kB from the store", whole >> 10);
}

/// Primes a data file there, and asserts that a program that maps it sees what was reported, and the file's bytes; then that what is
/// written is seen by all.
fn data_on(name: &str, dir: &Path) -> Result {
    let path = dir.join("data");
    let mut words: Vec<u8> = (0..DATA / 8).flat_map(|n| n.wrapping_mul(PRIME).to_le_bytes()).collect();
    fs::write(&path, &words).unwrap();
    let result = primed(name, &path);
    let whole: u64 = DATA.next_multiple_of(HUGE) - HUGE;
    assert_eq!(result.whole, whole, "{result:?}");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mapped = Mapped::new(&file);
    assert!(mapped.bytes() == words, "{name}: a mapping shows other bytes");
    assert_eq!(mapped.huge(), result.huge, "{result:?}");
    for at in (0..DATA as usize - 16).step_by(131_071) {
        words[at..at + 16].fill(0x5a);
        file.write_all_at(&[0x5a; 16], at as u64).unwrap();
    }
    assert!(mapped.bytes() == words && fs::read(&path).unwrap() == words, "{name}: what is written is seen");
    fs::remove_file(&path).unwrap();
    result
}

/// A shared mapping of the data file, whose address is congruent.
struct Mapped {
    _reserved: Reservation,
    start: usize,
}

impl Mapped {
    fn new(file: &fs::File) -> Mapped {
        let mut reserved = Reservation::new(DATA as usize, PageSize::MB2).unwrap();
        let prot = libc::PROT_READ;
        let at = reserved.map_file(0, DATA as usize, prot, libc::MAP_SHARED, file, 0).unwrap();
        Mapped { start: at.addr(), _reserved: reserved }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it is mapped as long as the reservation lives, and the file keeps its length.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, DATA as usize) }
    }

    /// Returns the bytes that are mapped huge, after all were read.
    fn huge(&self) -> u64 {
        let own = smaps(std::process::id());
        let found = own.into_iter().find(|usage| usage.mapping.range.start.0 == self.start as u64);
        found.map(|usage| usage.file_huge + usage.shmem_huge).unwrap()
    }
}

/// On every kernel either all is huge, or the report has the reason.
fn on_image(kind: &'static str) {
    need_root!();
    let mkfs = format!("mkfs.{kind}");
    need!(&mkfs);
    if !kernel_has(kind) {
        skip!("the kernel has no {kind}");
    }
    with_own_mounts(move || {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = image(dir.path(), kind);
        let result = try_on(kind, &victim(&at));
        let no = format!("no huge pages from its file system ({kind})");
        for result in [result, data_on(&format!("{kind}, data"), &at)] {
            assert!(result.huge == result.whole || result.reasons.iter().all(|r| *r == no), "{result:?}");
        }
        // While a process uses one: it is not blamed for what the file system does not have.
        let data = Data::within(&at);
        let user = User::new("shared", &data.path);
        let (file, _) = attached(&user, &data.path, &[]);
        println!("{kind}, data in use: {} of {}", file["huge_bytes"], file["whole_bytes"]);
        assert!(file["huge_bytes"] == file["whole_bytes"] || file.to_string().contains(&no), "{file:#}");
        user.finish();
    });
}

#[test]
fn ext4_in_a_loop_mounted_image() {
    on_image("ext4");
}

#[test]
fn xfs_in_a_loop_mounted_image() {
    on_image("xfs");
}

#[test]
fn btrfs_in_a_loop_mounted_image() {
    on_image("btrfs");
}

#[test]
fn tmpfs() {
    need_root!();
    with_own_mounts(|| {
        let dir = TempDir::new().unwrap();
        for (name, options) in [("plain", "size=64M"), ("huge", "size=64M,huge=always")] {
            let at = dir.path().join(name);
            fs::create_dir(&at).unwrap();
            mount(&["-t", "tmpfs", "-o", options, "none", at.to_str().unwrap()]);
            let result = try_on(&format!("tmpfs, {options}"), &victim(&at));
            // Without huge=always the file becomes huge only by MADV_COLLAPSE, since Linux 6.1.
            let may_fail = name == "plain" && !collapses();
            for result in [result, data_on(&format!("tmpfs, {options}, data"), &at)] {
                assert!(result.huge == result.whole || may_fail, "{result:?}");
            }
        }
    });
}

/// Returns whether the kernel knows `MADV_COLLAPSE`.
fn collapses() -> bool {
    // SAFETY: madvise(2) of no byte at all.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) == 0 }
}

/// What answers the kernel is a process, as for sshfs, or for the files of many containers without root.
#[test]
fn issue_32_fuse() {
    need_root!();
    need!("bindfs");
    if !kernel_has("fuse") {
        skip!("the kernel has no FUSE");
    }
    with_own_mounts(|| {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let [below, at] = ["below", "at"].map(|name| dir.path().join(name));
        [&below, &at].iter().for_each(|d| fs::create_dir(d).unwrap());
        let mut server = Command::new("bindfs").arg("-f").args([&below, &at]).spawn().unwrap();
        let device = |of: &Path| fs::metadata(of).unwrap().dev();
        until("bindfs", || device(&at) != device(&below));
        let tried = std::panic::catch_unwind(|| {
            for result in [try_on("fuse", &victim(&at)), data_on("fuse, data", &at)] {
                let is_fuse = |why: &String| why.starts_with("no huge pages from its file system (fuse");
                assert!(result.huge == result.whole || result.reasons.iter().all(is_fuse), "{result:?}");
            }
        });
        run(&["umount", at.to_str().unwrap()]);
        server.wait().unwrap();
        tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// What containers use: a program in the lower layer of the image, and one that was copied up.
#[test]
fn overlayfs_over_ext4() {
    need_root!();
    need!("mkfs.ext4");
    if !kernel_has("overlay") {
        skip!("the kernel has no overlayfs");
    }
    with_own_mounts(|| {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ext4 = image(dir.path(), "ext4");
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| ext4.join(name));
        [&lower, &upper, &work].iter().for_each(|d| fs::create_dir(d).unwrap());
        let below = victim(&lower);
        let at = dir.path().join("merged");
        fs::create_dir(&at).unwrap();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        mount(&["-t", "overlay", "-o", &options, "overlay", at.to_str().unwrap()]);
        let through = try_on("overlay, lower layer", &at.join("victim"));
        // Both paths share one page cache, so the file of the lower layer is huge as well.
        let direct = try_on("ext4 under it", &below);
        assert_eq!(through.huge, direct.huge);
        fs::rename(at.join("victim"), at.join("renamed")).unwrap();
        let upper = try_on("overlay, upper layer", &victim(&at));
        assert_eq!(upper.huge, direct.huge);
        let direct = data_on("ext4 under it, data", &ext4);
        assert_eq!(data_on("overlay, data", &at).huge, direct.huge);
    });
}

#[test]
fn a_full_disk() {
    need_root!();
    need!("mkfs.ext4");
    with_own_mounts(|| {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = image(dir.path(), "ext4");
        let program = victim(&at);
        let mut full = Command::new("dd");
        let full =
            full.args(["if=/dev/zero", "bs=1M", "status=none"]).arg(format!("of={}/rest", at.display()));
        assert!(!full.output().unwrap().status.success(), "the disk has no end");
        let result = try_on("ext4, full", &program);
        assert!(
            result.huge == result.whole || result.reasons.iter().all(|r| r.contains("(ext4)")),
            "{result:?}"
        );
    });
}

#[test]
fn a_mount_that_forbids_to_run_programs() {
    need_root!();
    with_own_mounts(|| {
        let dir = TempDir::new().unwrap();
        let name = dir.path().to_str().unwrap();
        mount(&["-t", "tmpfs", "-o", "size=64M,noexec,huge=always", "none", name]);
        let program = victim(dir.path());
        let out = Cmd::new([HUGELIFT, "prime", program.to_str().unwrap()]).bare();
        assert_eq!(out.end, crate::common::End::Code(0), "{out:?}");
    });
}
