// SPDX-License-Identifier: Apache-2.0
//! Tests that a program starts with hugelift wherever it starts without: with denied system calls, with
//! helpers that hang, and by a name that is looked up in PATH.

use crate::common::{Cmd, End, HUGELIFT, Held, WITH_FAULT_POINTS, fat, plain, run, same, same_lines};
use crate::{need, need_root};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

mod denied;

/// The program sees the same of its children as without hugelift.
#[test]
fn no_child_of_the_launcher_is_counted() {
    for flags in [&["-pie"][..], &["-static"]] {
        let usage = Cmd::new([fat("usage").flags(flags).build()]);
        let outcome = same(&usage, &["--backing", "thp"]);
        assert!(outcome.stdout.contains("children: 0 kB, 0 us, 0 faults"), "{outcome:?}");
        let setup = plain("setup").build();
        for word in ["ignore=17", "default=17", "block=17", "pend=17"] {
            let cmd = usage.clone().under([setup.as_os_str(), word.as_ref(), "--".as_ref()]);
            let without_usage = |text: &str| {
                text.split_inclusive('\n').filter(|line| !line.starts_with("children: ")).collect::<String>()
            };
            // The usage of children is not compared: with a pending SIGCHLD the launcher's child is
            // counted, the price of leaving the signal pending.
            same_lines(&cmd, &["--backing", "thp"], without_usage);
        }
    }
}

/// The program can wait for a child that the caller had before it executed hugelift.
#[test]
fn a_child_that_the_caller_had_is_still_reported() {
    let usage = fat("usage").build();
    for seconds in ["0", "0.3"] {
        let script = format!("(sleep {seconds}; exit 7) & exec \"$@\"");
        let cmd = Cmd::new([usage.as_os_str(), "wait".as_ref()]).under(["sh", "-c", &script, "sh"]);
        let outcome = same(&cmd, &["--backing", "thp"]);
        assert!(outcome.stdout.contains("a child of before: there, 7"), "{outcome:?}");
    }
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// hugelift starts the same file as env(1), which uses execvp(3), or ends with the same status.
#[test]
fn names_are_looked_up_as_execvp_does() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    script(&at("good/tool"), "#!/bin/sh\necho good\n");
    script(&at("gone/tool"), "#!/no/such/interpreter\n");
    script(&at("nested/tool"), &format!("#!{}\n", at("gone/tool").display()));
    script(&at("denied/tool"), "#!/etc/passwd\n");
    script(&at("plain/tool"), "echo by the shell\n");
    script(&at("mode/tool"), "#!/bin/sh\necho mode\n");
    fs::set_permissions(at("mode/tool"), Permissions::from_mode(0o644)).unwrap();
    fs::create_dir_all(at("directory/tool")).unwrap();
    fs::create_dir_all(at("empty")).unwrap();
    script(&at("file"), "no directory\n");
    let env = crate::common::find("env").unwrap();
    for dirs in [
        "good",
        "gone good",
        "nested good",
        "denied good",
        "mode good",
        "directory good",
        "file good",
        "plain good",
        "empty good",
        "gone",
        "nested",
        "denied",
        "mode",
        "directory",
        "file",
        "empty",
        "file empty",
        "empty file",
        "denied file",
        "denied empty",
        "mode gone file",
        "gone plain",
    ] {
        let path = std::env::join_paths(dirs.split(' ').map(at)).unwrap();
        let bare = Cmd::new([env.as_os_str(), "tool".as_ref()]).env("PATH", &path).bare();
        let lifted = Cmd::new(["tool"]).env("PATH", &path).lifted(&["--quiet"]);
        assert_eq!((bare.end, bare.stdout), (lifted.end, lifted.stdout), "PATH={dirs}: {}", lifted.stderr);
    }
}

/// The file that starts in the end is lifted, although a file earlier in PATH was tried with a helper.
#[test]
fn the_file_behind_a_broken_script_is_lifted() {
    let (dir, hold) = (tempfile::tempdir().unwrap(), fat("hold").build());
    let name = hold.file_name().unwrap();
    script(&dir.path().join(name), "#!/no/such/interpreter\n");
    let path = std::env::join_paths([dir.path(), hold.parent().unwrap()]).unwrap();
    let outcome = Cmd::new([name]).env("PATH", path).lifted(&["--backing", "thp", "--strict"]);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
}

/// In a new pid namespace without a new /proc, the message names `--mount-proc`, which helps.
#[test]
fn proc_of_another_namespace_is_named() {
    need_root!();
    need!("unshare");
    let hold = fat("hold").build();
    let cmd = Cmd::new([&hold]).under(["unshare", "--fork", "--pid"]);
    let outcome = cmd.lifted(&["--backing", "thp"]);
    assert_eq!((outcome.end, outcome.stdout), (End::Code(0), cmd.bare().stdout));
    assert!(outcome.stderr.contains("--mount-proc"), "{}", outcome.stderr);
    let advised = Cmd::new([&hold]).under(["unshare", "--fork", "--pid", "--mount-proc"]);
    let outcome = advised.lifted(&["--backing", "thp", "--strict"]);
    assert_eq!(
        (outcome.end, outcome.stderr.as_str()),
        (End::Code(0), ""),
        "hugelift still fails with --mount-proc"
    );
}

