// SPDX-License-Identifier: Apache-2.0
//! A program that cannot be lifted, or only partly, runs as it does bare, and one line says why.
//! With `--quiet` hugelift prints nothing, and with `--strict` it starts nothing.

use crate::common::held::needed;
use crate::common::huge::{assert_lifted, pieces};
use crate::common::{CGroup, Cmd, End, HUGELIFT, Held, Outcome, Pool, Primed, fat, open_dir, plain};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};

/// Returns the path of the copy of `file` in a directory that `open_dir` has made.
fn copied(dir: &tempfile::TempDir, file: &Path) -> PathBuf {
    dir.path().join(file.file_name().expect("a file name"))
}

/// Asserts that the command runs as bare and that hugelift's only line has all of `words` in it;
/// that `--quiet` is silent; and that `--strict` starts nothing.
#[track_caller]
fn runs_plainly(cmd: &Cmd, options: &[&str], words: &[&str]) -> Outcome {
    let bare = cmd.bare();
    let lifted = cmd.lifted(options);
    as_bare(&bare, &lifted);
    match lifted.own_lines()[..] {
        [line] => assert!(words.iter().all(|w| line.contains(w)), "no {words:?} in: {line}"),
        _ => panic!("more or less than one line: {}", lifted.stderr),
    }
    let quiet = cmd.lifted(&[options, &["--quiet"]].concat());
    as_bare(&bare, &quiet);
    assert_eq!(quiet.own_lines(), Vec::<&str>::new());
    let strict = cmd.lifted(&[options, &["--strict"]].concat());
    assert_eq!((strict.end, strict.stdout.as_str()), (End::Code(125), ""), "--strict: {strict:?}");
    assert_eq!(strict.own_lines().len(), 1, "--strict: {strict:?}");
    assert_eq!(strict.other_lines(), "", "--strict: {strict:?}");
    lifted
}

#[track_caller]
fn as_bare(bare: &Outcome, lifted: &Outcome) {
    assert_eq!(bare.end, lifted.end, "{lifted:?}");
    let differs = crate::common::run::difference("stdout", &bare.stdout, &lifted.stdout);
    assert_eq!(differs, None, "{}", lifted.stderr);
    assert_eq!(bare.other_lines(), lifted.other_lines());
}

/// Asserts that the command runs as bare, and is either lifted completely and silently, or not
/// lifted and one line says why.
#[track_caller]
fn runs(cmd: &Cmd, options: &[&str]) -> Outcome {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("report").display().to_string();
    let bare = cmd.bare();
    let lifted = cmd.lifted(&[options, &["--report", &file]].concat());
    as_bare(&bare, &lifted);
    match lifted.own_lines().len() {
        0 => {
            let text = std::fs::read_to_string(&file).expect("a report");
            let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            for part in ["text", "rodata"] {
                let totals = &report["totals"][part];
                assert_eq!(totals["huge_bytes"], totals["liftable_bytes"], "silent, but not lifted: {text}");
                assert_ne!(totals["huge_bytes"], 0, "{text}");
            }
        }
        1 => {}
        n => panic!("{n} lines: {}", lifted.stderr),
    }
    lifted
}

/// Small programs have nothing to gain, so hugelift is silent.
#[test]
fn nothing_to_gain() {
    let cmd = Cmd::new(["/bin/true"]);
    let outcome = cmd.lifted(&[]);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let strict = cmd.lifted(&["--strict"]);
    assert_eq!((strict.end, strict.own_lines().len()), (End::Code(125), 1), "{strict:?}");
}

/// `--strict` starts a program that is lifted completely.
#[test]
fn strict_starts_what_is_lifted() {
    let hold = fat("hold").build();
    let outcome = Cmd::new([&hold]).lifted(&["--backing", "thp", "--strict"]);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""));
    assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n");
}

#[test]
fn an_empty_pool() {
    need_root!();
    let hold = fat("hold").build();
    let _pool = match Pool::with_free(0) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    runs_plainly(
        &Cmd::new([&hold]),
        &["--backing", "hugetlb"],
        &["free 0", "need ", "hugelift pool set 2M="],
    );
    // `auto` takes the next best backing, and prints nothing.
    let small = Primed::small(&hold);
    let hold = small.path();
    let held = Held::start(&Cmd::new([hold]), Some(&[]), hold);
    assert!(assert_lifted(&pieces(held.pid(), &needed(hold)), "thp", "auto") >= 2);
    assert_eq!(held.finish().stderr, "");
}

