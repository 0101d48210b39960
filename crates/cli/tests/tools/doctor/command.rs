// SPDX-License-Identifier: Apache-2.0
//! Tests of the options, questions and error messages of `hugelift doctor`.

use super::*;
use crate::need;

#[test]
fn fix_runs_what_is_safe_and_nothing_else() {
    let machine = Recorded::well_set();
    machine.write(&format!("{THP}/enabled"), "always madvise [never]\n");
    machine.write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    let root = ["--root".as_ref(), machine.root().as_os_str()];
    let fix = |more: &[&str]| {
        let words = ["--fix"].iter().chain(more).map(OsStr::new).chain(root);
        Command::new(HUGELIFT).arg("doctor").args(words).stdin(Stdio::null()).output().expect("it runs")
    };
    let before = machine.files();
    let out = fix(&[]);
    assert_eq!((out.status.code(), machine.files() == before), (Some(125), true), "{out:?}");
    assert!(text(&out.stderr).contains("add --yes"), "{out:?}");
    let out = fix(&["--yes"]);
    let shown = text(&out.stdout);
    assert_eq!(machine.read(&format!("{THP}/enabled")), "madvise\n", "{shown}");
    assert_eq!(machine.read("/proc/sys/kernel/yama/ptrace_scope"), "2\n", "changed a matter of policy");
    assert!(shown.contains("echo madvise > ") && shown.contains("1 more that you must decide"), "{shown}");
    assert_eq!(out.status.code(), Some(1), "yama must still be reported as a problem");
    assert!(text(&fix(&["--yes"]).stdout).starts_with("nothing to fix"));
}

/// Root may have unpacked hugelift in a folder in which others can put files. What they put there is not run.
#[test]
fn fix_runs_no_program_beside_hugelift() {
    let machine = Recorded::well_set();
    machine.write(&format!("{THP}/enabled"), "always madvise [never]\n");
    let dir = open_dir(&[]);
    let (own, mark) = (dir.path().join("hugelift"), dir.path().join("mark"));
    crate::common::cache::copy(HUGELIFT, &own);
    for name in ["sh", "echo", "hugelift-other"] {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\ntouch '{}'\n", mark.display())).expect("write");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    let out = Command::new(&own)
        .args(["doctor", "--fix", "--yes", "--root"])
        .arg(machine.root())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(machine.read(&format!("{THP}/enabled")), "madvise\n", "{out:?}");
    assert!(!mark.exists(), "{out:?}");
}

/// On a terminal `--fix` asks before it acts, and the output has colours unless NO_COLOR is set.
#[test]
fn on_a_terminal_it_asks() {
    need!("script");
    let machine = Recorded::well_set();
    let never = "always madvise [never]\n";
    let on_terminal = |options: &str, answer: &str, no_color: &str| {
        machine.write(&format!("{THP}/enabled"), never);
        let line = format!("'{HUGELIFT}' doctor {options} --root '{}'", machine.root().display());
        let mut child = Command::new("timeout")
            .args(["60", "script", "-qec", &line, "/dev/null"])
            .env("NO_COLOR", no_color)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        child.stdin.take().expect("stdin").write_all(answer.as_bytes()).expect("answer");
        let out = child.wait_with_output().expect("it ends");
        (text(&out.stdout), machine.read(&format!("{THP}/enabled")))
    };
    let (shown, after) = on_terminal("--fix", "n\n", "");
    assert!(shown.contains("run it? [y/N]") && shown.contains("\x1b[1;31mPROBLEM"), "{shown}");
    assert_eq!(after, never);
    let (shown, after) = on_terminal("--fix", "y\n", "1");
    assert!(shown.contains("done") && !shown.contains('\x1b'), "{shown}");
    assert_eq!(after, "madvise\n");
    let out = doctor([OsStr::new("--root"), machine.root().as_os_str()]);
    assert!(!text(&out.stdout).contains('\x1b'), "colours in the output to a pipe");
}

#[test]
fn facts_can_be_judged_elsewhere() {
    let machine = Recorded::well_set();
    machine.write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    let printed = doctor([OsStr::new("--json"), OsStr::new("--root"), machine.root().as_os_str()]);
    let file = machine.path("facts.json");
    fs::write(&file, &printed.stdout).expect("write it");
    let again = doctor([OsStr::new("--json"), OsStr::new("--facts"), file.as_os_str()]);
    assert_eq!(text(&again.stdout), text(&printed.stdout));
    assert_eq!(again.status.code(), Some(1));
    // A pipe of the caller is read too, and a FIFO, which others may have made, is not.
    let piped = format!("cat '{}' | '{HUGELIFT}' doctor --json --facts /dev/stdin", file.display());
    let piped = Command::new("sh").args(["-c", &piped]).output().expect("sh");
    assert_eq!(text(&piped.stdout), text(&printed.stdout), "{piped:?}");
    let fifo = machine.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    for odd in [fifo.as_path(), Path::new("/dev/zero")] {
        let out = doctor([OsStr::new("--facts"), odd.as_os_str()]);
        assert_eq!((out.status.code(), text(&out.stderr).lines().count()), (Some(125), 1), "{out:?}");
    }
    for odd in ["", "{}", "[1]", "{\"facts\": 1}", "{\"facts\": {\"pools\": [{}]}}"] {
        fs::write(&file, odd).expect("write it");
        let out = doctor([OsStr::new("--facts"), file.as_os_str()]);
        let said = text(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{odd}: {said}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_said_in_one_line() {
    for (args, says) in [
        (&["--pid", "8388608"][..], "there is no process 8388608"),
        (&["--dir", "/no/such/folder"], "/no/such/folder is not a folder"),
        (&["--facts", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let out = doctor(args);
        let said = text(&out.stderr);
        assert!(said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
        assert_eq!(out.status.code(), Some(125));
    }
    // `--dir` tries files out in this folder and leaves none behind.
    let folder = tempfile::TempDir::new().expect("a folder");
    let out = doctor([OsStr::new("--dir"), folder.path().as_os_str()]);
    assert!(text(&out.stdout).contains(&format!("files in {}", folder.path().display())));
    assert_eq!(fs::read_dir(folder.path()).expect("read it").count(), 0);
}
