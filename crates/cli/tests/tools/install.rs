// SPDX-License-Identifier: Apache-2.0
//! Tests of `make install` and `make uninstall`: which files are where, and what of them is removed.

use crate::common::build::must;
use crate::common::{cache, find};
use crate::{need, need_root, skip};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Returns the top folder of the project.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli is below the top")
}

/// The files of `ci/manual.sh`.
const MANUAL: [&str; 5] = [
    "man/hugelift.1",
    "man/hugelift-run.1",
    "completions/hugelift.bash",
    "completions/_hugelift",
    "completions/hugelift.fish",
];

/// Writes files that stand for those that are built; each has its own name as its content.
pub fn stand_in(folder: &Path, names: &[&str]) {
    for name in names {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("mkdir");
        fs::write(file, name).expect("write");
    }
}

/// Makes a folder with files that stand for those of `make build`, `make library` and `ci/manual.sh`.
pub fn built() -> TempDir {
    let dir = TempDir::new().expect("a folder");
    stand_in(&dir.path().join("command"), &["hugelift", "libhugelift_inside.so"]);
    stand_in(&dir.path().join("library"), &["libhugelift.so.0", "libhugelift.a"]);
    stand_in(&dir.path().join("manual"), &MANUAL);
    dir
}

/// Runs a script of `ci`, which must succeed.
pub fn script(name: &str, words: &[&str], variables: &[(&str, &Path)]) {
    let mut command = Command::new(top().join("ci").join(name));
    command.args(words).envs(variables.iter().copied()).stdin(Stdio::null());
    let done = command.output().expect("the script starts");
    assert!(done.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&done.stderr));
}

/// Returns the files below a folder, by their paths, with their modes and contents. A link has mode 0, and its target
/// as its content.
pub fn files(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("its metadata");
            let name = path.strip_prefix(root).expect("below the root").to_path_buf();
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).expect("its target");
                found.insert(name, (0, target.into_os_string().into_encoded_bytes()));
            } else {
                let mode = metadata.permissions().mode() & 0o7777;
                found.insert(name, (mode, fs::read(&path).expect("its content")));
            }
        }
    }
    found
}

/// Each file that stands for one that is built, and where it is installed.
const PLACES: [(&str, u32, &str); 9] = [
    ("hugelift", 0o755, "bin/hugelift"),
    ("libhugelift_inside.so", 0o644, "lib/hugelift/libhugelift_inside.so"),
    ("libhugelift.so.0", 0o755, "lib/libhugelift.so.0"),
    ("libhugelift.a", 0o644, "lib/libhugelift.a"),
    ("man/hugelift.1", 0o644, "share/man/man1/hugelift.1"),
    ("man/hugelift-run.1", 0o644, "share/man/man1/hugelift-run.1"),
    ("completions/hugelift.bash", 0o644, "share/bash-completion/completions/hugelift"),
    ("completions/_hugelift", 0o644, "share/zsh/site-functions/_hugelift"),
    ("completions/hugelift.fish", 0o644, "share/fish/vendor_completions.d/hugelift.fish"),
];

#[test]
fn every_file_is_installed_where_it_is_looked_for_and_removed_again() {
    let built = built();
    let root = TempDir::new().expect("a folder");
    let [command, library, manual] = ["command", "library", "manual"].map(|name| built.path().join(name));
    let variables: &[(&str, &Path)] = &[
        ("PREFIX", Path::new("/opt/h")),
        ("DESTDIR", root.path()),
        ("COMMAND", &command),
        ("LIBRARY", &library),
        ("MANUAL", &manual),
    ];
    let prefix = root.path().join("opt/h");
    stand_in(&prefix, &["bin/other", "share/man/man1/other.1", "bin/libhugelift_inside.so"]);
    script("install.sh", &[], variables);
    let installed = files(&prefix);
    for (content, mode, place) in PLACES {
        let expected = (mode, content.as_bytes().to_vec());
        assert_eq!(installed.get(Path::new(place)), Some(&expected), "{place}");
    }
    assert_eq!(installed[Path::new("lib/libhugelift.so")], (0, b"libhugelift.so.0".to_vec()));
    // The command takes the library in its own folder first.
    assert!(!installed.contains_key(Path::new("bin/libhugelift_inside.so")));
    let (mode, text) = &installed[Path::new("lib/systemd/system/hugelift.service")];
    assert_eq!(*mode, 0o644);
    assert!(String::from_utf8_lossy(text).contains("\nExecStart=/opt/h/bin/hugelift service\n"), "{text:?}");
    let example = fs::read(top().join("systemd/service.toml")).expect("the example");
    assert_eq!(installed[Path::new("share/doc/hugelift/examples/service.toml")], (0o644, example));
    // Nothing is left to be filled in.
    for (path, (_, content)) in &installed {
        let text = String::from_utf8_lossy(content);
        assert!(!text.contains("@PREFIX@") && !text.contains("@VERSION@"), "{}", path.display());
    }

    script("install.sh", &["uninstall"], variables);
    let left: Vec<PathBuf> = files(&prefix).into_keys().collect();
    assert_eq!(left, ["bin/other", "share/man/man1/other.1"].map(PathBuf::from));
    for folder in
        ["lib/hugelift", "lib/cmake/hugelift", "include/hugelift", "share/hugelift", "share/doc/hugelift"]
    {
        assert!(!prefix.join(folder).exists(), "{folder}");
    }
}

