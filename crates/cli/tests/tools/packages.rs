// SPDX-License-Identifier: Apache-2.0
//! Tests of the packages that `ci/package.sh` makes: two makes give the same bytes, and the command runs in a root
//! folder that has nothing but its package.

use super::install::{Systemd, built, files, script, stand_in, top};
use crate::common::build::must;
use crate::common::{Cmd, End, HUGELIFT, Outcome, fat};
use crate::{need, need_root, skip};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const EPOCH: u32 = 1_700_000_000;

/// A folder `command` with the files of a package, and `manual` with those of `ci/manual.sh`. All are made of their
/// names.
pub fn inputs() -> TempDir {
    let dir = built();
    stand_in(&dir.path().join("command"), &["third-party.txt"]);
    dir
}

/// Makes packages of these files for this machine's architecture, into the folder `to`.
pub fn make(inputs: &Path, formats: &[&str], to: &Path) {
    let words = [&[std::env::consts::ARCH], formats].concat();
    let (epoch, maintainer) = (EPOCH.to_string(), "A Packager <packager@example.org>");
    let [command, library, manual] = ["command", "library", "manual"].map(|name| inputs.join(name));
    script(
        "package.sh",
        &words,
        &[
            ("FROM", &command),
            ("LIBRARY", &library),
            ("MANUAL", &manual),
            ("TO", to),
            ("LEVEL", Path::new("1")),
            ("SOURCE_DATE_EPOCH", Path::new(&epoch)),
            ("MAINTAINER", Path::new(maintainer)),
        ],
    );
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns the name of the tarball of `hugelift` or `libhugelift`.
pub fn tarball(name: &str) -> String {
    format!("{name}-{}-{}.tar.gz", version(), std::env::consts::ARCH)
}

/// Returns the name of the `.deb` of `hugelift` or `libhugelift-dev`.
pub fn deb(name: &str) -> String {
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    format!("{name}_{}_{arch}.deb", version())
}

/// Unpacks the tarball or the `.deb` in `packages` and returns the folder with its files.
pub fn unpacked(packages: &Path, name: &str) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let package = packages.join(name);
    if name.ends_with(".deb") {
        must(Command::new("dpkg-deb").arg("-x").arg(package).arg(dir.path()));
    } else {
        must(
            Command::new("tar").arg("-xzf").arg(package).args(["--strip-components=1", "-C"]).arg(dir.path()),
        );
    }
    dir
}

/// Returns what dpkg-deb prints about a package.
fn told_by_dpkg(option: &str, package: &Path) -> String {
    must(Command::new("dpkg-deb").arg(option).arg(package))
}

/// The second make has other folders, other times of its input files, and another order of them on disk.
#[test]
fn two_makes_give_the_same_bytes() {
    need!("dpkg-deb");
    let outs = [(); 2].map(|()| TempDir::new().expect("a folder"));
    let first = inputs();
    make(first.path(), &["tar", "deb"], outs[0].path());
    let second = TempDir::new().expect("a folder");
    for (name, (_, content)) in files(first.path()).into_iter().rev() {
        let file = second.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("mkdir");
        fs::write(&file, content).expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
        must(Command::new("touch").args(["-d", "@1"]).arg(&file));
    }
    make(second.path(), &["deb", "tar"], outs[1].path());
    let [one, two] = outs.each_ref().map(|out| files(out.path()));
    let names = ["hugelift", "libhugelift"].map(tarball).into_iter();
    let names: BTreeSet<_> =
        names.chain(["hugelift", "libhugelift-dev"].map(deb)).map(PathBuf::from).collect();
    assert_eq!(one.keys().cloned().collect::<BTreeSet<_>>(), names);
    for (name, (_, content)) in &one {
        assert!(*content == two[name].1, "{} differs between two makes", name.display());
    }
    // What makes them differ shows: another content does.
    stand_in(&second.path().join("command"), &["hugelift"]);
    fs::write(second.path().join("command/hugelift"), "another").expect("write");
    make(second.path(), &["tar"], outs[1].path());
    let tarball = tarball("hugelift");
    assert!(files(outs[1].path())[Path::new(&tarball)] != one[Path::new(&tarball)]);
}

