// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift prime --replace` and `--restore`: the copy that replaces a file is equal to it in
//! every way that matters, and a file that has no such copy is left alone.

use crate::common::{Cmd, End, HUGELIFT, Held, Victim, fat, fits, huge::smaps};
use crate::{need_root, skip};
use hugelift_relink::align::verify;
use serde_json::Value;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

/// A program whose segments are congruent.
pub(crate) fn congruent() -> Victim {
    fat("hold").flags(&["-no-pie", "-Wl,-z,max-page-size=0x1000"])
}

/// A program whose text is some pages off, as lld lays it out.
pub(crate) fn skewed() -> Victim {
    congruent().flags(&["-Wl,-Ttext=0x1003000"])
}

/// A program for fixed addresses whose code begins on the edge of a huge page, with the file header, and is followed by
/// data: its edges cannot move.
fn unmovable() -> Victim {
    congruent().flags(&["-Wl,-z,noseparate-code", "-Wl,-Ttext-segment=0x1000000"])
}

/// A copy of a victim in its own directory.
pub(crate) struct Place {
    pub dir: tempfile::TempDir,
    pub file: PathBuf,
}

impl Place {
    pub fn new(victim: &Victim) -> Place {
        Place::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), victim)
    }

    pub fn new_in(parent: &Path, victim: &Victim) -> Place {
        let dir = tempfile::tempdir_in(parent).expect("a directory");
        let file = dir.path().join("program");
        crate::common::cache::copy(victim.build(), &file);
        Place { dir, file }
    }

    pub fn kept(&self) -> PathBuf {
        self.dir.path().join(".program.hugelift-orig")
    }

    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("list");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    }

    /// Runs `prime --replace` on the file. Returns its output and the report on the file.
    pub fn replace(&self, options: &[&str]) -> (Output, Value) {
        let out = prime(&[&["--replace", "--json"], options].concat(), &self.file);
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let file = report["files"][0].clone();
        (out, file)
    }

    /// Checks that the file is not replaced, that the report says why, and that nothing has changed.
    fn untouched(&self, options: &[&str], why: &str) {
        let before = (fs::read(&self.file).expect("read"), stamp(&self.file), self.names());
        let (out, report) = self.replace(options);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let said = report["not_replaced"].as_str().unwrap_or_else(|| panic!("{report:#}"));
        assert!(said.contains(why), "{said}");
        let after = (fs::read(&self.file).expect("read"), stamp(&self.file), self.names());
        assert!(before == after, "{why}: {:?}, was {:?}", (&after.1, &after.2), (&before.1, &before.2));
    }
}

pub(crate) fn prime(options: &[&str], file: &Path) -> Output {
    Command::new(HUGELIFT).arg("prime").args(options).arg(file).output().expect("hugelift")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns inode, mode, owner, group, links, and seconds and nanoseconds of the last modification.
pub(crate) fn stamp(path: &Path) -> (u64, u32, u32, u32, u64, i64, i64) {
    let m = fs::metadata(path).expect("stat");
    (m.ino(), m.mode(), m.uid(), m.gid(), m.nlink(), m.mtime(), m.mtime_nsec())
}

/// Returns whether this file system has huge pages in the page cache, which a congruent file gets.
pub(crate) fn can() -> bool {
    let place = Place::new(&congruent());
    let out = prime(&["--json"], &place.file);
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    report["files"][0]["huge_bytes"].as_u64() > Some(0)
}

fn mapped_huge(held: &Held, path: &Path) -> u64 {
    smaps(held.pid()).iter().filter(|u| u.mapping.path == path).map(|u| u.file_huge).sum()
}

#[test]
fn a_text_that_is_not_congruent_gets_its_huge_pages_and_can_go_back() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&skewed());
    let (old, inode) = (fs::read(&place.file).expect("read"), stamp(&place.file).0);
    let (out, report) = place.replace(&[]);
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    let wanted = report["whole_bytes"].as_u64().expect("bytes");
    assert!(wanted >= 8 << 20 && report["huge_bytes"] == wanted, "{report:#}");
    assert_eq!(report["replaced"]["original"].as_str(), place.kept().to_str());
    assert!(text(&out.stderr).contains("debsums"), "{out:?}");
    assert_eq!(place.names(), [".program.hugelift-orig", "program"]);
    assert_eq!(verify(&old, &fs::read(&place.file).expect("read")), Ok(()));
    let held = Held::start(&Cmd::new([&place.file]), None, &place.file);
    assert_eq!(mapped_huge(&held, &place.file), wanted);
    assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
    // A second run finds nothing to do.
    let (out, report) = place.replace(&[]);
    assert_eq!((out.status.code(), &report["replaced"]), (Some(0), &Value::Null), "{report:#}");
    let out = prime(&["--restore"], &place.file);
    assert!(out.status.success() && text(&out.stderr).contains("the original is back"), "{out:?}");
    assert_eq!((stamp(&place.file).0, place.names()), (inode, vec!["program".to_string()]));
    let out = prime(&["--restore"], &place.file);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("was not replaced by hugelift"), "{out:?}");
}

