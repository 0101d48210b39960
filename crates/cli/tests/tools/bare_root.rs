// SPDX-License-Identifier: Apache-2.0
//! The package on a bare Debian: a root folder that has the essential packages alone, copied from this machine, which
//! must be a Debian or Ubuntu.

use super::docs::book::pages;
use super::docs::console::{Block, Mark, Step, at_home};
use super::docs::{none, top};
use super::install::{enable, files};
use super::packages::deb_of_this;
use crate::common::build::must;
use crate::common::{Cmd, End, Outcome};
use crate::{need, need_root, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The shell's where no profile sets it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Blocks for these reasons are run, but print something else on each machine.
const OTHER_OUTPUT: [&str; 2] = ["other-machine", "other-processes"];
/// Files that a maintainer script makes on a Debian.
const MADE: [(&str, &str); 2] =
    [("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", "root:x:0:\n")];
/// Folders of files that no program needs.
const LEFT_OUT: [&str; 4] = ["/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/"];

/// What dpkg knows of an installed package.
struct Package {
    /// With the architecture, if other architectures of it can be installed too.
    name: String,
    is_essential: bool,
    /// Each of them is a list of packages of which one suffices.
    needs: Vec<Vec<String>>,
}

/// Returns the installed packages of this architecture by their names, and by the names that they provide.
fn installed() -> BTreeMap<String, Package> {
    let architecture = must(Command::new("dpkg").arg("--print-architecture"));
    let fields = "${db:Status-Status}\t${Architecture}\t${Package}\t${binary:Package}\t${Essential}\t${Provides}\t\
                  ${Pre-Depends}, ${Depends}\n";
    let text = must(Command::new("dpkg-query").args(["--show", "-f", fields]));
    let bare = |name: &str| name.trim().split([' ', ':', '(']).next().unwrap_or_default().to_string();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[status, of, name, binary, essential, provides, needs] = fields.as_slice() else { continue };
        if status != "installed" || ![architecture.trim(), "all"].contains(&of) {
            continue;
        }
        let package = || Package {
            name: binary.to_string(),
            is_essential: essential == "yes",
            needs: needs.split(',').map(|need| need.split('|').map(bare).collect()).collect(),
        };
        all.insert(name.to_string(), package());
        for name in provides.split(',').map(bare).filter(|name| !name.is_empty()) {
            all.entry(name).or_insert_with(package);
        }
    }
    all
}

/// Returns the names of the essential packages, and of those that they need.
fn essential() -> BTreeSet<String> {
    let all = installed();
    let mut found = BTreeSet::new();
    let mut next: Vec<&Package> = all.values().filter(|package| package.is_essential).collect();
    while let Some(package) = next.pop() {
        if found.insert(package.name.clone()) {
            let first = |names: &Vec<String>| names.iter().find_map(|name| all.get(name));
            next.extend(package.needs.iter().filter_map(first));
        }
    }
    found
}

