// SPDX-License-Identifier: Apache-2.0
//! The file of metrics in folders of all kinds: of others, read-only, full.

use super::*;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

/// Returns a folder that others cannot write to, and the file in it.
fn folder() -> (TempDir, TextFile) {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    let file = TextFile::new(&folder.path().join("hugelift.prom")).unwrap();
    (folder, file)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn names(folder: &TempDir) -> Vec<OsString> {
    fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn issue_33_the_file_is_replaced_as_a_whole() {
    let (folder, file) = folder();
    file.write("a long first text\n").unwrap();
    let held = File::open(folder.path().join("hugelift.prom")).unwrap();
    file.write("second\n").unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("hugelift.prom")).unwrap(), "second\n");
    assert_eq!(io::read_to_string(held).unwrap(), "a long first text\n");
    assert_eq!(names(&folder), ["hugelift.prom"]);
    let mode = fs::metadata(folder.path().join("hugelift.prom")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o644);
}

#[test]
fn issue_33_what_a_killed_daemon_left_is_replaced() {
    let (folder, file) = folder();
    fs::write(folder.path().join(".hugelift.prom.new"), "half").unwrap();
    file.write("whole\n").unwrap();
    assert_eq!(names(&folder), ["hugelift.prom"]);
}

#[test]
fn issue_33_a_link_in_the_place_of_the_hidden_file_is_not_followed() {
    let (folder, file) = folder();
    let target = folder.path().join("target");
    fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join(".hugelift.prom.new")).unwrap();
    file.write("whole\n").unwrap();
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

#[test]
fn issue_33_a_folder_of_others_is_refused() {
    let (folder, file) = folder();
    for (mode, who) in [(0o775, "its group"), (0o777, "all users"), (0o1777, "all users")] {
        set_mode(folder.path(), mode);
        let error = file.write("text\n").unwrap_err();
        assert!(matches!(error, TextFileError::Folder { .. }), "{error}");
        assert!(error.to_string().contains(&format!("written to by {who}")), "{error}");
        assert_eq!(names(&folder), [""; 0]);
    }
    assert_eq!(other_writer(4_000_000, 0o755), Some("user 4000000".into()));
}

#[test]
fn issue_33_only_files_that_are_read_are_written() {
    let error = TextFile::new(Path::new("/tmp/a\n.txt")).unwrap_err();
    assert!(error.to_string().starts_with("/tmp/a\\n.txt: the name must end with .prom"), "{error}");
}

#[test]
fn issue_33_a_file_that_cannot_be_replaced_leaves_nothing_behind() {
    let (folder, file) = folder();
    fs::create_dir(folder.path().join("hugelift.prom")).unwrap();
    let error = file.write("text\n").unwrap_err();
    assert!(matches!(error, TextFileError::Write { .. }), "{error}");
    assert_eq!(names(&folder), ["hugelift.prom"]);
}

#[test]
fn issue_33_a_missing_folder_is_an_error() {
    let file = TextFile::new(Path::new("/nonexistent/folder/a.prom")).unwrap();
    let error = file.write("text\n").unwrap_err().to_string();
    assert!(error.starts_with("cannot write /nonexistent/folder/a.prom: No such file"), "{error}");
}

/// A tmpfs that is unmounted when it is dropped.
struct Disk(TempDir);

impl Disk {
    fn new(options: &str) -> Option<Disk> {
        let (folder, _) = folder();
        let disk = Disk(folder);
        disk.run(&["mount", "-t", "tmpfs", "-o", options, "tmpfs"]).then_some(disk)
    }

    fn run(&self, words: &[&str]) -> bool {
        let mut command = Command::new(words[0]);
        let output = command.args(&words[1..]).arg(self.0.path()).output();
        output.is_ok_and(|output| output.status.success())
    }

    fn file(&self) -> TextFile {
        TextFile::new(&self.0.path().join("hugelift.prom")).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.run(&["umount", "-l"]);
    }
}

#[test]
fn issue_33_a_full_or_read_only_disk_is_an_error() {
    let Some(disk) = Disk::new("size=64k,mode=755") else {
        println!("SKIP: no file system can be mounted here");
        return;
    };
    let file = disk.file();
    file.write("small\n").unwrap();
    let error = file.write(&"a long text\n".repeat(20_000)).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(names(&disk.0), ["hugelift.prom"]);
    assert_eq!(fs::read_to_string(disk.0.path().join("hugelift.prom")).unwrap(), "small\n");
    assert!(disk.run(&["mount", "-o", "remount,ro"]));
    let error = file.write("small\n").unwrap_err().to_string();
    assert!(error.contains("Read-only file system"), "{error}");
    assert_eq!(names(&disk.0), ["hugelift.prom"]);
}