/// A program whose code has a whole huge page only if it is separated.
#[test]
fn code_without_a_whole_huge_page_is_separated_and_can_go_back() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&fat("hold").size(1 << 20));
    let (old, inode) = (fs::read(&place.file).expect("read"), stamp(&place.file).0);
    let out = prime(&["--json"], &place.file);
    let before: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(before["files"][0]["whole_bytes"], 0, "{before:#}");
    let (out, report) = place.replace(&["--separate"]);
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    let wanted = report["whole_bytes"].as_u64().expect("bytes");
    assert!(wanted >= 2 << 20 && report["huge_bytes"] == wanted, "{report:#}");
    assert_eq!(report["replaced"]["original"].as_str(), place.kept().to_str());
    assert_eq!(place.names(), [".program.hugelift-orig", "program"]);
    assert!(fs::read(place.kept()).expect("read") == old && stamp(&place.kept()).0 == inode);
    assert!(verify(&old, &fs::read(&place.file).expect("read")).is_err(), "its addresses moved");
    let held = Held::start(&Cmd::new([&place.file]), None, &place.file);
    assert_eq!(mapped_huge(&held, &place.file), wanted);
    assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
    // A second run finds nothing to do.
    let copy = stamp(&place.file);
    let (out, report) = place.replace(&["--separate"]);
    assert_eq!((out.status.code(), &report["replaced"]), (Some(0), &Value::Null), "{report:#}");
    assert_eq!((&report["not_replaced"], stamp(&place.file)), (&Value::Null, copy), "{report:#}");
    let out = prime(&["--restore"], &place.file);
    assert!(out.status.success() && text(&out.stderr).contains("the original is back"), "{out:?}");
    assert_eq!((stamp(&place.file).0, place.names()), (inode, vec!["program".to_string()]));
    assert!(fs::read(&place.file).expect("read") == old);
}

/// A dry run changes nothing, and says what each file and all together gain and take.
#[test]
fn a_dry_run_says_what_a_set_of_files_would_gain_and_take() {
    let [small, fixed] = [Place::new(&fat("hold").size(1 << 20)), Place::new(&unmovable())];
    let before = [stamp(&small.file), stamp(&fixed.file)];
    let plan = |more: &[&str]| {
        let mut command = Command::new(HUGELIFT);
        command.args(["prime", "--replace", "--separate", "--dry-run"]).args(more);
        let out = command.args([&small.file, &fixed.file]).output().expect("hugelift");
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        text(&out.stdout)
    };
    let json: Value = serde_json::from_str(&plan(&["--json"])).expect("JSON");
    fits("prime-plan", &json);
    let [first, second] = [&json["files"][0], &json["files"][1]];
    let number = |of: &Value, name: &str| of[name].as_u64().expect("a number");
    assert_eq!((number(first, "huge_bytes_before"), number(first, "huge_bytes_after") % (2 << 20)), (0, 0));
    let content = number(first, "huge_bytes_after") - number(first, "padding_in_huge_bytes");
    assert!(content >= 1 << 20, "{json:#}");
    assert!(second["not_separated"].as_str().is_some_and(|why| why.contains("fixed addresses")), "{json:#}");
    for name in ["huge_bytes_before", "huge_bytes_after", "padding_in_huge_bytes"] {
        assert_eq!(json["totals"][name], first[name], "{json:#}");
    }
    let said = plan(&[]);
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.contains("1 of 2 files: ") && said.contains("one copy a machine"), "{said}");
    assert_eq!([stamp(&small.file), stamp(&fixed.file)], before);
    assert_eq!((small.names(), fixed.names()), (vec!["program".to_string()], vec!["program".to_string()]));
}

