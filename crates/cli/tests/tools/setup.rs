// SPDX-License-Identifier: Apache-2.0
//! Tests of how `ci/setup.sh` gets Rust on a machine without it: an apt that installs stand-ins takes the place of the
//! real one.

use super::install::top;
use crate::common::{cache, find};
use crate::need;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Programs that the script itself uses.
const USED: [&str; 15] = [
    "bash", "cat", "chmod", "cp", "cut", "dirname", "dpkg", "grep", "head", "mkdir", "mktemp", "rm", "sed",
    "sort", "tail",
];

/// Writes a shell script into a folder.
fn program(folder: &Path, name: &str, text: &str) {
    cache::write_script(&folder.join(name), &format!("#!/bin/sh\n{text}\n"));
}

/// Runs `ci/setup.sh build` as root of a machine on which apt offers these packages, with their versions. Returns what
/// it printed, and what was installed.
fn set_up(offered: &[(&str, &str)]) -> (Output, String) {
    set_up_with(offered, offered)
}

/// The same where the package lists are new, and apt offers `updated` after its next update.
fn set_up_with(offered: &[(&str, &str)], updated: &[(&str, &str)]) -> (Output, String) {
    set_up_from(&[], offered, updated)
}

/// The same where apt names these archives as its sources. Debian's security archive offers a rustc-web besides, once
/// a file of sources that the script has made names it.
fn set_up_from(archives: &[&str], offered: &[(&str, &str)], updated: &[(&str, &str)]) -> (Output, String) {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path();
    for name in USED {
        symlink(find(name).expect("a program of every Debian"), path.join(name)).expect("symlink");
    }
    for name in ["make", "gcc", "musl-gcc"] {
        program(path, name, ":");
    }
    program(path, "cc", "echo /lib/libc.a");
    program(path, "id", "echo 0");
    program(path, "find", "echo new_Packages");
    for (name, offered) in [("apt-cache", offered), ("updated", updated)] {
        let versions: String =
            offered.iter().map(|(name, version)| format!("{name}) v='{version}' ;;\n")).collect();
        let sources: String = archives.iter().map(|archive| format!("echo ' 500 {archive}'\n")).collect();
        let added = "file=$(sed -n 's/^Dir::Etc::sourceparts \"\\(.*\\)\";$/\\1/p' \"${APT_CONFIG:-/dev/null}\")/hugelift.list\n\
                     if [ $2 = rustc-web ] && grep -qs 'http://mirror/debian-security bookworm-security main$' \"$file\"; then v=1.96.0; fi";
        program(
            path,
            name,
            &format!(
                "if [ $# = 1 ]; then\n{sources}exit\nfi\nv='(none)'\ncase $2 in\n{versions}esac\n{added}\necho \"  Candidate: $v\""
            ),
        );
    }
    // A rustc of version 1.90.0 comes with its package, or by rustup.
    let rust = "for name in rustc cargo; do\n\
                printf '#!/bin/sh\\necho \"%s 1.90.0\"\\n' $name >\"$here/$name\" && chmod +x \"$here/$name\"; done";
    let here = format!("here='{}'", path.display());
    let rustup =
        format!("{here}\necho \"rustup $*\" >>\"$here/log\"\n[ \"$1\" != toolchain ] || {{ {rust}; }}");
    program(path, "fresh-rustup", &rustup);
    let apt = format!(
        "{here}\ncase \"$*\" in\n*' install '*) ;;\n\
         *' update') cat \"$here/updated\" >\"$here/apt-cache\"; echo 'apt update' >>\"$here/log\"; exit ;;\n*) exit 0 ;;\nesac\nfor package; do\ncase $package in\n\
         rustc | rustc-web) {rust} ;;\nrustup) cat \"$here/fresh-rustup\" >\"$here/rustup\"; chmod +x \"$here/rustup\" ;;\n\
         ca-certificates) ;;\n*) continue ;;\nesac\necho \"apt $package\" >>\"$here/log\"\ndone"
    );
    program(path, "apt-get", &apt);
    let mut script = Command::new(find("bash").expect("bash"));
    script.arg(top().join("ci/setup.sh")).arg("build").env("PATH", path).stdin(Stdio::null());
    let done = script.output().expect("ci/setup.sh starts");
    (done, fs::read_to_string(path.join("log")).unwrap_or_default())
}

#[test]
fn rust_comes_from_the_distribution_if_that_is_new_enough() {
    need!("dpkg", "bash");
    for (offered, expected) in [
        (
            &[("rustc", "1.90.0+dfsg1-1"), ("rustc-web", "1.96.0"), ("rustup", "1.27")][..],
            "apt rustc\napt ca-certificates\n",
        ),
        (
            &[("rustc", "1.63.0+dfsg1-2"), ("rustc-web", "1.96.0"), ("rustup", "1.27")],
            "apt rustc-web\napt ca-certificates\n",
        ),
        (
            &[("rustc", "1.75.0+dfsg0ubuntu1"), ("rustup", "1.27")],
            "apt rustup\napt ca-certificates\nrustup toolchain install --profile minimal stable\nrustup default stable\n",
        ),
    ] {
        let (done, installed) = set_up(offered);
        assert!(done.status.success(), "{offered:?}: {done:?}");
        assert_eq!(installed, expected, "{offered:?}: {done:?}");
    }
}

#[test]
fn a_machine_for_which_there_is_no_rust_is_told_so() {
    need!("dpkg", "bash");
    let (done, installed) = set_up(&[("rustc", "1.63.0+dfsg1-2")]);
    assert_eq!((done.status.code(), installed.as_str()), (Some(1), "apt update\n"), "{done:?}");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(text.contains("setup: missing: cargo and rustc ") && text.contains("rustup"), "{text}");
    assert!(text.contains("apt offers rustc 1.63.0+dfsg1-2 and rustc-web (none), and no rustup"), "{text}");
}

/// The lists of a root that debootstrap made today hold its main archive alone.
#[test]
fn issue_29_b8_new_lists_without_a_new_rust_are_updated() {
    need!("dpkg", "bash");
    let main = [("rustc", "1.63.0+dfsg1-2")];
    let all = [("rustc", "1.63.0+dfsg1-2"), ("rustc-web", "1.96.0")];
    let (done, installed) = set_up_with(&main, &all);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(installed, "apt update\napt rustc-web\napt ca-certificates\n", "{done:?}");
}

/// The sources of a root that debootstrap made name the main archive alone, whatever is updated.
#[test]
fn issue_29_a_root_without_the_security_archive_gets_rust_from_it() {
    need!("dpkg", "bash");
    let main = "http://mirror/debian bookworm/main amd64 Packages";
    let old = [("rustc", "1.63.0+dfsg1-2"), ("rustc-web", "1.85.0+dfsg3-1~deb12u3")];
    let (done, installed) = set_up_from(&[main], &old, &old);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(installed, "apt update\napt update\napt rustc-web\napt ca-certificates\n", "{done:?}");

    // Where it is a source already, or where the system is another, nothing is added.
    let security = "http://mirror/debian-security bookworm-security/main amd64 Packages";
    for archives in [&[main, security][..], &["http://mirror/ubuntu jammy/main amd64 Packages"]] {
        let (done, installed) = set_up_from(archives, &old, &old);
        assert_eq!((done.status.code(), installed.as_str()), (Some(1), "apt update\n"), "{done:?}");
    }
}
