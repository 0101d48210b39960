// SPDX-License-Identifier: Apache-2.0
//! Suite: `hugelift prime` on the file systems of this machine. The result depends on the kernel,
//! so the tests check that the report is what the program then sees of itself. The lines that start
//! with "prime:" are the source of docs/filesystems.md.

use crate::files::disk;
use crate::grow::{Big, grow_at};
use crate::huge::thp;
use crate::look::From;
use crate::place::{self, alone, hugelift, is_root, lacks};
use crate::start::{bare, run};
use serde_json::Value;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Larger huge pages would fill the disks of a test machine.
const LARGEST: u64 = 32 << 20;

/// Returns a page size that can be tested, or why there is none.
fn page() -> Result<u64, String> {
    let page = thp().ok_or("no transparent huge pages")?;
    if page > LARGEST { Err(format!("huge pages of {} MB", page >> 20)) } else { Ok(page) }
}

fn program(dir: &Path, page: u64) -> Big {
    grow_at(dir, "vm_big.static", [2 * page, page], page)
}

/// Returns the exit status of `hugelift prime`, and the only file of its report.
fn prime(options: &[&str], path: &Path) -> (i32, Value) {
    let out = Command::new(hugelift()).args(["prime", "--json"]).args(options).arg(path).output().unwrap();
    let mut report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    (out.status.code().unwrap(), report["files"][0].take())
}

fn number(file: &Value, key: &str) -> u64 {
    file[key].as_u64().unwrap_or_else(|| panic!("no {key} in {file:#}"))
}

fn reasons(file: &Value) -> Vec<&str> {
    let segments = file["segments"].as_array().unwrap().iter();
    let all = segments.filter(|s| s["whole_bytes"] != 0).flat_map(|s| s["obstacles"].as_array().unwrap());
    all.map(|o| o["reason"].as_str().unwrap()).collect()
}

/// Primes the program and asserts that it sees what was reported. Returns how much of it is huge,
/// and the reasons why the rest is not.
fn primed(what: &str, path: &Path, page: u64) -> (u64, Vec<String>) {
    let (status, file) = prime(&[], path);
    let huge = number(&file, "huge_bytes");
    println!("prime: {what}: {} of 3 pages huge {:?}", huge / page, reasons(&file));
    assert_eq!(number(&file, "whole_bytes"), 3 * page, "{file:#}");
    assert_eq!(status, i32::from(huge < 3 * page), "{file:#}");
    assert_eq!(reasons(&file).is_empty(), huge == 3 * page, "{file:#}");
    let seen = run(&mut bare::<&str>(path, &[]));
    assert_eq!(seen.look().huge_in_all(From::Any), huge, "{file:#}\n{:#x?}", seen.look());
    // Priming once more changes nothing.
    assert_eq!(number(&prime(&[], path).1, "huge_bytes"), huge);
    assert_eq!(number(&prime(&["--check"], path).1, "huge_bytes"), huge);
    (huge, reasons(&file).iter().map(|r| r.to_string()).collect())
}

/// Either all is huge, or the file system has no large folios.
fn on_disk(kind: &str) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    let program = program(&dir, page);
    let (huge, reasons) = primed(&format!("{kind}, just written"), &program.path, page);
    assert!(huge == 3 * page || reasons.iter().all(|r| r == "no-large-folios"), "{reasons:?}");
    let must = ["xfs", "loop"].contains(&kind) || kind == "nfs" && nfs_must();
    assert!(huge == 3 * page || !must, "{kind} must give large folios here: {reasons:?}");
}

#[test]
fn xfs() {
    on_disk("xfs");
}

#[test]
fn ext4() {
    on_disk("ext4");
}

#[test]
fn btrfs() {
    on_disk("btrfs");
}

#[test]
fn nfs() {
    on_disk("nfs");
}

/// NFS was seen to have large folios with this kernel.
fn nfs_must() -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().starts_with("6.12.")
}

