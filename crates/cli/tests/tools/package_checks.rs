// SPDX-License-Identifier: Apache-2.0
//! What lintian and rpm find in the packages that `ci/package.sh` makes.

use super::install::{files, top};
use super::packages::{add_library, deb, inputs, make, release};
use crate::common::WITH_FAULT_POINTS;
use crate::common::build::must;
use crate::{need, need_root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Puts the manual pages and completions of the command in the place of those of `inputs`. lintian reads them.
fn add_manual(inputs: &Path) {
    let made = inputs.join("manual");
    let program = Path::new(WITH_FAULT_POINTS).with_file_name("hugelift-manual");
    match program.exists() {
        true => must(Command::new(program).arg(&made)),
        false => must(Command::new(top().join("ci/manual.sh")).arg(&made)),
    };
}

/// Compiles a line of C; returns the folder with `object.o`.
fn out_of(source: &str) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let [file, object] = ["source.c", "object.o"].map(|name| dir.path().join(name));
    fs::write(&file, source).expect("write");
    must(Command::new("cc").arg("-O2").arg("-c").arg(file).arg("-o").arg(&object));
    must(Command::new("strip").args(["--strip-debug", "-R", ".comment"]).arg(object));
    dir
}

/// Errors and warnings of lintian would keep the package out of Debian.
#[test]
fn lintian_has_no_complaint() {
    need!("lintian", "dpkg-deb", "strip", "ar", "cc");
    let release = release();
    add_library(release.path());
    // lintian reads each member of an archive. Of one without optimization it would take minutes.
    let archive = release.path().join("library/libhugelift.a");
    let object = out_of("static const int of_this = 1; int hugelift(void) { return of_this; }");
    fs::remove_file(&archive).expect("remove");
    must(Command::new("ar").arg("rcD").arg(&archive).arg(object.path().join("object.o")));
    add_manual(release.path());
    let out = TempDir::new().expect("a folder");
    make(release.path(), &["deb"], out.path());
    let lintian = |package: &Path| {
        let mut command = Command::new("lintian");
        command.args(["--allow-root", "--profile", "debian", "--fail-on", "error,warning"]).arg(package);
        command.output().expect("lintian starts")
    };
    let [library, package] = ["libhugelift-dev", "hugelift"].map(|name| out.path().join(deb(name)));
    for package in [&library, &package] {
        let found = lintian(package);
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
    }

    // What makes lintian complain shows.
    let opened = out.path().join("opened");
    must(Command::new("dpkg-deb").arg("-R").arg(&package).arg(&opened));
    fs::remove_file(opened.join("usr/share/doc/hugelift/copyright")).expect("remove");
    let broken = out.path().join("broken.deb");
    must(Command::new("dpkg-deb").arg("-b").arg(&opened).arg(&broken));
    let found = lintian(&broken);
    let text = String::from_utf8_lossy(&found.stdout);
    assert!(!found.status.success() && text.contains("E: hugelift: no-copyright-file"), "{text}");
}

/// Makes the `.rpm` of stand-ins for the files. Returns its path in the folder `to`.
fn rpm(to: &Path) -> PathBuf {
    make(inputs().path(), &["rpm"], to);
    to.join(format!("hugelift-{}-1.{}.rpm", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH))
}

#[test]
fn the_rpm_needs_a_shell_alone_and_its_digests_fit() {
    need!("rpm", "rpmbuild");
    let out = TempDir::new().expect("a folder");
    let package = rpm(out.path());
    let told = |options: &[&str]| must(Command::new("rpm").args(options).arg(&package));
    let needed = told(&["-qp", "--requires"]);
    let needs = |line: &&str| !line.starts_with("rpmlib(");
    assert!(needed.lines().filter(needs).all(|line| line == "/bin/sh"), "{needed}");
    let provided = told(&["-qp", "--provides"]);
    assert!(provided.lines().all(|line| line.starts_with("hugelift")), "{provided}");
    assert!(told(&["-K", "--nosignature"]).ends_with(": digests OK\n"));
    let about = told(&["-qp", "--qf", "%{VERSION} %{LICENSE} %{PACKAGER}"]);
    assert_eq!(about, format!("{} Apache-2.0 A Packager <packager@example.org>", env!("CARGO_PKG_VERSION")));
}

/// Copies a program and its libraries into a root folder.
fn copy_into(root: &Path, program: &Path) {
    let listed = must(Command::new("ldd").arg(program));
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for file in libraries.chain([program]) {
        let to = root.join(file.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(to.parent().expect("a folder")).expect("mkdir");
        fs::copy(file, to).expect("copy");
    }
}

/// The root folder has a shell and no systemctl: neither where systemd does not run, nor, as in a chroot that shares
/// `/run`, where it does.
#[test]
fn the_rpm_is_installed_upgraded_and_erased_without_systemctl() {
    need_root!();
    need!("rpm", "rpmbuild", "ldd", "sh");
    let out = TempDir::new().expect("a folder");
    let package = rpm(out.path());
    for is_running in [false, true] {
        let root = TempDir::new().expect("a folder");
        copy_into(root.path(), Path::new("/bin/sh"));
        fs::create_dir_all(root.path().join(if is_running { "run/systemd/system" } else { "run" }))
            .expect("mkdir");
        let rpm = |words: &[&str]| {
            let mut command = Command::new("rpm");
            let done = command.arg("--root").arg(root.path()).args(words).output().expect("rpm starts");
            let text = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success() && !text.contains("scriptlet failed"), "{words:?}: {text}");
        };
        let of_package = || {
            let all = files(root.path()).into_keys();
            all.filter(|path| path.to_string_lossy().contains("hugelift")).count()
        };
        // Debian's rpm knows nothing of the packages that are installed here.
        let file = package.to_str().expect("UTF-8");
        rpm(&["--nodeps", "-i", file]);
        assert!(root.path().join("usr/bin/hugelift").exists() && of_package() > 10);
        rpm(&["--nodeps", "-U", "--force", file]);
        assert!(root.path().join("usr/bin/hugelift").exists() && of_package() > 10);
        rpm(&["--nodeps", "-e", "hugelift"]);
        assert_eq!(of_package(), 0, "{is_running}: files are left");
    }
}