/// The loader runs as nobody, who cannot read the file.
#[test]
fn a_separated_copy_that_was_not_compared_as_loaded_is_announced() {
    need_root!();
    let place = Place::new(&fat("hold").size(1 << 20));
    fs::set_permissions(&place.file, Permissions::from_mode(0o700)).expect("chmod");
    let (out, report) = place.replace(&["--separate"]);
    assert!(report["replaced"].is_object(), "{out:?} {report:#}");
    let said = text(&out.stderr);
    assert!(
        said.contains("was not compared: the user nobody, who is to load it, cannot read the file"),
        "{said}"
    );
    assert_eq!(stamp(&place.file).1 & 0o7777, 0o700);
}

/// Addresses of a program for fixed ones cannot move, but its offsets and the edges of its code can.
#[test]
fn a_program_for_fixed_addresses_is_separated_as_far_as_its_edges_allow() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&skewed());
    let old = fs::read(&place.file).expect("read");
    let before = Cmd::new([&place.file]).bare();
    let plain = place.replace(&[]).1["whole_bytes"].as_u64().expect("a number");
    assert!(prime(&["--restore"], &place.file).status.success());
    let (out, report) = place.replace(&["--separate"]);
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    assert!(report["replaced"].is_object() && report["huge_bytes"] == report["whole_bytes"], "{report:#}");
    assert!(report["whole_bytes"].as_u64() > Some(plain), "{report:#}");
    let after = Cmd::new([&place.file]).bare();
    assert_eq!((after.end, after.stdout), (before.end, before.stdout));
    assert!(prime(&["--restore"], &place.file).status.success());
    assert!(fs::read(&place.file).expect("read") == old);
}

#[test]
fn what_cannot_be_separated_is_primed_as_without_the_option() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&unmovable());
    let (out, report) = place.replace(&["--separate"]);
    assert_eq!((out.status.code(), &report["replaced"]), (Some(0), &Value::Null), "{report:#}");
    let why = report["not_separated"].as_str().unwrap_or_else(|| panic!("{report:#}"));
    assert!(why.contains("it is linked for fixed addresses"), "{why}");
    assert_eq!(report["huge_bytes"], report["whole_bytes"], "{report:#}");
}

#[test]
fn a_file_in_use_is_replaced_under_those_who_use_it() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&congruent());
    // The file was just written, so it is in small pages, and is started at once.
    let held = Held::start(&Cmd::new([&place.file]), None, &place.file);
    let out = prime(&["--check"], &place.file);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let inode = stamp(&place.file).0;
    let (out, report) = place.replace(&[]);
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    assert!(report["replaced"].is_object() && report["huge_bytes"] == report["whole_bytes"], "{report:#}");
    assert_ne!(stamp(&place.file).0, inode);
    assert_eq!(stamp(&place.kept()).0, inode);
    // The running process keeps the old file.
    let exe = fs::metadata(format!("/proc/{}/exe", held.pid())).expect("stat");
    assert_eq!(exe.ino(), inode);
    assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
    let bare = Cmd::new([&place.file]).bare();
    assert_eq!((bare.end, bare.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"));
}

#[test]
fn a_program_at_a_random_base_is_replaced_by_one_at_an_aligned_base() {
    if !can() {
        skip!("this file system has no huge pages in the page cache");
    }
    let place = Place::new(&fat("hold").flags(&["-Wl,-z,max-page-size=0x1000"]));
    let (out, report) = place.replace(&[]);
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["replaced"]["aslr_bits_lost"], &report["random_base"]), (&9.into(), &false.into()));
    let held = Held::start(&Cmd::new([&place.file]), None, &place.file);
    assert_eq!(report["whole_bytes"], mapped_huge(&held, &place.file));
}