#[test]
fn the_packages_have_the_same_files_of_root_and_of_one_time() {
    need!("dpkg-deb");
    let (inputs, out) = (inputs(), TempDir::new().expect("a folder"));
    make(inputs.path(), &["tar", "deb"], out.path());
    let (tar, deb_files) =
        (unpacked(out.path(), &tarball("hugelift")), unpacked(out.path(), &deb("hugelift")));
    let (of_tar, of_deb) = (files(tar.path()), files(&deb_files.path().join("usr")));
    for name in ["bin/hugelift", "lib/hugelift/libhugelift_inside.so", "lib/systemd/system/hugelift.service"]
    {
        assert_eq!(of_tar[Path::new(name)].0, of_deb[Path::new(name)].0, "{name}");
    }
    let differs = ["share/lintian", "share/zsh"];
    let own_documents = ["LICENSE", "copyright", "changelog.gz", "third-party.txt", "third-party.txt.gz"];
    let own = |name: &&PathBuf| {
        let is_document =
            own_documents.iter().any(|file| **name == Path::new("share/doc/hugelift").join(file));
        !is_document && !differs.iter().any(|folder| name.starts_with(folder))
    };
    assert_eq!(of_tar.keys().filter(own).collect::<Vec<_>>(), of_deb.keys().filter(own).collect::<Vec<_>>());
    assert!(of_tar.contains_key(Path::new("share/doc/hugelift/LICENSE")));
    assert!(of_deb.contains_key(Path::new("share/doc/hugelift/copyright")));
    assert!(of_tar.contains_key(Path::new("share/zsh/site-functions/_hugelift")));
    assert!(of_deb.contains_key(Path::new("share/zsh/vendor-completions/_hugelift")));
    // A manual page is compressed. `gzip -d` checks it.
    let page = tar.path().join("share/man/man1/hugelift-run.1.gz");
    assert_eq!(must(Command::new("gzip").arg("-dc").arg(page)), "man/hugelift-run.1");
    let time = fs::metadata(tar.path().join("bin/hugelift")).expect("its metadata").mtime();
    assert_eq!(time, i64::from(EPOCH));
    for line in told_by_dpkg("-c", &out.path().join(deb("hugelift"))).lines() {
        assert!(line.contains(" root/root ") && line.contains(" 2023-11-14 "), "{line}");
    }
    let about = told_by_dpkg("-I", &out.path().join(deb("hugelift")));
    for expected in [
        format!(" Version: {}\n", version()),
        " Maintainer: A Packager <packager@example.org>\n".into(),
        " Architecture: ".into(),
    ] {
        assert!(about.contains(&expected), "no '{expected}' in {about}");
    }
    assert!(!about.contains("@VERSION@") && !about.contains("@SIZE@"), "{about}");
}

/// Returns the command with its library, stripped, in the place of those of `inputs`.
pub fn release() -> TempDir {
    let dir = inputs();
    for name in ["hugelift", "libhugelift_inside.so"] {
        let file = Path::new(HUGELIFT).with_file_name(name);
        must(Command::new("strip").arg("-o").arg(dir.path().join("command").join(name)).arg(file));
    }
    dir
}

/// Puts libhugelift in the place of the one of `inputs`, without optimization.
pub fn add_library(inputs: &Path) {
    let library = inputs.join("library");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let words = ["dev", library.to_str().expect("UTF-8")];
    script("library.sh", &words, &[("CARGO_TARGET_DIR", target)]);
    must(Command::new("strip").args(["--strip-debug", "-R", ".comment"]).arg(library.join("libhugelift.a")));
    must(Command::new("strip").arg(library.join("libhugelift.so.0")));
}

