// SPDX-License-Identifier: Apache-2.0
//! Tests that a changed file is never run from an old copy, whatever its times are.

use super::*;
use crate::common::build::{FAT, code_file};
use crate::common::mounts::{image, image_with, kernel_has, mount, with_own_mounts};
use crate::common::open_dir;
use crate::{need, need_root, skip};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant, SystemTime};

/// After this time a file counts as settled: a later change gives it another time.
const SETTLED: Duration = Duration::from_secs(5);
const NOBODY: u32 = 65534;

/// A file mapped shared and writable, as by a program that patches the file.
struct Mapped {
    start: NonNull<c_void>,
    len: NonZeroUsize,
    at: usize,
}

impl Mapped {
    /// Maps a file that contains the code of a fat victim.
    fn new(path: &Path) -> Mapped {
        let bytes = fs::read(path).expect("the file");
        let code = fs::read(code_file(FAT)).expect("the code");
        let middle = &code[FAT / 2..FAT / 2 + 64];
        // After the instructions of a function in the middle.
        let at = bytes.windows(64).position(|w| w == middle).expect("its code") + 40;
        let file = fs::File::options().read(true).write(true).open(path).expect("open");
        let len = NonZeroUsize::new(bytes.len()).expect("not empty");
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: mmap(2) at an address of the kernel's choice.
        let start = unsafe { mmap(None, len, both, MapFlags::MAP_SHARED, &file, 0) }.expect("mmap");
        Mapped { start, len, at }
    }

