// SPDX-License-Identifier: Apache-2.0
//! Tests that copies that are damaged, planted or out of date are not used.

use super::*;
use crate::common::build::value;
use crate::{need_root, skip};

/// Changes the file of an entry, which only its owner can do.
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

/// Returns the offset of constant number `i` in the file of a fat program.
fn constant(file: &[u8], i: u32) -> usize {
    let four: Vec<u8> = (i..i + 4).flat_map(|i| value(i).to_le_bytes()).collect();
    file.windows(16).position(|w| w == four).expect("its constants")
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
        // The entry was made again.
        assert_eq!(shelf.run(&["verify"]).0, Some(0), "{what}");
    }
}

/// A store through a mapping does not update the file's times. `store verify` reads every byte and finds it.
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
    assert_eq!(times(), before, "this kernel updates the times");
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
    // The store, or its parent, is a link to another directory.
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
    // The store or its parent belongs to another user, or others can write to it.
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

    // Files in the store with the right names and the wrong type, owner or mode.
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
        ("entry of another user", &|| chown(&entry, Some(65534), None).unwrap()),
        ("entry can be written", &|| fs::set_permissions(&entry, Permissions::from_mode(0o666)).unwrap()),
        ("record is a link", &|| {
            fs::write(target.path(), &json).unwrap();
            fs::remove_file(&record).unwrap();
            symlink(target.path(), &record).unwrap();
        }),
        ("record of another user", &|| chown(&record, Some(65534), None).unwrap()),
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
    assert_eq!(fs::read(target.path()).unwrap(), json, "the target of a link was changed");
}

/// A program gets other bytes under the same name: another file is renamed over it, it is written over,
/// and it is changed and its modification time restored. This is tried on a disk and on a tmpfs, whose
/// times show less.
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
        crate::common::cache::copy(&other, &next);
        fs::rename(&next, &program).unwrap();
        shared("renamed over");
        fs::write(&program, fs::read(victim("sums")).unwrap()).unwrap();
        shared("written over");
        let times = fs::metadata(&program).unwrap();
        let mut bytes = fs::read(&program).unwrap();
        let word = constant(&bytes, 700_000);
        bytes[word] ^= 1;
        fs::write(&program, &bytes).unwrap();
        assert!(cmd.bare().stdout.ends_with("wrong 1\n"), "{place}: the program does not see the bit");
        let file = fs::File::options().write(true).open(&program).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
        drop(file);
        shared("one bit changed, modification time restored");
        // `store gc` drops the entries of files that are gone.
        drop(dir);
        let (status, told) = shelf.run(&["gc"]);
        assert!(status == Some(0) && told.contains("dropped"), "{told}");
        assert_eq!(shelf.names(), Vec::<String>::new(), "{told}");
    }
}