/// hugelift stops waiting for a helper that does not answer.
#[test]
fn a_helper_that_is_stopped_is_given_up() {
    for under in [&[][..], &["subreaper"]] {
        let setup = plain("setup").build();
        let mut words = vec![setup.as_os_str()];
        words.extend(under.iter().map(std::ffi::OsStr::new));
        words.push("--".as_ref());
        let cmd = Cmd::new([fat("hold").build()]).under(words).launcher(WITH_FAULT_POINTS);
        let outcome = cmd.clone().env("HUGELIFT_TEST_DIE", "0:stopped").env("HUGELIFT_TEST_PATIENCE", "300");
        let outcome = outcome.lifted(&["--backing", "thp"]);
        assert_eq!((outcome.end, &outcome.stdout), (End::Code(0), &cmd.bare().stdout), "{outcome:?}");
        assert!(outcome.stderr.contains("did not answer"), "{under:?}: {}", outcome.stderr);
    }
}

/// hugelift stops tracing a slow constructor at a deadline, and the program starts as without hugelift.
#[test]
fn a_slow_constructor_is_given_up() {
    // The constructor of a shared object: the program's own constructors run after its entry point.
    let usage = fat("usage").flags(&["-Wl,--no-as-needed"]).with(plain("slow").library().build()).build();
    let cmd = Cmd::new([usage]).env("SLOW", "2000").launcher(WITH_FAULT_POINTS);
    let outcome = cmd.clone().env("HUGELIFT_TEST_PATIENCE", "300").lifted(&["--backing", "thp"]);
    assert_eq!((outcome.end, &outcome.stdout), (End::Code(0), &cmd.bare().stdout), "{outcome:?}");
    assert!(outcome.stdout.contains("TracerPid:\t0"), "{outcome:?}");
    assert!(outcome.stderr.contains("did not stop in time"), "{}", outcome.stderr);
}

/// The launcher blocks signals while it writes a line. The first real-time signal of glibc is one that musl keeps for
/// itself, and leaves out of the masks that it reads.
#[test]
fn a_line_of_the_launcher_leaves_the_blocked_signals_as_they_are() {
    need_root!();
    need!("unshare", "grep");
    let setup = plain("setup").build();
    let program = Cmd::new(["grep", "^Sig[BIC]", "/proc/self/status"]);
    let cmd = program.under([setup.as_os_str()]).under(["block=13,34", "--", "unshare", "--pid"]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(&["--backing", "thp"]));
    assert!(bare.stdout.contains("SigBlk:\t0000000200001000"), "{bare:?}");
    assert_eq!(lifted.stdout, bare.stdout, "{lifted:?}");
    assert!(lifted.stderr.contains("go to another pid namespace"), "{lifted:?}");
}

/// hugelift's stderr is a full pipe that no process reads.
#[test]
fn a_full_stderr_does_not_hold_the_program_up() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let fill = |fd: &OwnedFd| {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut file = fs::File::from(fd.try_clone().unwrap());
        while file.write(&[b'x'; 4096]).is_ok() {}
        while file.write(b"x").is_ok() {}
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    };
    fill(&writer);
    let mut command = Command::new(HUGELIFT);
    command.args(["run", "-v", "--backing", "thp", "/bin/true"]).stderr(Stdio::from(writer));
    let mut child = command.spawn().unwrap();
    let end = run::wait(&mut child, Instant::now() + run::PATIENCE);
    if end.is_none() {
        child.kill().unwrap();
    }
    assert_eq!(end, Some(End::Code(0)));
    drop(reader);
}

/// With `-v` hugelift names a filter that it knows nothing of. A container's filter does not prevent the
/// lift.
#[test]
fn a_filter_is_named_and_a_known_one_is_no_obstacle() {
    need_root!();
    need!("setpriv");
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let under = |word: &str| Cmd::new([&hold]).under([setup.as_os_str(), word.as_ref(), "--".as_ref()]);
    // hugelift knows nothing of this filter: the program starts as bare, and hugelift prints nothing. With
    // `-v` it prints one line, which names the option that tries a lift.
    let cmd = under("nosync");
    same(&cmd, &["--backing", "thp"]);
    let verbose = cmd.lifted(&["--backing", "thp", "-v"]);
    assert_eq!(verbose.own_lines().len(), 1, "{verbose:?}");
    assert!(verbose.stderr.contains("--seccomp try"), "{verbose:?}");
    assert_eq!(cmd.lifted(&["--backing", "thp", "--strict"]).end, End::Code(125));
    // With the option the program is lifted.
    let tried = cmd.lifted(&["--backing", "thp", "--strict", "--seccomp", "try"]);
    assert_eq!((tried.end, tried.stderr.as_str()), (End::Code(0), ""));
    // In a container, a shell forks hugelift under the filter that the shell was started with.
    let fork = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    let nested = under("nosync").under(fork).under(fork);
    let lifted = nested.lifted(&["--backing", "thp", "--strict"]);
    assert_eq!(
        (lifted.end, lifted.stderr.as_str()),
        (End::Code(0), ""),
        "not lifted, though the shells only forked"
    );
    let weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    let container = under("nosync").under(weak).under(fork);
    let lifted = container.lifted(&["--backing", "thp", "--strict"]);
    assert_eq!(
        (lifted.end, lifted.stderr.as_str()),
        (End::Code(0), ""),
        "not lifted, though the shell added no filter"
    );
}

/// The helper of a program that runs ends when the program ends, not before and not later.
#[test]
fn the_helper_of_a_running_program_ends_with_the_program() {
    let hold = fat("hold").build();
    let held = Held::start(&Cmd::new([&hold]), Some(&["--backing", "thp", "--after-fork", "join"]), &hold);
    // A helper that still runs holds stderr open, and `finish` waits until stderr is closed.
    assert_eq!(held.finish().end, End::Code(0));
}