/// Fills a root folder with these packages: their files, and what dpkg has to know of them.
fn fill(root: &Path, packages: &BTreeSet<String>) {
    let listed = must(Command::new("dpkg-query").arg("--listfiles").args(packages));
    let wanted = |path: &&str| {
        path.starts_with('/') && !LEFT_OUT.iter().any(|folder| path.starts_with(folder)) && path.len() > 2
    };
    // A package may have a file in /lib, which is a link to /usr/lib.
    let real = |path: &str| {
        let path = Path::new(path);
        path.symlink_metadata().ok()?;
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    let paths: BTreeSet<PathBuf> = listed.lines().filter(wanted).filter_map(real).collect();
    let paths: Vec<&str> = paths.iter().map(|path| &path.to_str().expect("UTF-8")[1..]).collect();
    let folder = TempDir::new().expect("a folder");
    let list = folder.path().join("list");
    fs::write(&list, paths.join("\n")).expect("write");
    let copy = "set -o pipefail; tar -C / --no-recursion -cf - -T \"$1\" | tar -C \"$2\" -xpf -";
    must(Command::new("bash").args(["-c", copy, "bash"]).arg(list).arg(root));
    let known = root.join("var/lib/dpkg");
    for name in packages {
        let file = format!("info/{name}.list");
        fs::copy(Path::new("/var/lib/dpkg").join(&file), known.join(&file)).expect("copy");
    }
    fs::copy("/var/lib/dpkg/info/format", known.join("info/format")).expect("copy");
    let status = must(Command::new("dpkg-query").arg("--status").args(packages));
    fs::write(known.join("status"), status).expect("write");
    for (name, text) in MADE {
        fs::write(root.join(name), text).expect("write");
    }
}

/// A root folder.
struct Root(TempDir);

impl Root {
    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns a command in the root folder, with a /proc, a /sys and a /dev.
    fn command(&self, words: &[&str]) -> Cmd {
        let enter = "mount -t proc proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" \
                     && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" /usr/bin/env \"$@\"";
        let root = self.path().to_str().expect("UTF-8");
        let path = format!("PATH={PATH}");
        // The child that enters is alone in its mount namespace, so no mount is left.
        Cmd::new([&["unshare", "--mount", "sh", "-c", enter, root, &path], words].concat())
    }

    fn must(&self, words: &[&str]) -> Outcome {
        let done = self.command(words).bare();
        assert_eq!(done.end, End::Code(0), "{words:?}: {done:?}");
        done
    }

    /// Returns a command line of a shell in the root folder.
    fn shell(&self, line: &str) -> Cmd {
        at_home(self.command(&["sh", "-c", &format!("cd /root && {line}")]), Path::new("/root"))
    }

    fn has(&self, program: &str) -> bool {
        PATH.split(':').any(|folder| self.path().join(&folder[1..]).join(program).exists())
    }

    /// Returns the files, without those in which dpkg and programs note what they do.
    fn files(&self) -> Vec<PathBuf> {
        let noted = ["var/lib/dpkg", "var/log", "tmp", "root", "run"];
        let all = files(self.path()).into_keys();
        all.filter(|path| !noted.iter().any(|folder| path.starts_with(folder))).collect()
    }

    /// Makes a systemctl that notes its words.
    fn add_systemd(&self) {
        let program = self.path().join("usr/bin/systemctl");
        fs::write(&program, "#!/bin/sh\necho \"$*\" >>/run/noted\n").expect("write");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    /// Returns what systemctl was told.
    fn noted(&self) -> String {
        fs::read_to_string(self.path().join("run/noted")).unwrap_or_default()
    }
}

/// Makes a bare root folder, and a package in it as `/run/hugelift.deb`.
fn bare() -> Option<Root> {
    let packages = essential();
    if packages.is_empty() {
        return None;
    }
    let root = Root(TempDir::new().expect("a folder"));
    fill(root.path(), &packages);
    let made = TempDir::new().expect("a folder");
    fs::copy(deb_of_this(made.path()), root.path().join("run/hugelift.deb")).expect("copy");
    Some(root)
}

/// Returns the steps of a block that can be taken in the root folder.
fn steps(block: &Block, root: &Root) -> Vec<Step> {
    match block.mark() {
        Ok(Mark::Needs(program)) if !root.has(program) => vec![],
        Ok(Mark::Runs | Mark::Needs(_)) => block.commands().collect(),
        Ok(Mark::DoesNotRun(reason)) if OTHER_OUTPUT.contains(&reason) => {
            block.commands().map(Step::without_output).collect()
        }
        // docs::blocks_print_what_they_show says what is wrong with a mark.
        Ok(Mark::DoesNotRun(_)) | Err(_) => vec![],
    }
}

/// What the pages show is so where nothing but the package is; and the commands whose blocks need more run too.
#[test]
fn the_blocks_of_the_pages_run_where_only_the_package_is() {
    need_root!();
    need!("bash", "dpkg-deb", "dpkg-query", "unshare", "chroot", "strip", "tar");
    let Some(root) = bare() else { skip!("needs a Debian or Ubuntu, whose essential packages it copies") };
    root.must(&["dpkg", "--force-unsafe-io", "--install", "/run/hugelift.deb"]);
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages(&top()) {
        for block in page.blocks.iter().filter(|block| block.is_console()) {
            for step in steps(block, &root) {
                count += 1;
                let place = format!("{}:{}", page.path.display(), block.line);
                let found = step.run(root.shell(&step.line));
                faults.extend(found.into_iter().map(|why| format!("{place}: {why}")));
            }
        }
    }
    assert!(count >= 20, "only {count} commands were run");
    for line in [
        "sleep 60 & hugelift attach $!; hugelift restore $!; status=$?; kill $!; exit $status",
        "for name in run attach restore lab service; do hugelift $name --help >/dev/null || exit 125; done",
    ] {
        let done = root.shell(line).bare();
        if !matches!(done.end, End::Code(0 | 1)) {
            faults.push(format!("{line}: {done:?}"));
        }
    }
    faults.iter_mut().for_each(|fault| *fault = format!("in the root with the package: {fault}"));
    none(&faults);
}

/// The daemons are stopped with the package. Which of them are enabled is kept until it is purged.
#[test]
fn the_package_is_removed_with_its_daemons_and_leaves_nothing() {
    need_root!();
    need!("bash", "dpkg-deb", "dpkg-query", "unshare", "chroot", "strip", "tar");
    let Some(root) = bare() else { skip!("needs a Debian or Ubuntu, whose essential packages it copies") };
    root.add_systemd();
    let before = root.files();
    root.must(&["dpkg", "--force-unsafe-io", "--install", "/run/hugelift.deb"]);
    assert!(root.files().contains(&"usr/bin/hugelift".into()));
    root.must(&["dpkg", "--purge", "hugelift"]);
    assert_eq!((root.noted().as_str(), root.files()), ("", before.clone()), "systemd does not run");

    root.must(&["dpkg", "--force-unsafe-io", "--install", "/run/hugelift.deb"]);
    enable(root.path(), "/usr");
    let wants = root.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(root.path().join("run/systemd/system")).expect("mkdir");
    // What 'hugelift wrap' has written goes, and what another has does not.
    let drop_in = |unit: &str, line: &str| {
        let folder = root.path().join(format!("etc/systemd/system/{unit}.service.d"));
        fs::create_dir_all(&folder).expect("mkdir");
        let text = format!("{line}\n[Service]\nExecStart=\nExecStart=-/usr/bin/hugelift run -- /bin/sh\n");
        fs::write(folder.join("60-hugelift.conf"), text).expect("write");
    };
    drop_in("wrapped", "# Made by 'hugelift wrap'. Remove it by: hugelift unwrap wrapped.service");
    drop_in("own", "# Mine.");
    // An upgrade.
    root.must(&["dpkg", "--force-unsafe-io", "--install", "/run/hugelift.deb"]);
    assert_eq!(root.noted(), "", "an upgrade");
    root.must(&["dpkg", "--remove", "hugelift"]);
    let stopped = "--system daemon-reload\nstop hugelift.service\n--system daemon-reload\n";
    assert_eq!(root.noted(), stopped);
    assert!(wants.join("hugelift.service").symlink_metadata().is_ok());
    root.must(&["dpkg", "--purge", "hugelift"]);
    assert_eq!(root.noted(), format!("{stopped}--system daemon-reload\n"));
    let left: Vec<PathBuf> = root.files().into_iter().filter(|path| !before.contains(path)).collect();
    let others = ["multi-user.target.wants/nginx.service", "own.service.d/60-hugelift.conf"]
        .map(|name| Path::new("etc/systemd/system").join(name));
    assert_eq!(left, others);
}

/// What hugelift-keep.service and hugelift-attach@UNIT.service of an earlier version did, hugelift.service does after the
/// upgrade. A second upgrade changes nothing.
#[test]
fn issue_33_1_an_upgrade_moves_users_of_the_earlier_units_over() {
    need_root!();
    need!("bash", "dpkg-deb", "dpkg-query", "unshare", "chroot", "strip", "tar");
    let Some(root) = bare() else { skip!("needs a Debian or Ubuntu, whose essential packages it copies") };
    root.add_systemd();
    let install = || root.must(&["dpkg", "--force-unsafe-io", "--install", "/run/hugelift.deb"]);
    install();
    let (etc, wants) =
        (root.path().join("etc/hugelift"), root.path().join("etc/systemd/system/multi-user.target.wants"));
    for folder in [&etc, &wants, &root.path().join("run/systemd/system")] {
        fs::create_dir_all(folder).expect("mkdir");
    }
    fs::write(etc.join("keep.conf"), "programs = [\"hugelift\"]\nbudget = \"8M\"\n").expect("write");
    for (name, unit) in [
        ("hugelift-keep.service", "hugelift-keep.service"),
        ("hugelift-attach@my\\x2ddb.service", "hugelift-attach@.service"),
    ] {
        std::os::unix::fs::symlink(format!("/usr/lib/systemd/system/{unit}"), wants.join(name))
            .expect("a link");
    }
    install();
    let told = "--system daemon-reload\nstop hugelift-keep.service hugelift-attach@my\\x2ddb.service\nstart \
                hugelift.service\n";
    assert_eq!(root.noted(), told);
    let left: Vec<_> =
        fs::read_dir(&wants).expect("a folder").map(|e| e.expect("a link").file_name()).collect();
    assert_eq!(left, ["hugelift.service"]);
    assert!(root.path().join("usr/lib/systemd/system/hugelift.service").exists());
    assert!(!etc.join("keep.conf").exists() && etc.join("keep.conf.converted").exists());
    // The policy is in order, and takes what the earlier units did.
    let checked = root.shell("hugelift service check --json").bare();
    let checked: serde_json::Value =
        serde_json::from_str(&checked.stdout).unwrap_or_else(|e| panic!("{e}: {checked:?}"));
    assert_eq!(checked["rules"], serde_json::json!(["attach my-x2ddb", "rest"]), "{checked}");
    // In a pattern a backslash is written twice.
    let rule = fs::read_to_string(etc.join("service.d/attach-my\\x2ddb.toml")).expect("the rule");
    assert!(rule.contains("\nunit = 'my\\\\x2ddb.service'\n"), "{rule}");
    let policy = fs::read_to_string(etc.join("service.toml")).expect("the policy");
    assert!(policy.contains("[keep]\nprograms = [\"hugelift\"]\nbudget = \"8M\"\n"), "{policy}");
    let files = || (root.files(), fs::read_to_string(etc.join("service.toml")).expect("the policy"));
    let before = files();
    install();
    assert_eq!((files(), root.noted().as_str()), (before, told), "nothing more is to be done");
}
