// SPDX-License-Identifier: Apache-2.0
//! Tests that a program starts with hugelift under every resource limit under which it starts without.

use crate::common::{Cmd, End, HUGELIFT, fat, open_dir, plain};
use crate::{need, need_root};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The numbers of resource limits (getrlimit(2)); they are the same on both architectures.
const FSIZE: u32 = 1;
const DATA: u32 = 2;
const STACK: u32 = 3;
const NPROC: u32 = 6;
const NOFILE: u32 = 7;
const AS: u32 = 9;

/// Programs that start in different ways: a static one, a dynamic one, a small one.
fn programs() -> [PathBuf; 3] {
    [fat("hold").flags(&["-static"]).build(), fat("hold").flags(&["-pie"]).build(), "/bin/true".into()]
}

fn limited(limit: u32, value: u64) -> [OsString; 3] {
    let word = format!("rlimit={limit}:{value}:{value}");
    [plain("setup").build().into_os_string(), word.into(), "--".into()]
}

/// Checks that hugelift starts each program under each limit under which env(1) starts it, with `options` and without
/// any, where its watcher stays beside the program. Returns the number of starts by env(1).
fn sweep(limit: u32, values: impl Iterator<Item = u64>, options: &[&str]) -> usize {
    let env = crate::common::find("env").expect("env");
    let mut starts = 0;
    for value in values {
        for program in programs() {
            // The environment takes stack: it is empty for all starts.
            let start = |words: &[&OsStr]| Cmd::new(words).under(limited(limit, value)).clear_env();
            let bare = start(&[env.as_os_str(), program.as_os_str()]).bare();
            if bare.end != End::Code(0) {
                continue;
            }
            starts += 1;
            let cmd = start(&[program.as_os_str()]);
            for lifted in [cmd.lifted(options), cmd.clone().lazy().lifted(&[])] {
                let what = format!("limit {limit} = {value}, {}", program.display());
                assert_eq!(
                    (&bare.stdout, bare.end),
                    (&lifted.stdout, lifted.end),
                    "{what}: {}",
                    lifted.stderr
                );
                assert_eq!(lifted.other_lines(), "", "{what}");
            }
        }
    }
    starts
}

/// `ulimit -s`: hugelift needs more stack than some programs, and allocates its own. The sweep begins at
/// 16 kB, since below that it depends on where the kernel puts the stack's beginning whether a loader works.
#[test]
fn a_limit_on_the_stack() {
    let kilobytes = (16..64).step_by(4).chain((64..=256).step_by(32));
    let starts = sweep(STACK, kilobytes.map(|kb| kb << 10), &["--backing", "thp"]);
    assert!(starts > 20, "env(1) started a program only {starts} times");
}

/// Starts programs under limits from the least under which hugelift can read its own options.
fn sweep_from_what_hugelift_needs(limit: u32) {
    let loads = |bytes| {
        let outcome = Cmd::new([HUGELIFT, "run", "--help"]).under(limited(limit, bytes)).bare();
        outcome.end == End::Code(0)
    };
    let floor = (1..512)
        .map(|mb| mb << 20)
        .find(|bytes| loads(*bytes))
        .expect("hugelift run --help fails at a limit of 511 MB");
    let steps = (0..16).map(|n| n << 18).chain((4..96).step_by(8).map(|mb| mb << 20));
    let starts = sweep(limit, steps.map(|above| floor + above), &["--backing", "thp"]);
    assert!(starts > 20, "env(1) started a program only {starts} times");
}

/// `ulimit -v`
#[test]
fn a_limit_on_the_address_space() {
    sweep_from_what_hugelift_needs(AS);
}

/// `ulimit -d`: private writable memory, of which hugelift needs more than many programs.
#[test]
fn a_limit_on_data() {
    sweep_from_what_hugelift_needs(DATA);
}

/// `ulimit -n`: the sweep begins at the four files that the loader of hugelift needs.
#[test]
fn a_limit_on_open_files() {
    assert!(sweep(NOFILE, 4..=12, &["--backing", "thp"]) > 20);
}

/// Each limit at values near its least: none of them is one that hugelift alone meets.
#[test]
fn every_limit_at_its_least() {
    // Those of a sweep of their own, and RLIMIT_CPU, whose least ends any program.
    let swept = [0, FSIZE, DATA, STACK, NPROC, NOFILE, AS];
    for limit in (0..16).filter(|limit| !swept.contains(limit)) {
        let starts = sweep(limit, [0, 1, 4096, 64 << 10, 1 << 20].into_iter(), &["--backing", "thp"]);
        assert!(starts > 0, "env(1) started no program under limit {limit}");
    }
}

