// SPDX-License-Identifier: Apache-2.0
//! Real containers of Podman and containerd: hugelift as the entry point of an image, without any privilege, and the service of
//! the host with rules by image, label and namespace. Images are made of a static program; no registry is asked.

use crate::common::{HUGELIFT, fat, find, mounts};
use crate::skip;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const COMMON: &str = include_str!("containers.sh");
const PODMAN: &str = include_str!("podman.sh");
const CONTAINERD: &str = include_str!("containerd.sh");

const PODMAN_TOLD: &str = "\
lifted by its entry point: huge
capabilities: no sys_admin, a seccomp filter
lifted: wrong 0 ready wrong 0 
db: huge
web: small
rule database does not take it: image (localhost/db:*) does not hold
container: image localhost/db:1, label app=mariadb-1
the service ends: 0
db: huge
db: wrong 0 ready wrong 0 
web: wrong 0 ready wrong 0 
kept: wrong 0 ready wrong 0 
the layer is huge
again: huge
again: wrong 0 ready wrong 0 
0
";

const CONTAINERD_TOLD: &str = "\
db: huge
web: small
rule database does not take it: namespace (shop) does not hold
the service ends: 0
db: huge
db: wrong 0 ready wrong 0 
web: wrong 0 ready wrong 0 
0
";

/// Returns what this machine lacks.
fn lacks(programs: &[&str]) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".into());
    }
    if !mounts::kernel_has("overlay") {
        return Some("the kernel has no overlayfs".into());
    }
    let program = programs.iter().chain(&["unshare", "awk", "bash", "tar"]).find(|one| find(one).is_none());
    program.map(|program| format!("needs {program}"))
}

/// Runs a script behind [`COMMON`], in namespaces and a control group of its own. Returns what it prints.
fn told(script: &str) -> String {
    // On a file system on disk, whose page cache can be huge.
    let dir = tempfile::Builder::new().prefix("containers-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let dir = dir.expect("a folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("bin")).expect("a folder");
    fs::copy(HUGELIFT, at("bin/hugelift")).expect("a copy");
    // At a fixed base, where huge pages of the page cache can be mapped too.
    let flags = ["-static", "-no-pie", "-fno-pie", "-Wl,-z,max-page-size=0x200000"];
    fs::copy(fat("hold").flags(&flags).build(), at("hold")).expect("a copy");
    fs::write(at("script"), format!("{COMMON}{script}")).expect("the script");
    // The control group has the same name.
    let name = dir.path().file_name().map(Path::new).expect("a name");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([at("bin")].into_iter().chain(std::env::split_paths(&path))).expect("PATH");
    let mut command = Command::new("timeout");
    command.args([
        "-k",
        "5",
        "500",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "bash",
    ]);
    command.args([&at("script"), dir.path(), name]).env("PATH", path).env_remove("HUGELIFT_STORE");
    let out = command.stdin(Stdio::null()).output().expect("unshare(1)");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A machine may forbid what a container needs. The script says so, and then nothing else counts.
fn check(script: &str, expected: &str) {
    let told = told(script);
    if let Some(why) = told.lines().find_map(|line| line.strip_prefix("SKIP: ")) {
        skip!("{why}");
    }
    assert_eq!(told, expected);
}

#[test]
fn issue_33_6_containers_of_podman() {
    if let Some(why) = lacks(&["podman", "runc"]) {
        skip!("{why}");
    }
    check(PODMAN, PODMAN_TOLD);
}

#[test]
fn issue_33_7_containers_of_containerd() {
    if let Some(why) = lacks(&["containerd", "ctr", "runc", "python3"]) {
        skip!("{why}");
    }
    check(CONTAINERD, CONTAINERD_TOLD);
}