/// Makes the package of the command, once for all tests. Returns its path in the folder `to`.
pub fn deb_of_this(to: &Path) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
        fs::create_dir_all(&folder).expect("a folder");
        make(release().path(), &["deb"], &folder);
        folder.join(deb("hugelift"))
    });
    let path = to.join(deb("hugelift"));
    fs::copy(made, &path).expect("copy");
    path
}

/// Runs words in the root folder, with a /proc and a /sys.
fn inside(root: &Path, words: &[&str]) -> Outcome {
    let enter =
        "mount -t proc proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" && exec chroot \"$0\" \"$@\"";
    let root = root.to_str().expect("UTF-8");
    // The child that enters is alone in its mount namespace, so no mount is left.
    Cmd::new([&["unshare", "--mount", "sh", "-c", enter, root], words].concat()).bare()
}

/// The package is all that is in the root folder, beside a static program that is lifted.
#[test]
fn the_command_runs_where_nothing_but_its_package_is() {
    need_root!();
    need!("dpkg-deb", "unshare", "chroot", "strip");
    let out = TempDir::new().expect("a folder");
    deb_of_this(out.path());
    let root = unpacked(out.path(), &deb("hugelift"));
    for folder in ["proc", "sys", "tmp"] {
        fs::create_dir(root.path().join(folder)).expect("mkdir");
    }
    crate::common::cache::copy(fat("ran").flags(&["-static"]).build(), root.path().join("program"));

    let done = inside(root.path(), &["/usr/bin/hugelift", "--version"]);
    assert_eq!(done.end, End::Code(0), "{done:?}");
    assert!(done.stdout.starts_with(&format!("hugelift {}", version())), "{done:?}");
    let done = inside(root.path(), &["/usr/bin/hugelift", "inspect", "/program"]);
    assert_eq!(done.end, End::Code(0), "{done:?}");
    assert!(done.stdout.contains("/program"), "{done:?}");
    let done = inside(root.path(), &["/usr/bin/hugelift", "doctor"]);
    assert!(matches!(done.end, End::Code(0 | 1)) && !done.stdout.is_empty(), "{done:?}");
    let words = ["/usr/bin/hugelift", "run", "--backing", "thp", "--eager", "-v", "/program"];
    let done = inside(root.path(), &words);
    assert_eq!((done.end, done.stdout.as_str()), (End::Code(0), "ran\n"), "{done:?}");
    assert!(done.own_lines().iter().any(|line| line.contains("MB on huge pages")), "{done:?}");
}

/// Returns a scriptlet of the .rpm.
fn scriptlet(name: &str) -> String {
    let spec = fs::read_to_string(top().join("packaging/rpm/hugelift.spec")).expect("the spec file");
    let (_, rest) = spec.split_once(&format!("\n%{name}\n")).unwrap_or_else(|| panic!("no %{name}"));
    rest.lines().take_while(|line| !line.starts_with('%')).map(|line| format!("{line}\n")).collect()
}

/// As rpm calls them: with the number of versions that are installed afterwards.
#[test]
fn the_rpm_stops_its_daemons_and_forgets_them_when_it_is_removed() {
    need_root!();
    need!("unshare", "mount");
    let systemd = Systemd::new(Path::new("/usr"));
    let (before, behind) = (scriptlet("preun"), scriptlet("postun"));
    let run = |script: &str, versions: &str, is_running: bool| {
        must(&mut systemd.command(is_running, &["sh", "-c", script, "rpm", versions]));
        systemd.noted()
    };
    let disable = "--no-reload disable hugelift.service\n";
    let stop = "stop hugelift.service\n";
    assert_eq!(run(&before, "1", true), "", "an upgrade");
    assert_eq!(run(&behind, "1", true), "daemon-reload\n", "an upgrade");
    assert_eq!(run(&before, "0", true), format!("{disable}{stop}"));
    assert_eq!(run(&behind, "0", true), "daemon-reload\n");
    assert_eq!(run(&before, "0", false), disable, "systemd does not run");
    assert_eq!(run(&behind, "0", false), "", "systemd does not run");
}

