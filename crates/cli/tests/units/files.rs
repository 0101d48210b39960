// SPDX-License-Identifier: Apache-2.0
//! `hugelift wrap` and `hugelift unwrap` of the units of an image: which files they write and remove, and what they refuse.

use crate::common::{Cmd, End, HUGELIFT, Outcome, cache};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const UNIT: &str = "[Unit]\nDescription=A server\n[Service]\nType=notify\nExecStart=-/bin/sh -c true $A\n";
const OF_UNIT: &str = "\n[Service]\nExecStart=\nExecStart=-/usr/bin/hugelift run -- /bin/sh -c true $A\n";
const FOLDER: &str = "etc/systemd/system/server.service.d";

/// The root of an image, with a service named server.
struct Image(TempDir);

impl Image {
    fn new(unit: &str) -> Image {
        let image = Image(TempDir::new().expect("a folder"));
        for program in ["usr/bin/hugelift", "bin/sh"] {
            image.write(program, "");
            fs::set_permissions(image.path(program), fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        image.write("usr/lib/systemd/system/server.service", unit);
        image
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// Runs `hugelift wrap` or `hugelift unwrap`.
    fn does(&self, command: &str, words: &[&str]) -> Outcome {
        let root = self.0.path().to_str().expect("a path");
        Cmd::new([HUGELIFT, command, "--root", root]).args(words).bare()
    }

    fn wraps(&self, words: &[&str]) -> Outcome {
        let done = self.does("wrap", words);
        assert_eq!(done.end, End::Code(0), "{done:?}");
        done
    }

    fn refuses(&self, words: &[&str], says: &str) {
        let done = self.does("wrap", words);
        let is_line = done.stderr.lines().count() == 1 && done.stdout.is_empty();
        assert!(done.end == End::Code(125) && is_line && done.stderr.contains(says), "{done:?}");
        assert!(says.contains("has not") || !self.path(FOLDER).join("60-hugelift.conf").exists(), "{done:?}");
    }
}

#[test]
fn issue_33_a_drop_in_is_written_and_removed() {
    let image = Image::new(UNIT);
    let printed = image.wraps(&["--dry-run", "server"]);
    assert!(printed.stdout.ends_with(OF_UNIT) && !image.path(FOLDER).exists(), "{printed:?}");
    // A strict umask does not hide it from others.
    let under = ["sh", "-c", "umask 077; exec \"$@\"", "sh"];
    let root = image.0.path().to_str().expect("a path");
    let done = Cmd::new([HUGELIFT, "wrap", "--root", root, "server.service"]).under(under).bare();
    let file = image.path(FOLDER).join("60-hugelift.conf");
    assert_eq!(
        (done.end, fs::read_to_string(&file).ok()),
        (End::Code(0), Some(printed.stdout.clone())),
        "{done:?}"
    );
    assert!(done.stdout.starts_with(&format!("wrote {}:\n", file.display())), "{done:?}");
    assert!(done.stderr.contains("--children lift") && !done.stderr.contains("systemctl"), "{done:?}");
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o7777, 0o644);
    assert_eq!(fs::read_dir(image.path(FOLDER)).expect("the folder").count(), 1);

    // Again, with options: the unit itself is wrapped, not what the first drop-in says.
    image.wraps(&["server", "--", "--backing", "thp", "--object", "a b"]);
    let text = fs::read_to_string(&file).expect("the file");
    assert!(
        text.ends_with("=-/usr/bin/hugelift run --backing thp --object \"a b\" -- /bin/sh -c true $A\n"),
        "{text}"
    );

    let done = image.does("unwrap", &["server"]);
    assert!(done.end == End::Code(0) && !image.path(FOLDER).exists(), "{done:?}");
    assert_eq!(done.stdout, format!("removed {}\n", file.display()));
    let done = image.does("unwrap", &["server"]);
    assert!(
        done.end == End::Code(125) && done.stderr.contains("has no drop-in of 'hugelift wrap'"),
        "{done:?}"
    );
}

#[test]
fn issue_33_it_is_behind_the_drop_ins_that_set_the_command_too() {
    let image = Image::new(UNIT);
    image.wraps(&["server"]);
    image.write(
        "etc/systemd/system/server.service.d/override.conf",
        "[Service]\nExecStart=\nExecStart=/bin/sh b\n",
    );
    image.wraps(&["server"]);
    let names = || {
        let entries = fs::read_dir(image.path(FOLDER)).expect("the folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["override.conf", "zz-hugelift.conf"]);
    let text = image.read(&format!("{FOLDER}/zz-hugelift.conf")).expect("the file");
    assert!(text.ends_with("ExecStart=/usr/bin/hugelift run -- /bin/sh b\n"), "{text}");
    let done = image.does("unwrap", &["server"]);
    assert!(done.end == End::Code(0) && names() == ["override.conf"], "{done:?}");
    image.write("run/systemd/system/service.d/zzz.conf", "[Service]\nExecStart=\nExecStart=/bin/sh c\n");
    image.refuses(&["server"], "sorts behind zz-hugelift.conf sets ExecStart= too");
}

#[test]
fn issue_33_an_alias_and_an_instance() {
    let image = Image::new(UNIT);
    let own = image.path("etc/systemd/system");
    fs::create_dir_all(&own).expect("a folder");
    symlink("/usr/lib/systemd/system/server.service", own.join("alias.service")).expect("a link");
    image.write("usr/lib/systemd/system/many@.service", "[Service]\nExecStart=/bin/sh %i\n");
    let done = image.wraps(&["alias"]);
    assert!(done.stderr.contains("alias.service is another name of server.service"), "{done:?}");
    assert!(image.path(FOLDER).join("60-hugelift.conf").exists());
    for name in ["many@1", "many@"] {
        image.wraps(&[name]);
        let text =
            image.read(&format!("etc/systemd/system/{name}.service.d/60-hugelift.conf")).expect("the file");
        assert!(text.ends_with("run -- /bin/sh %i\n"), "{text}");
    }
}

#[test]
fn issue_33_what_is_refused_is_left_as_it_is() {
    for (service, says) in [
        ("ExecStart=/usr/bin/hugelift run -- /bin/sh", "already"),
        ("ExecStart=@/bin/sh sh", "prefix @"),
        ("ExecStart=/bin/sh \"", "cannot be read"),
        ("Type=oneshot", "no ExecStart="),
        ("RootDirectory=/srv\nExecStart=/bin/sh", "a root folder of its own"),
    ] {
        Image::new(&format!("[Service]\n{service}\n")).refuses(&["server"], says);
    }
    let image = Image::new(UNIT);
    image.refuses(&["none"], "there is no unit none.service");
    image.refuses(&["server.socket"], "is not a service");
    image.refuses(&["../server\n"], "is not the name of a unit");
    image.refuses(&["server", "--", "--nonsense"], "unexpected argument '--nonsense'");
    image.refuses(&["server", "--", "--dry-run"], "starts nothing");
    image.refuses(&["server", "--", "/bin/sh"], "the unit names the program");
    fs::remove_file(image.path("usr/bin/hugelift")).expect("the file");
    image.refuses(&["server"], "install hugelift there first");
    image.write("usr/bin/hugelift", "");
    fs::write(image.path("usr/lib/systemd/system/server.service"), b"[Service]\nExecStart=/bin/sh \xff\n")
        .expect("a file");
    image.refuses(&["server"], "not UTF-8");
    symlink("/dev/null", image.path("usr/lib/systemd/system/masked.service")).expect("a link");
    image.refuses(&["masked"], "is masked");
}

#[test]
fn issue_33_a_hugelift_that_others_can_replace_is_refused() {
    let image = Image::new(UNIT);
    let program = image.path("usr/bin/hugelift");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).expect("chmod");
    image.refuses(&["server"], "can be replaced by others");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    let folder = program.parent().expect("a folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("chmod");
    image.refuses(&["server"], "can be replaced by others");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("chmod");
    image.wraps(&["server"]);
}

/// A file of this name that someone else has written stays.
#[test]
fn issue_33_a_file_of_another_is_neither_written_nor_removed() {
    let image = Image::new(UNIT);
    let name = format!("{FOLDER}/60-hugelift.conf");
    image.write(&name, "[Service]\nNice=5\n");
    image.refuses(&["server"], "has not written");
    let done = image.does("unwrap", &["server"]);
    assert!(done.end == End::Code(125) && done.stderr.contains("has not written"), "{done:?}");
    assert_eq!(image.read(&name).as_deref(), Some("[Service]\nNice=5\n"));
    assert!(Path::new(&image.path(&name)).exists());
}

/// A stand-in for systemd-analyze that sends a signal to hugelift while it judges the drop-in: ctrl-C, a terminal that is closed.
#[test]
fn a_drop_in_is_taken_back_at_a_signal() {
    let tools = TempDir::new().expect("a folder");
    let tool = tools.path().join("systemd-analyze");
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap_or_default());
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let image = Image::new(UNIT);
        let script = format!(
            "#!/bin/sh\n[ ! -e {}/$(basename {FOLDER}) ] || {{ kill -{signal} $PPID; exec sleep 1000; }}\n",
            image.path("etc/systemd/system").display()
        );
        cache::write_script(&tool, &script);
        let root = image.0.path().to_str().expect("a path");
        let done = Cmd::new([HUGELIFT, "wrap", "--root", root, "server"]);
        // The check that it waits for would take its 90 s.
        let done = done.env("PATH", &path).patience(Duration::from_secs(60)).bare();
        assert_eq!(done.end, End::Signal(number), "{done:?}");
        assert!(!image.path(FOLDER).exists(), "{signal}");
    }
}

/// A stand-in for systemd-analyze finds a fault with each unit that has a drop-in: this one is taken back.
#[test]
fn issue_33_a_drop_in_with_a_fault_is_taken_back() {
    let image = Image::new(UNIT);
    let tools = TempDir::new().expect("a folder");
    let tool = tools.path().join("systemd-analyze");
    let script = format!(
        "#!/bin/sh\n[ ! -e {}/$(basename {FOLDER}) ] || {{ echo a fault >&2; exit 1; }}\n",
        image.path("etc/systemd/system").display()
    );
    cache::write_script(&tool, &script);
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap_or_default());
    let root = image.0.path().to_str().expect("a path");
    let wrap = Cmd::new([HUGELIFT, "wrap", "--root", root, "server"]).env("PATH", path);
    let done = wrap.bare();
    assert!(
        done.end == End::Code(125) && done.stderr.contains("taken back: systemd-analyze says a fault"),
        "{done:?}"
    );
    assert!(!image.path(FOLDER).exists());
    // One that it finds before too is the unit's own.
    image.write(&format!("{FOLDER}/other.conf"), "");
    let done = wrap.bare();
    assert!(
        done.end == End::Code(0) && done.stderr.contains("finds a fault without it too: a fault"),
        "{done:?}"
    );
    assert!(image.path(FOLDER).join("60-hugelift.conf").exists());
}
