// SPDX-License-Identifier: Apache-2.0
//! Tests of which configuration files are read, in which order, and which are refused.

use super::*;
use hugelift_core::service::policy::Policy;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// A main file's place and a folder of drop-ins.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.at("service.d")).unwrap();
        mode(&place.at("service.d"), 0o755);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, text).unwrap();
        mode(&path, 0o644);
        path
    }

    /// Reads all files. Where the test has written no main file, there is an empty one meanwhile, which is left out.
    fn read(&self) -> Result<Vec<Source>, String> {
        let main = self.at("service.toml");
        let read = || read(&main, &self.at("service.d"));
        if exists(&main) {
            return read();
        }
        self.write("service.toml", "");
        let mut sources = read();
        fs::remove_file(&main).unwrap();
        let _ = sources.as_mut().map(Vec::pop);
        sources
    }

    /// Returns the texts of all files in order.
    fn texts(&self) -> Vec<String> {
        self.read().unwrap().into_iter().map(|source| source.text).collect()
    }

    /// Returns the error, which is one line.
    fn error(&self) -> String {
        let error = self.read().unwrap_err();
        assert!(!error.chars().any(char::is_control), "{error:?}");
        error
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn issue_33_drop_ins_are_read_first_by_their_names() {
    let place = Place::new();
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nuser = \"root\"\ndo = []\n");
    place.write("service.toml", rule("main"));
    for name in ["b", "a", "10", "9"] {
        place.write(&format!("service.d/{name}.toml"), rule(name));
    }
    for passed_over in [".a.toml", "a.toml~", "README", "a.conf"] {
        place.write(&format!("service.d/{passed_over}"), "?");
    }
    let policy = Policy::parse(&place.read().unwrap()).unwrap();
    let names: Vec<&str> = policy.rules().iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["10", "9", "a", "b", "main"]);
}

#[test]
fn issue_33_what_is_missing() {
    let place = Place::new();
    assert!(place.texts().is_empty());
    let none = place.at("none/service.toml");
    let error = read(&none, &place.at("none/service.d")).unwrap_err();
    let helps = format!("as root: install -D -m 644 /dev/null {}", none.display());
    assert!(error.starts_with("there is no policy /") && error.ends_with(&helps), "{error}");
    place.write("service.d/x.toml", "# x");
    assert_eq!(place.texts(), ["# x"]);
    fs::remove_dir_all(place.at("service.d")).unwrap();
    place.write("service.toml", "# main");
    assert_eq!(place.texts(), ["# main"]);
    // A link that leads nowhere is a mistake.
    fs::remove_file(place.at("service.toml")).unwrap();
    symlink("nowhere", place.at("service.toml")).unwrap();
    assert!(place.error().starts_with("cannot read "));
}

#[test]
fn issue_33_only_bounded_regular_files_of_text_are_read() {
    let place = Place::new();
    let path = place.write("service.d/a\n.toml", vec![b'#'; MOST_BYTES as usize]);
    assert_eq!(place.texts()[0].len() as u64, MOST_BYTES);
    fs::write(&path, vec![b'#'; MOST_BYTES as usize + 1]).unwrap();
    assert!(place.error().ends_with("service.d/a\\n.toml: it has more than 1048576 bytes"));
    fs::write(&path, b"# \xff").unwrap();
    assert!(place.error().ends_with("a\\n.toml: it is not UTF-8 from byte 2 on"));
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, Mode::S_IRUSR).unwrap();
    assert!(place.error().ends_with("it is not a regular file"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(place.error().ends_with("it is not a regular file"));
    fs::remove_dir(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert!(place.error().ends_with("it is not a regular file"));
}

#[test]
fn issue_33_the_drop_ins_are_counted() {
    let place = Place::new();
    for i in 0..MOST_DROP_INS {
        place.write(&format!("service.d/{i}.toml"), "");
    }
    assert_eq!(place.texts().len(), MOST_DROP_INS);
    place.write("service.d/x.toml", "");
    assert!(place.error().ends_with("service.d: it has more than 256 files *.toml"));
}

#[test]
fn issue_33_what_others_can_write_to_is_refused() {
    let place = Place::new();
    let main = place.write("service.toml", "");
    let drop_in = place.write("service.d/x.toml", "");
    for path in [&main, &drop_in, &place.at("service.d"), &place.at("")] {
        let before = fs::metadata(path).unwrap().mode();
        for bits in [0o020, 0o002] {
            mode(path, before | bits);
            let error = place.error();
            assert!(error.contains("others can change it (owner "), "{path:?}: {error}");
            assert!(error.contains(&format!("mode {:04o}", (before | bits) & 0o7777)), "{path:?}: {error}");
        }
        mode(path, before);
        assert_eq!(place.texts().len(), 2);
    }
    // Others may add to a sticky folder, which is enough to command the service.
    mode(&place.at("service.d"), 0o1777);
    assert!(place.error().contains("service.d: others can change it"));
}

#[test]
fn issue_33_what_others_own_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: only root can give a file to another user");
        return;
    }
    let place = Place::new();
    let main = place.write("service.toml", "");
    let drop_in = place.write("service.d/x.toml", "");
    for path in [&main, &drop_in, &place.at("service.d"), &place.at("")] {
        chown(path, Some(4711), None).unwrap();
        let error = place.error();
        assert!(error.contains("others can change it (owner 4711, mode "), "{path:?}: {error}");
        chown(path, Some(0), None).unwrap();
        assert_eq!(place.texts().len(), 2);
    }
}

#[test]
fn issue_33_a_link_is_followed_if_others_cannot_lead_it_elsewhere() {
    let place = Place::new();
    let real = place.write("real", "# real");
    symlink(&real, place.at("service.toml")).unwrap();
    assert_eq!(place.texts(), ["# real"]);
    fs::create_dir(place.at("open")).unwrap();
    symlink(&real, place.at("open/link")).unwrap();
    fs::remove_file(place.at("service.toml")).unwrap();
    symlink("open/link", place.at("service.toml")).unwrap();
    mode(&place.at("open"), 0o755);
    assert_eq!(place.texts(), ["# real"]);
    mode(&place.at("open"), 0o777);
    assert!(place.error().contains("/open: others can change it"));
    if nix::unistd::geteuid().is_root() {
        mode(&place.at("open"), 0o755);
        std::os::unix::fs::lchown(place.at("service.toml"), Some(4711), None).unwrap();
        assert!(place.error().contains("is a symbolic link that user 4711 can change"));
    }
}

#[test]
fn issue_33_a_name_need_not_be_utf8() {
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b"\xff.toml");
    if fs::write(place.at("service.d").join(name), "?").is_err() {
        println!("SKIP: the file system takes no name that is not UTF-8");
        return;
    }
    mode(&place.at("service.d").join(name), 0o644);
    let error = Policy::parse(&place.read().unwrap()).unwrap_err();
    assert!(error.contains("service.d/\\xff.toml: line 1: "), "{error}");
}