/// A data file on NFS has its bytes after it was primed, and after it was written to then.
#[test]
fn issue_32_1_a_data_file_on_nfs() {
    let _alone = alone();
    let Some(dir) = disk("nfs") else { lacks!("no nfs disk") };
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    let folder = tempfile::TempDir::new_in(&dir).unwrap();
    let path = folder.path().join("data");
    let mut words: Vec<u8> =
        (0..3 * page / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(&path, &words).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let (status, file) = prime(&[], &path);
    let huge = number(&file, "huge_bytes");
    println!("prime: nfs, data: {} of 3 pages huge {:?}", huge / page, reasons(&file));
    assert_eq!((status, number(&file, "whole_bytes")), (i32::from(huge < 3 * page), 3 * page), "{file:#}");
    assert!(huge == 3 * page || !nfs_must() && reasons(&file) == ["no-large-folios"], "{file:#}");
    assert!(fs::read(&path).unwrap() == words, "it has other bytes");
    let at = page as usize + 5;
    words[at..at + 3].copy_from_slice(b"new");
    fs::File::options().write(true).open(&path).unwrap().write_all_at(b"new", at as u64).unwrap();
    assert!(fs::read(&path).unwrap() == words, "it has other bytes after a write");
}

#[test]
fn loop_mounted_image() {
    on_disk("loop");
}

#[test]
fn tmpfs() {
    let _alone = alone();
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    let Some(dir) = place::tmpfs() else { lacks!("no tmpfs from which programs may run") };
    let program = program(dir, page);
    // SAFETY: madvise(2) of no byte at all.
    let collapses = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) == 0 };
    let (huge, reasons) = primed("tmpfs", &program.path, page);
    assert!(huge == 3 * page || !collapses, "MADV_COLLAPSE must make tmpfs huge: {reasons:?}");
}

/// A file from which a program runs becomes huge where the kernel can collapse it in place;
/// elsewhere the report says that it is in use.
#[test]
fn in_use() {
    let _alone = alone();
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    for (kind, dir) in ["xfs", "ext4"].into_iter().filter_map(|kind| Some((kind, disk(kind)?))) {
        let program = program(&dir, page);
        let mut held = bare(&program.path, &["collapse"]);
        let mut child = held.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 1];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        let (_, file) = prime(&[], &program.path);
        let (huge, reasons) = (number(&file, "huge_bytes"), reasons(&file));
        println!("prime: {kind}, in use: {} of 3 pages huge {reasons:?}", huge / page);
        assert!(reasons.iter().all(|r| ["in-use", "no-large-folios"].contains(r)), "{file:#}");
        let in_use =
            file["segments"].as_array().unwrap().iter().flat_map(|s| s["obstacles"].as_array().unwrap());
        for obstacle in in_use.filter(|o| o["reason"] == "in-use") {
            assert_eq!(obstacle["holders"][0]["pid"], child.id(), "{file:#}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// With transparent huge pages switched off for the machine. Only in a guest, where nothing else
/// depends on the switch.
#[test]
fn switched_off() {
    const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let _alone = alone();
    let Some(dir) = disk("xfs") else { lacks!("no xfs disk") };
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    let before = fs::read_to_string(SWITCH).unwrap();
    let chosen = before.split(['[', ']']).nth(1).unwrap().to_string();
    let program = program(&dir, page);
    fs::write(SWITCH, "never").unwrap();
    let (_, file) = prime(&[], &program.path);
    let seen = run(&mut bare::<&str>(&program.path, &[]));
    fs::write(SWITCH, chosen).unwrap();
    println!(
        "prime: xfs, enabled=never: {} of 3 pages huge {:?}",
        number(&file, "huge_bytes") / page,
        reasons(&file)
    );
    assert_eq!(seen.look().huge_in_all(From::Any), number(&file, "huge_bytes"), "{file:#}");
}

/// overlayfs, which containers use, where the kernel has it.
#[test]
fn overlay() {
    let _alone = alone();
    let page = match page() {
        Ok(page) => page,
        Err(why) => lacks!("{why}"),
    };
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap();
    if !is_root() || !filesystems.contains("\toverlay\n") {
        lacks!("no overlayfs, or not root");
    }
    for (kind, dir) in ["xfs", "ext4"].into_iter().filter_map(|kind| Some((kind, disk(kind)?))) {
        let base = tempfile::TempDir::new_in(&dir).unwrap();
        let [lower, upper, work, merged] = ["l", "u", "w", "m"].map(|n| base.path().join(n));
        [&lower, &upper, &work, &merged].iter().for_each(|d| fs::create_dir(d).unwrap());
        let big = program(&lower, page);
        let _mounted = Mounted::overlay(&lower, &upper, &work, &merged);
        let inside = merged.join(big.path.strip_prefix(&lower).unwrap());
        let (huge, _) = primed(&format!("overlay over {kind}"), &inside, page);
        assert_eq!(huge, number(&prime(&["--check"], &big.path).1, "huge_bytes"));
    }
}

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn overlay(lower: &Path, upper: &Path, work: &Path, at: &Path) -> Mounted {
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let [options, at_c] = [options, at.display().to_string()].map(|s| CString::new(s).unwrap());
        let kind = c"overlay";
        // SAFETY: mount(2) with strings that live through the call.
        let done =
            unsafe { libc::mount(kind.as_ptr(), at_c.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Mounted(at.to_path_buf())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let at = CString::new(self.0.display().to_string()).unwrap();
        // SAFETY: umount2(2) with a string that lives through the call.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}
