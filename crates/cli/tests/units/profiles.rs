// SPDX-License-Identifier: Apache-2.0
//! `hugelift run` under the seccomp profiles that Podman and Docker give each container by default: their own files, made into
//! filters by libseccomp (victims/profile.c), with the capabilities that a container has.

use crate::common::huge::huge_of;
use crate::common::{Cmd, Held, fat, plain};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Podman's profile, as golang-github-containers-common of Debian has it.
const PODMAN: &str = "/usr/share/containers/seccomp.json";
/// Docker's, below the user's cache folder: profiles/seccomp/default.json of Debian's golang-github-docker-docker-dev, which
/// ci/setup.sh puts there. That of containerd, and so of Kubernetes' `RuntimeDefault`, is no file: a function of Go makes it.
const DOCKER: &str = "hugelift/docker-seccomp.json";
/// The capabilities of a container of Docker (DefaultCapabilities in moby's oci/caps/defaults.go). Podman gives fewer.
const CAPABILITIES: [&str; 14] = [
    "chown",
    "dac_override",
    "fsetid",
    "fowner",
    "mknod",
    "net_raw",
    "setgid",
    "setuid",
    "setfcap",
    "setpcap",
    "net_bind_service",
    "sys_chroot",
    "kill",
    "audit_write",
];
/// This architecture, as the profiles name it.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Returns whether a list in a rule's `includes` or `excludes` names something that a container has.
fn names(list: &Value, has: impl Fn(&str) -> bool) -> Option<bool> {
    let list = list.as_array().filter(|list| !list.is_empty())?;
    Some(list.iter().filter_map(Value::as_str).any(has))
}

/// Returns whether a rule is for this machine and for the capabilities of a container.
fn applies(rule: &Value) -> bool {
    let has_capability =
        |name: &str| CAPABILITIES.contains(&name.trim_start_matches("CAP_").to_lowercase().as_str());
    let [included, excluded] = ["includes", "excludes"].map(|key| {
        let of = &rule[key];
        [names(&of["caps"], has_capability), names(&of["arches"], |name| name == ARCHITECTURE)]
    });
    !included.contains(&Some(false)) && !excluded.contains(&Some(true))
}

fn action(of: &Value, number: &Value) -> String {
    match of.as_str() {
        Some("SCMP_ACT_ALLOW") => "allow".into(),
        Some("SCMP_ACT_ERRNO") => format!("errno {}", number.as_u64().unwrap_or(1)),
        other => panic!("an action {other:?}"),
    }
}

/// Returns the lines that victims/profile.c reads.
fn lines_of(profile: &Value) -> String {
    let mut lines = action(&profile["defaultAction"], &profile["defaultErrnoRet"]) + "\n";
    for rule in profile["syscalls"].as_array().expect("rules").iter().filter(|rule| applies(rule)) {
        let what = action(&rule["action"], &rule["errnoRet"]);
        let mut conditions = String::new();
        for one in rule["args"].as_array().into_iter().flatten() {
            let operation = one["op"].as_str().expect("an operation").trim_start_matches("SCMP_CMP_");
            let second = one["valueTwo"].as_u64().unwrap_or(0);
            write!(conditions, " {} {operation} {} {second}", one["index"], one["value"]).expect("write");
        }
        for name in rule["names"].as_array().expect("names").iter().filter_map(Value::as_str) {
            writeln!(lines, "{what} {name}{conditions}").expect("write");
        }
    }
    lines
}

/// With `--seccomp try` the code is huge, and under Podman's profile nothing is lost. Without it the program starts as it is.
#[test]
fn issue_33_the_default_profiles_of_containers() {
    need_root!();
    need!("setpriv");
    let launcher = match plain("profile").flags(&["-Wl,--no-as-needed", "-lseccomp"]).try_build() {
        Ok(launcher) => launcher,
        Err(_) => skip!("needs libseccomp-dev"),
    };
    let program = fat("hold").flags(&["-DUNDER_PROFILE"]).build();
    let bounding =
        CAPABILITIES.iter().fold("--bounding-set=-all".to_string(), |all, one| format!("{all},+{one}"));
    let Ok(podman) = fs::read_to_string(PODMAN) else {
        skip!("needs {PODMAN} of golang-github-containers-common")
    };
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    let Ok(docker) = fs::read_to_string(cache.join(DOCKER)) else {
        skip!("needs Docker's profile of golang-github-docker-docker-dev (ci/setup.sh test)")
    };
    for (profile, text) in [("Podman", &podman), ("Docker", &docker)] {
        let json: Value = serde_json::from_str(text).expect("JSON");
        let dir = tempfile::tempdir().expect("a folder");
        let lines = dir.path().join("profile");
        fs::write(&lines, lines_of(&json)).expect("write");
        let cmd = Cmd::new([&program]).under([
            launcher.as_os_str(),
            lines.as_os_str(),
            "setpriv".as_ref(),
            bounding.as_ref(),
        ]);
        for (options, is_huge) in [
            (&["-v", "--backing", "thp"][..], false),
            (&["-v", "--backing", "thp", "--seccomp", "try"], true),
        ] {
            let held = Held::start(&cmd, Some(options), &program);
            let huge = huge_of(held.pid(), &program).expect("it runs");
            let done = held.finish();
            assert_eq!(huge >= 4 << 20, is_huge, "{profile} {options:?}: {huge} bytes, {done:?}");
            assert!(is_huge || done.stderr.contains("a seccomp filter is on"), "{profile}: {done:?}");
            // Docker's forbids to move a program to a base where more of it is huge.
            let stays = done.stderr.contains("it stays: process_vm_writev");
            assert!(!stays || profile != "Podman", "{profile}: {done:?}");
        }
    }
}