#[test]
fn owner_mode_attributes_and_times_are_kept() {
    need_root!();
    let place = Place::new(&skewed());
    let day = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    chown(&place.file, Some(1234), Some(5678)).expect("chown");
    fs::set_permissions(&place.file, Permissions::from_mode(0o751)).expect("chmod");
    // An access control list: user::rwx, user 42: r-x, group::r-x, mask::r-x, other::--x
    let entry = |tag: u16, perm: u16, id: u32| {
        [tag.to_le_bytes().to_vec(), perm.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()].concat()
    };
    let none = u32::MAX;
    let list =
        [entry(1, 7, none), entry(2, 5, 42), entry(4, 5, none), entry(16, 5, none), entry(32, 1, none)];
    let acl = [2_u32.to_le_bytes().to_vec(), list.concat()].concat();
    let attributes: [(&str, &[u8]); 2] = [("user.note", b"mine\0"), ("system.posix_acl_access", &acl)];
    for (name, value) in attributes {
        if let Err(e) = xattr::set(&place.file, name, value) {
            skip!("this file system cannot have {name}: {e}");
        }
    }
    // The folder gives new files a default list, which the copy must not have.
    let default = [2_u32.to_le_bytes().to_vec(), list.concat()].concat();
    xattr::set(place.dir.path(), "system.posix_acl_default", &default).expect("a default list");
    let times = FileTimes::new().set_accessed(day).set_modified(day);
    File::open(&place.file).expect("open").set_times(times).expect("utimes");
    let names = |path: &Path| {
        let mut names: Vec<_> = xattr::list(path).expect("list").collect();
        names.sort();
        names
    };
    let (before, had) = (stamp(&place.file), names(&place.file));
    let (out, report) = place.replace(&[]);
    assert!(report["replaced"].is_object(), "{out:?}");
    let after = stamp(&place.file);
    assert_eq!(
        (after.1, after.2, after.3, after.5, after.6),
        (before.1, before.2, before.3, before.5, before.6)
    );
    assert_eq!(names(&place.file), had);
    for (name, value) in attributes {
        assert_eq!(xattr::get(&place.file, name).expect(name).as_deref(), Some(value), "{name}");
    }
    // The copy of a file without a list has none.
    let plain = Place::new(&skewed());
    xattr::set(plain.dir.path(), "system.posix_acl_default", &default).expect("a default list");
    let had = names(&plain.file);
    assert!(plain.replace(&[]).1["replaced"].is_object());
    assert_eq!(names(&plain.file), had);
}

#[test]
fn what_has_no_equal_copy_is_left_alone() {
    let place = Place::new(&skewed());
    let mode = |mode| fs::set_permissions(&place.file, Permissions::from_mode(mode)).expect("chmod");
    mode(0o4755);
    place.untouched(&[], "is set-uid or set-gid");
    mode(0o2755);
    place.untouched(&[], "is set-uid or set-gid");
    mode(0o755);
    let second = place.dir.path().join("second");
    fs::hard_link(&place.file, &second).expect("link");
    place.untouched(&[], "has 2 names (hard links)");
    fs::remove_file(second).expect("unlink");
    if xattr::set(&place.file, "security.ima", b"\x01hash").is_ok() {
        place.untouched(&[], "signed or measured (IMA)");
        xattr::remove(&place.file, "security.ima").expect("remove");
    }
    // An archive after the end of the ELF part would get another offset.
    let whole = fs::read(&place.file).expect("read");
    fs::write(&place.file, [&whole[..], b"PK\x03\x04"].concat()).expect("write");
    place.untouched(&[], "behind the end of its ELF part");
    fs::write(&place.file, whole).expect("write");
    assert!(place.replace(&[]).1["replaced"].is_object(), "not replaced without the archive");
}

#[test]
fn a_file_that_is_being_written_is_left_alone() {
    let place = Place::new(&skewed());
    let writer = File::options().append(true).open(&place.file).expect("open");
    place.untouched(&[], "being written");
    drop(writer);
    assert!(place.replace(&[]).1["replaced"].is_object(), "not replaced without the writer");
}

#[test]
fn the_users_own_check_decides() {
    let place = Place::new(&skewed());
    // Only the copy has a name that begins with a dot.
    let differs = "case {} in */.program*) echo copy;; *) echo file;; esac";
    place.untouched(&["--try", differs], "writes another stdout");
    place.untouched(
        &["--try", "case {} in */.program*) exit 3;; esac"],
        "exit status: 3 instead of exit status: 0",
    );
    let (out, report) = place.replace(&["--try", "{} </dev/null"]);
    assert!(report["replaced"].is_object(), "{out:?} {report:#}");
}