/// `ulimit -u`, as a user who is not root: it does not limit root.
#[test]
fn a_limit_on_processes() {
    need_root!();
    need!("setpriv");
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let dir = open_dir(&[&setup, &hold]);
    let copied = |file: &Path| dir.path().join(file.file_name().expect("a file name"));
    for value in 0..=5 {
        let word = format!("rlimit={NPROC}:{value}:{value}");
        let cmd = Cmd::new([copied(&hold)])
            .launcher(copied(Path::new(HUGELIFT)))
            .cwd("/")
            .under(["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"])
            .under([copied(&setup).as_os_str(), word.as_ref(), "--".as_ref()]);
        let bare = cmd.bare();
        for lifted in [cmd.lifted(&["--backing", "thp"]), cmd.clone().lazy().lifted(&[])] {
            assert_eq!((bare.end, &bare.stdout), (lifted.end, &lifted.stdout), "{value}: {}", lifted.stderr);
            assert_eq!(lifted.other_lines(), "", "{value}");
        }
    }
}

/// `ulimit -f`: hugelift's writes to its own files, a report or stderr do not end the program.
#[test]
fn a_limit_on_the_size_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let (report, store) = (dir.path().join("report").display().to_string(), dir.path().join("store"));
    for value in [0, 1, 100, 4096] {
        sweep(FSIZE, [value].into_iter(), &["--backing", "thp", "--report", &report]);
        // Notes and the store are files too, and stderr is a file here.
        for backing in ["auto", "shared", "thp"] {
            let errors = dir.path().join("errors").display().to_string();
            let to_file = ["sh", "-c", "exec \"$@\" 2>\"$0\"", &errors];
            let hold = fat("hold").build();
            let cmd = Cmd::new([&hold]).env("HUGELIFT_STORE", &store);
            let cmd = cmd.under(to_file).under(limited(FSIZE, value));
            let outcome = cmd.lifted(&["-v", "--backing", backing]);
            assert_eq!(outcome.end, End::Code(0), "{backing}, {value} bytes: {outcome:?}");
            assert_eq!(outcome.stdout, cmd.bare().stdout, "{backing}, {value} bytes");
        }
    }
}

/// Data from the pool, for which hugelift puts its library into the program.
const POOL: [&str; 5] = ["run", "--parts", "all", "--data-backing", "hugetlb"];

/// Without its file beside hugelift, as after `cargo install`, the library is a file in memory, for which the limits of
/// files hold too.
#[test]
fn limits_with_the_library_in_memory() {
    let dir = open_dir(&[]);
    let command = dir.path().join("hugelift");
    for (limit, value) in [(FSIZE, 0), (FSIZE, 8192), (NOFILE, 4), (NOFILE, 5), (NOFILE, 8)] {
        let echo = |words: &[&OsStr]| Cmd::new(words).under(limited(limit, value)).bare();
        let words =
            [&[command.as_os_str()][..], &POOL.map(OsStr::new), &["--", "/bin/echo", "hi"].map(OsStr::new)];
        let lifted = echo(&words.concat());
        assert_eq!((lifted.end, &*lifted.stdout), (End::Code(0), "hi\n"), "{limit} = {value}: {lifted:?}");
    }
}

/// A set-uid program is started plainly: it gets neither the library's file nor the variables, which its loader would
/// ignore.
#[test]
fn a_set_uid_program_gets_no_library() {
    need_root!();
    need!("setpriv", "env", "ls");
    use std::os::unix::fs::PermissionsExt as _;
    let dir = open_dir(&[]);
    let command = dir.path().join("hugelift");
    for (name, args) in [("env", &[][..]), ("ls", &["-l", "/proc/self/fd"])] {
        let program = dir.path().join(name);
        crate::common::cache::copy(crate::common::find(name).expect("needed above"), &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("chmod");
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let cmd = Cmd::new([&command]).args(POOL).arg("--").arg(&program).args(args).under(nobody);
        let outcome = cmd.bare();
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        assert!(!outcome.stdout.is_empty(), "{outcome:?}");
        for trace in ["memfd", "HUGELIFT_FORK_RESERVE", "LD_PRELOAD"] {
            assert!(!outcome.stdout.contains(trace), "{outcome:?}");
        }
    }
}