/// Links as `systemctl enable` makes them, below `root`: to the unit below `prefix`, and to one of another package.
pub fn enable(root: &Path, prefix: &str) {
    let folder = root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&folder).expect("mkdir");
    for (name, unit) in [
        ("hugelift.service", format!("{prefix}/lib/systemd/system/hugelift.service")),
        ("nginx.service", "/usr/lib/systemd/system/nginx.service".into()),
    ] {
        symlink(unit, folder.join(name)).expect("a link");
    }
}

/// Which daemons are enabled is forgotten with their units, and nothing else is.
#[test]
fn no_link_to_a_unit_is_left() {
    let built = built();
    let root = TempDir::new().expect("a folder");
    let [command, manual] = ["command", "manual"].map(|name| built.path().join(name));
    let variables: &[(&str, &Path)] = &[
        ("PREFIX", Path::new("/opt/h")),
        ("DESTDIR", root.path()),
        ("COMMAND", &command),
        ("LIBRARY", Path::new("")),
        ("MANUAL", &manual),
    ];
    script("install.sh", &[], variables);
    enable(root.path(), "/opt/h");
    script("install.sh", &["uninstall"], variables);
    let left: Vec<PathBuf> = files(root.path()).into_keys().collect();
    let of_package = "etc/systemd/system/multi-user.target.wants/nginx.service";
    assert_eq!(left, [PathBuf::from(of_package)]);
}

/// A systemd of a test's own: a systemctl that notes its words, and a folder /run of a mount namespace. It knows the
/// unit below a prefix.
pub struct Systemd {
    tools: TempDir,
}

impl Systemd {
    pub fn new(prefix: &Path) -> Systemd {
        let tools = TempDir::new().expect("a folder");
        let (prefix, noted) = (prefix.display(), tools.path().join("noted"));
        let noted = noted.display();
        let script = format!(
            "#!/bin/sh
case $* in
*show*) echo FragmentPath={prefix}/lib/systemd/system/hugelift.service ;;
*) echo \"$*\" >>{noted} ;;
esac
"
        );
        let program = tools.path().join("systemctl");
        cache::write_script(&program, &script);
        Systemd { tools }
    }

    /// Returns a command that sees this systemd, and sees that it runs or does not.
    pub fn command(&self, is_running: bool, words: &[&str]) -> Command {
        let inner = format!(
            "mount -t tmpfs none /run && mkdir -p /run/systemd{} && exec \"$@\"",
            if is_running { "/system" } else { "" }
        );
        let path = format!("{}:{}", self.tools.path().display(), std::env::var("PATH").expect("PATH"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &inner, "sh"]).args(words).env("PATH", path);
        command
    }

    /// Returns what systemctl was told since the last call.
    pub fn noted(&self) -> String {
        let file = self.tools.path().join("noted");
        let noted = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        noted
    }
}

#[test]
fn uninstall_stops_the_daemons_that_it_removes() {
    need_root!();
    need!("unshare", "mount");
    let built = built();
    let prefix = TempDir::new().expect("a folder");
    let systemd = Systemd::new(prefix.path());
    let run = |action: &str, is_running: bool| {
        let mut command = systemd.command(is_running, &["ci/install.sh", action]);
        command.current_dir(top()).env_remove("DESTDIR");
        command.env("PREFIX", prefix.path()).env("LDCONFIG", "true");
        for (variable, folder) in [("COMMAND", "command"), ("MANUAL", "manual"), ("LIBRARY", "library")] {
            command.env(variable, built.path().join(folder));
        }
        must(&mut command);
        systemd.noted()
    };
    assert_eq!(run("install", true), "");
    assert_eq!(run("uninstall", false), "", "systemd does not run");
    assert_eq!(run("uninstall", true), "stop hugelift.service\ndaemon-reload\n");
}

/// A package has the command without the library for programs that lift themselves.
#[test]
fn the_command_can_be_installed_alone() {
    let built = built();
    let root = TempDir::new().expect("a folder");
    let [command, manual] = ["command", "manual"].map(|name| built.path().join(name));
    let variables: &[(&str, &Path)] = &[
        ("PREFIX", Path::new("/usr")),
        ("DESTDIR", root.path()),
        ("COMMAND", &command),
        ("LIBRARY", Path::new("")),
        ("MANUAL", &manual),
    ];
    script("install.sh", &["install"], variables);
    let installed = files(root.path());
    assert!(installed.contains_key(Path::new("usr/bin/hugelift")));
    let foreign: Vec<_> = installed.keys().filter(|path| path.starts_with("usr/include")).collect();
    assert!(foreign.is_empty() && !installed.contains_key(Path::new("usr/lib/libhugelift.a")), "{foreign:?}");
    // The unit is that of the source: it has the paths of a package.
    let unit = fs::read(top().join("systemd/hugelift.service")).expect("the unit");
    assert_eq!(installed[Path::new("usr/lib/systemd/system/hugelift.service")], (0o644, unit));
}

/// `sudo make install` after `make` builds nothing: root may have no cargo.
#[test]
fn without_cargo_what_is_built_is_installed_as_it_is() {
    let Some(make) = find("make") else { skip!("needs make") };
    let target = TempDir::new().expect("a folder");
    let steps = || {
        let mut command = Command::new(&make);
        command.args(["--no-print-directory", "-n", "install"]).current_dir(top());
        for variable in ["MAKEFLAGS", "PREFIX", "DESTDIR"] {
            command.env_remove(variable);
        }
        must(command.env("PATH", "/nowhere").env("CARGO_TARGET_DIR", target.path()))
    };
    assert!(steps().contains("ci/build.sh\n"), "{}", steps());
    stand_in(target.path(), &["release/hugelift", "library/out/libhugelift.a", "manual/man/hugelift.1"]);
    assert_eq!(steps(), "PREFIX=\"\" DESTDIR=\"\" ci/install.sh\n");
}