#[test]
fn of_two_that_replace_a_file_one_does_and_the_original_stays() {
    let place = Place::new(&skewed());
    let before = fs::read(&place.file).expect("read");
    for _ in 0..6 {
        // Both come to their last steps at the same time.
        let begin = || {
            let mut prime = Command::new(HUGELIFT);
            prime.args(["prime", "--replace", "--json", "--try", "sleep 0.3"]).arg(&place.file);
            prime.stdout(Stdio::piped()).spawn().expect("hugelift")
        };
        let both = [begin(), begin()].map(|child| child.wait_with_output().expect("its end"));
        let reports =
            both.map(|out| serde_json::from_slice::<Value>(&out.stdout).expect("JSON")["files"][0].clone());
        let replaced = reports.iter().filter(|report| report["replaced"].is_object()).count();
        assert!(replaced == 1 && place.kept().exists(), "{reports:#?}");
        let out = prime(&["--restore"], &place.file);
        assert!(out.status.success() && fs::read(&place.file).expect("read") == before, "{out:?}");
        assert_eq!(place.names(), ["program"]);
    }
}

#[test]
fn a_signal_leaves_no_copy() {
    let place = Place::new(&skewed());
    let before = fs::read(&place.file).expect("read");
    let file = place.file.to_str().expect("a path");
    for (signal, number) in [("INT", 2), ("QUIT", 3), ("TERM", 15), ("HUP", 1)] {
        // Only the copy has a name that begins with a dot.
        let command = format!("case {{}} in */.program*) kill -{signal} $PPID; exec sleep 600;; esac");
        let prime = Cmd::new([HUGELIFT, "prime", "--replace", "--try", &command, file]);
        // Whoever runs the tests may ignore some of them, and SIGQUIT would leave a core.
        let done = prime.under(["env", "--default-signal=INT,QUIT,TERM,HUP", "prlimit", "--core=0"]).bare();
        assert_eq!(done.end, End::Signal(number), "{done:?}");
        assert_eq!(place.names(), ["program"], "{signal}");
        assert!(fs::read(&place.file).expect("read") == before, "{signal}");
    }
}

#[test]
fn links_are_followed_and_upgrades_win() {
    let place = Place::new(&skewed());
    let link = place.dir.path().join("link");
    std::os::unix::fs::symlink("program", &link).expect("symlink");
    let out = prime(&["--replace"], &link);
    assert!(text(&out.stdout).contains("replaced by a re-laid copy; the original is"), "{out:?}");
    assert!(fs::symlink_metadata(&link).expect("stat").is_symlink());
    assert!(place.kept().exists() && fs::symlink_metadata(&place.file).expect("stat").is_file());
    // An upgrade: another program of the same name, by rename as package managers do.
    let upgrade = |victim: &Victim| {
        let new = place.dir.path().join("new");
        crate::common::cache::copy(victim.build(), &new);
        fs::rename(new, &place.file).expect("rename");
    };
    upgrade(&skewed().flags(&["-DUPGRADE", "-O2"]));
    let upgraded = fs::read(&place.file).expect("read");
    let out = prime(&["--restore"], &place.file);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("is not, or no longer, a copy of"), "{out:?}");
    assert!(fs::read(&place.file).expect("read") == upgraded);
    // Another replacement keeps the upgrade as the original.
    assert!(place.replace(&[]).1["replaced"].is_object());
    assert!(fs::read(place.kept()).expect("read") == upgraded);
    assert!(prime(&["--restore"], &place.file).status.success());
    assert!(fs::read(&place.file).expect("read") == upgraded);
}

/// A run that was killed between its last two steps has left a second name of the file. The next run
/// accepts it.
#[test]
fn a_run_that_was_killed_is_completed() {
    let place = Place::new(&skewed());
    fs::hard_link(&place.file, place.kept()).expect("link");
    let (out, report) = place.replace(&[]);
    assert!(report["replaced"].is_object(), "{out:?} {report:#}");
    assert_eq!(stamp(&place.kept()).4, 1);
    assert!(prime(&["--restore"], &place.file).status.success());
    fs::hard_link(&place.file, place.kept()).expect("link");
    assert!(prime(&["--restore"], &place.file).status.success());
    assert_eq!(place.names(), ["program"]);
}