    /// Changes one byte of the file by a store to memory.
    fn store(&self) {
        // SAFETY: inside the mapping, which is writable; nobody else writes to it.
        unsafe {
            let byte = self.start.as_ptr().cast::<u8>().add(self.at);
            byte.write_volatile(byte.read_volatile() ^ 1);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of what `new` mapped.
        let _ = unsafe { munmap(self.start, self.len.get()) };
    }
}

/// Makes a library with 6 MB of code, and a small program that needs it and compares both with
/// their files.
fn with_library() -> (PathBuf, PathBuf) {
    let flags = ["-DPART=0", "-Wl,-z,max-page-size=0x200000"];
    let library = fat("part").library().flags(&flags).build();
    let program = fat("sums").size(4096).flags(&["-no-pie", "-Wl,--no-as-needed"]).with(library.clone());
    (program.build(), library)
}

/// Starts a program whose library in `dir` already has a dirty page, changes that page, and starts the
/// program again: each start must run the library as it is. The program finds the library in `seen`, and
/// runs as root or as a user who does not own the library. Returns whether the second change updated the
/// file's time.
fn never_stale(name: &str, dir: &Path, seen: &Path, user: u32) -> bool {
    let (program, library) = with_library();
    let open = open_dir(&[&program]);
    let soname = library.file_name().expect("a name");
    let file = dir.join(soname);
    crate::common::cache::copy(&library, &file);
    let shelf = Shelf::new();
    fs::create_dir(&shelf.path).expect("the store");
    chown(&shelf.path, Some(user), None).expect("chown");
    let mut cmd = shelf.cmd([open.path().join(program.file_name().expect("a name"))]);
    cmd = cmd.env("LD_LIBRARY_PATH", seen).launcher(open.path().join("hugelift"));
    if user != 0 {
        cmd = cmd.under(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    let mapped = Mapped::new(&file);
    mapped.store();
    std::thread::sleep(SETTLED);
    let times = || {
        let meta = fs::metadata(&file).expect("stat");
        (meta.ctime(), meta.ctime_nsec())
    };
    assert_same(&cmd.lifted(&SHARED), &format!("{name}, uid {user}: first start"));
    assert_eq!(shelf.record()["path"], seen.join(soname).to_str().unwrap(), "{name}");
    let before = times();
    mapped.store();
    let moved = times() != before;
    assert_same(&cmd.lifted(&SHARED), &format!("{name}, uid {user}: the byte was changed"));
    drop(mapped);
    // From here on the file is not mapped: a later write updates its times.
    assert_same(&cmd.lifted(&SHARED), &format!("{name}, uid {user}: nobody has it mapped"));
    moved
}

/// Tests as root, and as a user who may not see which processes have the file open.
fn never_stale_on(name: &'static str, dir: &Path) {
    std::thread::scope(|scope| {
        let [root, user] = [("root", 0), ("user", NOBODY)].map(|(who, uid)| {
            let own = dir.join(who);
            fs::create_dir(&own).expect("a directory");
            // Tests of several file systems run at the same time, each in its own mount namespace.
            scope.spawn(move || never_stale(name, &own, &own, uid))
        });
        let moved = [root, user].map(|start| start.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        println!("{name}: the second store updates the file's time (root, user): {moved:?}");
        // hugelift calls fsync(2) so that the next store updates the time: the user's start relies on
        // nothing else. On tmpfs it has no such effect, and hugelift knows that. On btrfs a user cannot prove which file is
        // mapped, as maps shows another device than stat(2): all bytes are compared, and no time counts.
        assert_eq!(moved[1], !["tmpfs", "btrfs"].contains(&name), "{name}");
    });
}

fn on_image(kind: &'static str) {
    need_root!();
    let mkfs = format!("mkfs.{kind}");
    need!(&mkfs, "setpriv");
    if !kernel_has(kind) {
        skip!("the kernel has no {kind}");
    }
    with_own_mounts(move || {
        let dir = open_dir(&[]);
        let at = image(dir.path(), kind);
        fs::set_permissions(&at, Permissions::from_mode(0o755)).expect("chmod");
        never_stale_on(kind, &at);
    });
}

#[test]
fn a_store_to_a_dirty_page_is_seen_on_ext4() {
    on_image("ext4");
}

#[test]
fn a_store_to_a_dirty_page_is_seen_on_xfs() {
    on_image("xfs");
}

#[test]
fn a_store_to_a_dirty_page_is_seen_on_btrfs() {
    on_image("btrfs");
}

#[test]
fn a_store_to_a_dirty_page_is_seen_on_tmpfs() {
    need_root!();
    need!("setpriv");
    let dir = TempDir::new_in("/dev/shm").expect("a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
    never_stale_on("tmpfs", dir.path());
}

/// fsync(2) of a file in an overlay does not reach the lower layer.
#[test]
fn a_store_to_a_dirty_page_is_seen_through_an_overlay() {
    need_root!();
    need!("mkfs.ext4", "setpriv");
    if !kernel_has("overlay") {
        skip!("the kernel has no overlayfs");
    }
    with_own_mounts(|| {
        let dir = open_dir(&[]);
        let ext4 = image(dir.path(), "ext4");
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| ext4.join(name));
        [&lower, &upper, &work].iter().for_each(|d| fs::create_dir(d).expect("a directory"));
        let at = dir.path().join("merged");
        fs::create_dir(&at).expect("a directory");
        let words =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        mount(&["-t", "overlay", "-o", &words, "overlay", at.to_str().unwrap()]);
        never_stale("overlay, lower layer", &lower, &at, NOBODY);
    });
}

/// A file changes twice within the granularity of its times: once before the copy is made and once after
/// it. The granularity is a second where inodes of ext4 have 128 bytes.
#[test]
fn two_changes_with_the_same_time_are_seen() {
    need_root!();
    need!("mkfs.ext4");
    with_own_mounts(|| {
        let dir = open_dir(&[]);
        let at = image_with(dir.path(), "ext4", &["-q", "-I", "128"]);
        let path = program(&at, "program");
        let code = fs::read(code_file(FAT)).expect("the code");
        let bytes = fs::read(&path).expect("the program");
        let place = bytes.windows(64).position(|w| w == &code[FAT / 2..FAT / 2 + 64]).expect("its code") + 40;
        let write = |byte: u8| {
            let file = fs::File::options().write(true).open(&path).expect("open");
            file.write_all_at(&[byte], place as u64).expect("write");
            let meta = file.metadata().expect("stat");
            (meta.ctime(), meta.ctime_nsec())
        };
        for _ in 0..40 {
            let shelf = Shelf::new();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the time");
            // The kernel's clock for files lags behind by up to a tick, 10 ms at most.
            let next = Duration::from_nanos(1_000_000_000 - u64::from(now.subsec_nanos()));
            std::thread::sleep(next + Duration::from_millis(20));
            let before = write(1);
            let first = shelf.cmd([&path]).lifted(&SHARED);
            let after = write(2);
            assert_eq!(first.end, End::Code(0), "{first:?}");
            if after != before {
                // The start took more than a second.
                continue;
            }
            std::thread::sleep(SETTLED);
            assert_same(
                &shelf.cmd([&path]).lifted(&SHARED),
                "the first start after a change with the same time",
            );
            assert_same(&shelf.cmd([&path]).lifted(&SHARED), "the second start after it");
            return;
        }
        panic!("no start of forty took less than a second");
    });
}

/// Once the times show every change, one start compares every byte, and later starts compare the times.
#[test]
fn a_file_that_has_settled_is_known_by_its_times() {
    need_root!();
    need!("mkfs.ext4");
    with_own_mounts(|| {
        let dir = open_dir(&[]);
        let at = image(dir.path(), "ext4");
        let start = |shelf: &Shelf, path: &Path, what: &str| {
            assert_same(&shelf.cmd([path]).lifted(&SHARED), what);
            shelf.record()["evidence"].as_str().expect("a word").to_string()
        };
        // The copy is as new as the file: the clock of the file system is coarser than ours.
        let written = (0..5).find_map(|n| {
            let (path, shelf, began) = (program(&at, format!("program{n}")), Shelf::new(), Instant::now());
            let evidence = start(&shelf, &path, "just written");
            // On a busy machine the start may come when the file has settled.
            (evidence == "bytes" || began.elapsed() < SETTLED / 2).then_some((path, shelf, evidence))
        });
        let (path, shelf, evidence) = written.expect("no start of five was soon enough");
        assert_eq!(evidence, "bytes");
        let start = |what: &str| start(&shelf, &path, what);
        std::thread::sleep(SETTLED);
        let entry = shelf.entries()[0]["files"].clone();
        assert_eq!(start("settled"), "times");
        assert_eq!(start("settled"), "times");
        assert_eq!(shelf.entries()[0]["files"], entry, "the copy was made again");
    });
}