#[test]
fn a_pool_one_page_short() {
    need_root!();
    // The page cache is in small folios, so it cannot replace the pool.
    let small = Primed::small(&fat("hold").build());
    let hold = small.path();
    let cmd = Cmd::new([hold]);
    let pool = match Pool::with_free(crate::common::guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let held = Held::start(&cmd, Some(&["--backing", "hugetlb"]), hold);
    let need = crate::common::guard::PLENTY - pool.free();
    assert!(need >= 4, "only {need} pages in use");
    assert_eq!(held.finish().stderr, "");
    assert_eq!(pool.free(), crate::common::guard::PLENTY, "pages of the pool are lost");
    drop(pool);
    for missing in 1..=need {
        let pool = match Pool::with_free(need - missing) {
            Ok(pool) => pool,
            Err(why) => skip!("{why}"),
        };
        runs_plainly(&cmd, &["--backing", "hugetlb"], &["free ", "hugelift pool set 2M="]);
        assert_eq!(pool.free(), need - missing, "pages of the pool are lost");
        // `auto` does not take pages of the pool, and the whole program is huge.
        let held = Held::start(&cmd, Some(&["--backing", "auto"]), hold);
        for piece in pieces(held.pid(), &needed(hold)) {
            assert_eq!(piece.huge, piece.inner.map_or(0, |inner| inner.len()), "{piece:?}");
        }
        assert_eq!(pool.free(), need - missing, "auto used the pool");
        assert_eq!(held.finish().stderr, "");
    }
}

/// The command in hugelift's message helps: after it has run, no page is missing.
#[test]
fn the_hint_helps() {
    need_root!();
    let hold = fat("hold").build();
    let cmd = Cmd::new([&hold]);
    let pool = match Pool::with_free(0) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let options = ["--backing", "hugetlb"];
    for round in 0.. {
        let outcome = cmd.lifted(&options);
        let Some(line) = outcome.own_lines().first().map(|l| (*l).to_string()) else { break };
        assert!(round < 3, "still: {line}");
        let at = line.find("hugelift pool set ").unwrap_or_else(|| panic!("no command in: {line}"));
        let mut words = line[at..].split(' ').map(|word| word.trim_end_matches([',', ';', ')', '.']));
        let arguments: Vec<&str> = words.by_ref().skip(1).take(3).collect();
        crate::common::build::must(std::process::Command::new(crate::common::HUGELIFT).args(arguments));
    }
    drop(pool);
}

/// A hugetlb limit of the control group takes effect at the first touch, not at mmap(2). It must
/// become an error, never a SIGBUS.
#[test]
fn a_hugetlb_limit() {
    need_root!();
    let hold = fat("hold").build();
    let _pool = match Pool::with_free(crate::common::guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    for (names, value) in [
        (["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"], "2097152"),
        (["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"], "0"),
        (["hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.limit_in_bytes"], "2097152"),
    ] {
        let group = match CGroup::new("hugetlb") {
            Ok(group) => group,
            Err(why) => skip!("{why}"),
        };
        group.limit(&names, value).expect("set the limit");
        let cmd = Cmd::new([&hold]).under(group.words());
        runs_plainly(&cmd, &["--backing", "hugetlb"], &["hugetlb"]);
        let auto = cmd.lifted(&["--backing", "auto"]);
        assert_eq!((auto.end, auto.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"), "{auto:?}");
    }
}

/// The program fits under the memory limit, but its copy does not.
#[test]
fn a_memory_limit() {
    need_root!();
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let hold = fat("hold").size(32 << 20).build();
    group.limit(&["memory.max", "memory.limit_in_bytes"], "33554432").expect("set the limit");
    let cmd = Cmd::new([&hold]).under(group.words());
    runs_plainly(&cmd, &["--backing", "thp"], &["memory"]);
}

#[test]
fn an_address_space_limit() {
    for flags in [&["-pie"][..], &["-static"]] {
        let hold = fat("hold").size(32 << 20).flags(flags).build();
        let setup = plain("setup").build();
        let held = Held::start(&Cmd::new([&hold]), None, &hold);
        let status = held.proc("status");
        let peak = status.lines().find_map(|l| l.strip_prefix("VmPeak:")).expect("VmPeak");
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        drop(held);
        for spare_kb in [64, 1024, 8192] {
            let limit = (peak + spare_kb) << 10;
            let word = format!("rlimit=9:{limit}:{limit}");
            let cmd = Cmd::new([&hold]).under([setup.as_os_str(), word.as_ref(), "--".as_ref()]);
            runs_plainly(&cmd, &["--backing", "thp"], &[]);
        }
    }
}

/// Pages of the pool are not locked memory, so this limit changes nothing.
#[test]
fn a_locked_memory_limit() {
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let cmd = Cmd::new([&hold]).under([setup.as_os_str(), "rlimit=8:0:0".as_ref(), "--".as_ref()]);
    crate::common::each_backing(|options| {
        let outcome = runs(&cmd, options);
        assert_eq!(outcome.stderr, "");
    });
}

/// To move a program, its file has to be opened once more.
#[test]
fn a_limit_of_open_files_of_a_moved_program() {
    let setup = plain("setup").build();
    let primed = match Primed::new(&fat("hold").flags(&["-pie"]).build()) {
        Ok(primed) => primed,
        Err(why) => skip!("{why}"),
    };
    for limit in 4..=12 {
        let word = format!("rlimit=7:{limit}:{limit}");
        let cmd = Cmd::new([primed.path()]).under([setup.as_os_str(), word.as_ref(), "--".as_ref()]);
        let (bare, lifted) = (cmd.bare(), cmd.lifted(&["--backing", "pagecache"]));
        as_bare(&bare, &lifted);
        assert!(lifted.own_lines().len() <= 1, "{lifted:?}");
    }
}

#[test]
fn a_limit_of_processes() {
    need_root!();
    need!("setpriv");
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let dir = open_dir(&[&setup, &hold]);
    let cmd = Cmd::new([copied(&dir, &hold)])
        .launcher(copied(&dir, Path::new(HUGELIFT)))
        .cwd("/")
        .under(["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"])
        .under([copied(&dir, &setup).as_os_str(), "rlimit=6:0:0".as_ref(), "--".as_ref()]);
    runs_plainly(&cmd, &["--backing", "thp"], &["fork", "ulimit"]);
}

/// Nothing is mounted on /proc.
#[test]
fn no_proc() {
    need_root!();
    need!("unshare", "mount");
    for flags in [&["-pie"][..], &["-static"]] {
        let hold = fat("hold").flags(flags).build();
        let hide = "mount -t tmpfs none /proc && exec \"$@\"";
        let cmd = Cmd::new([&hold]).under(["unshare", "--mount", "sh", "-c", hide, "sh"]);
        runs_plainly(&cmd, &["--backing", "thp"], &["/proc"]);
    }
}

/// A user who is not root may execute the program but not read it.
#[test]
fn an_unreadable_executable() {
    need_root!();
    need!("setpriv");
    use std::os::unix::fs::PermissionsExt;
    for flags in [&["-pie"][..], &["-static"]] {
        let hold = fat("hold").flags(flags).build();
        let dir = open_dir(&[&hold]);
        let program = copied(&dir, &hold);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o111)).expect("chmod");
        let cmd = Cmd::new([&program]).launcher(copied(&dir, Path::new(HUGELIFT))).cwd("/").under([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
        runs_plainly(&cmd, &["--backing", "thp"], &[&program.display().to_string()]);
    }
}

/// A program that the kernel gives other rights must get them.
#[test]
fn privileged_programs() {
    need_root!();
    need!("setpriv");
    use std::os::unix::fs::{PermissionsExt, chown};
    let state = fat("state").build();
    let dir = open_dir(&[&state]);
    let program = copied(&dir, &state);
    // Through env, because setpriv itself keeps root's rights until it executes the next program.
    let user = Cmd::new([&program]).launcher(copied(&dir, Path::new(HUGELIFT))).cwd("/").under([
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "env",
    ]);
    let set = |owner: u32, mode: u32| {
        chown(&program, Some(owner), Some(owner)).expect("chown");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    set(0, 0o4755);
    if !user.bare().stdout.contains("Uid:\t65534\t0\t0\t0") {
        skip!("{} is mounted nosuid", dir.path().display());
    }
    let outcome = runs_plainly(&user, &[], &["set-uid", &program.display().to_string()]);
    assert!(outcome.stdout.contains("Uid:\t65534\t0\t0\t0"), "{outcome:?}");
    set(0, 0o2755);
    let outcome = runs_plainly(&user, &[], &["set-gid"]);
    assert!(outcome.stdout.contains("Gid:\t65534\t0\t0\t0"), "{outcome:?}");
    // Root runs another user's set-uid program, which loses rights.
    set(65534, 0o4755);
    let outcome = runs_plainly(&Cmd::new([&program]).cwd("/"), &[], &["set-uid"]);
    assert!(outcome.stdout.contains("Uid:\t0\t65534\t65534\t65534"), "{outcome:?}");
    set(0, 0o755);
    need!("setcap");
    crate::common::build::must(
        std::process::Command::new("setcap").arg("cap_net_bind_service=ep").arg(&program),
    );
    let outcome = runs_plainly(&user, &[], &["capabilities"]);
    assert!(outcome.stdout.contains("CapEff:\t0000000000000400"), "{outcome:?}");
    // Nor can a script bypass the check: what counts are the interpreter's capabilities.
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{}\n", program.display())).expect("write");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let through = Cmd::new([&script]).launcher(copied(&dir, Path::new(HUGELIFT))).cwd("/");
    let through = through.under(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]);
    let outcome = runs_plainly(&through, &[], &["capabilities"]);
    assert!(outcome.stdout.contains("CapEff:\t0000000000000400"), "{outcome:?}");
}

/// With no_new_privs the kernel gives no such rights, so tracing takes none away.
#[test]
fn no_new_privileges() {
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let cmd = Cmd::new([&hold]).under([setup.as_os_str(), "nnp".as_ref(), "--".as_ref()]);
    crate::common::each_backing(|options| assert_eq!(runs(&cmd, options).stderr, ""));
}

/// A sandbox may forbid the calls with which hugelift traces, or those that it makes in the
/// program.
#[test]
fn seccomp_filters() {
    // Under a filter that hugelift does not know, it lifts only with `--seccomp try`.
    const TRY: [&str; 4] = ["--backing", "thp", "--seccomp", "try"];
    need_root!();
    let setup = plain("setup").build();
    for flags in [&["-pie"][..], &["-static"]] {
        let hold = fat("hold").flags(flags).build();
        let under = |word: &str| Cmd::new([&hold]).under([setup.as_os_str(), word.as_ref(), "--".as_ref()]);
        runs_plainly(&under("noptrace"), &TRY, &["trac"]);
        runs_plainly(&under("killptrace"), &TRY, &["helper"]);
        runs_plainly(&under("nomremap"), &TRY, &["mremap"]);
        runs(&under("novmread"), &TRY);
        runs(&under("nomadvise"), &TRY);
        // The filter kills the helper in the middle of the lift, and the program runs on.
        let cmd = under("killvmread");
        as_bare(&cmd.bare(), &cmd.lifted(&TRY));
    }
}

#[test]
fn thp_switched_off_for_the_process() {
    let (setup, hold) = (plain("setup").build(), fat("hold").build());
    let cmd = Cmd::new([&hold]).under([setup.as_os_str(), "nothp".as_ref(), "--".as_ref()]);
    runs_plainly(&cmd, &["--backing", "thp"], &["PR_SET_THP_DISABLE"]);
}

/// Only this command sees `/sys/kernel/mm/transparent_hugepage/enabled` as it reads where THP is
/// switched off.
#[test]
fn thp_switched_off_for_the_machine() {
    need_root!();
    need!("unshare", "mount");
    let hold = fat("hold").build();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("enabled");
    std::fs::write(&file, "always madvise [never]\n").expect("write");
    let show =
        format!("mount --bind {} /sys/kernel/mm/transparent_hugepage/enabled && exec \"$@\"", file.display());
    let cmd = Cmd::new([&hold]).under(["unshare", "--mount", "sh", "-c", &show, "sh"]);
    let words = ["never", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"];
    runs_plainly(&cmd, &["--backing", "thp"], &words);
}

/// `unshare --pid` without `--fork`: a helper would become pid 1 of the new namespace.
#[test]
fn children_in_another_pid_namespace() {
    need_root!();
    need!("unshare");
    let hold = fat("hold").build();
    let cmd = Cmd::new([&hold]).under(["unshare", "--pid"]);
    runs_plainly(&cmd, &["--backing", "thp"], &["unshare --fork --pid"]);
}

/// `-v` prints whole lines, and only to stderr.
#[test]
fn verbosity() {
    let hold = fat("hold").build();
    let cmd = Cmd::new([&hold]);
    let lines = |options: &[&str]| {
        let outcome = cmd.lifted(&[&["--backing", "thp"], options].concat());
        assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n", "{outcome:?}");
        assert_eq!(outcome.other_lines(), "", "{outcome:?}");
        outcome.own_lines().len()
    };
    let counts = [lines(&[]), lines(&["-v"]), lines(&["-vv"])];
    assert!(counts[0] == 0 && 0 < counts[1] && counts[1] < counts[2], "{counts:?}");
}