/// The crates in a package are listed once each, with their versions, licenses and checksums.
#[test]
fn the_bill_of_materials_names_the_crates_of_the_lock_file() {
    let Some(python) = crate::common::find("python3") else { skip!("needs python3") };
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let bill = || {
        let mut command = Command::new(&python);
        command.arg(top().join("ci/dependencies.py")).args(["sbom", &target]).current_dir(top());
        command.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        must(&mut command)
    };
    let text = bill();
    assert!(text == bill(), "two lists differ");
    let bill: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(bill["metadata"]["component"]["purl"], format!("pkg:cargo/hugelift@{}", version()));
    let lock = fs::read_to_string(top().join("Cargo.lock")).expect("the lock file");
    let components = bill["components"].as_array().expect("components");
    let named = |name: &str| components.iter().filter(|c| c["name"] == name).collect::<Vec<_>>();
    let [clap] = named("clap")[..] else { panic!("not exactly one clap") };
    let checksum = clap["hashes"][0]["content"].as_str().expect("a checksum");
    assert!(lock.contains(&format!("checksum = \"{checksum}\"")), "{checksum}");
    assert_eq!(clap["licenses"][0]["expression"], "MIT OR Apache-2.0");
    // What only tests need is not in it; what an own crate needs is.
    assert!(named("proptest").is_empty() && named("cbindgen").is_empty());
    assert_eq!((named("hugelift-core").len(), named("gimli").len(), named("rust-std").len()), (1, 1, 1));
}

/// Returns the files of a crate as crates.io gets it, without the folder that is named after the crate.
fn files_of_crate(package: &Path) -> BTreeSet<String> {
    let listed = must(Command::new("tar").arg("-tzf").arg(package));
    listed.lines().filter_map(|path| path.split_once('/')).map(|(_, name)| name.to_string()).collect()
}

/// As `cargo publish` packages them, without their builds, which take minutes, and without the registry.
#[test]
fn the_crates_can_be_published() {
    need!("cargo", "tar");
    let cargo = must(Command::new("cargo").arg("--version"));
    let minor = cargo.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    if minor < Some(90) {
        // Rust 1.88 is enough for all else, so no set-up provides it.
        return println!(
            "SKIP: needs cargo 1.90, which packages crates that need each other: {}",
            cargo.trim()
        );
    }
    let target = TempDir::new().expect("a folder");
    let mut package = Command::new("cargo");
    package.args(["package", "--workspace", "--exclude", "hugelift-bench", "--exclude", "hugelift-manual"]);
    package.args(["--no-verify", "--offline", "--allow-dirty", "--quiet"]).current_dir(top());
    must(package.env("CARGO_TARGET_DIR", target.path()));
    let of = |name: &str| files_of_crate(&target.path().join(format!("package/{name}-{}.crate", version())));
    let in_folder = |folder: &Path| {
        fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect::<Vec<_>>()
    };
    let mut packaged = in_folder(&target.path().join("package"));
    packaged.retain(|path| path.extension() == Some("crate".as_ref()));
    let mut published = in_folder(&top().join("crates"));
    published.retain(|folder| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        !manifest.contains("publish = false")
    });
    assert_eq!(packaged.len(), published.len(), "{packaged:?} of {published:?}");
    // What is built or read at a build beside the sources.
    for (name, file) in [
        ("hugelift", "README.md"),
        ("hugelift", "build.rs"),
        ("hugelift-inside", "build.rs"),
        ("hugelift-library", "hugelift.map"),
        ("hugelift-library", "include/hugelift.h"),
        ("hugelift-measure", "programs/jumps.c"),
        ("hugelift-report", "src/html/map/map.js"),
    ] {
        assert!(of(name).contains(file), "{name} lacks {file}: {:?}", of(name));
    }
    for file in packaged {
        let (files, file) = (files_of_crate(&file), file.display());
        assert!(
            files.contains("Cargo.toml") && files.iter().any(|f| f.starts_with("src/")),
            "{file}: {files:?}"
        );
        assert!(!files.iter().any(|f| f.starts_with("tests/")), "{file}: {files:?}");
    }
}
