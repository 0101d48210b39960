// SPDX-License-Identifier: Apache-2.0
//! A program of which nothing exists that could be mapped at its start goes on as it is: from its exec stop if no
//! store has a copy, from its entry point if a store has copies of other files alone.

use crate::common::build::open_dir;
use crate::common::run::difference;
use crate::common::{Cmd, End, HUGELIFT, Outcome, WITH_FAULT_POINTS, fat, plain};
use crate::{need, need_root};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The stores that a start may find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Has {
    Nothing,
    /// A copy of another program.
    Others,
    /// A copy of the program too.
    Own,
}

const ALL: [Has; 3] = [Has::Nothing, Has::Others, Has::Own];

/// A directory on a tmpfs that allows code, for one store.
struct Store(tempfile::TempDir);

impl Store {
    fn new(has: Has, program: &Path) -> Store {
        let store = Store(tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm"));
        let other = fat("counts").build();
        let copied: &[&Path] = match has {
            Has::Nothing => &[],
            Has::Others => &[&other],
            Has::Own => &[&other, program],
        };
        for program in copied {
            let cmd = Cmd::new([program]).env("HUGELIFT_STORE", store.path());
            assert_eq!(cmd.lifted(&["--backing", "shared", "--strict"]).stderr, "");
        }
        store
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Returns the command under `hugelift run` with these options, without `--eager`.
    fn run(&self, options: &[&str], cmd: &Cmd) -> Cmd {
        self.run_by(HUGELIFT, options, cmd)
    }

    fn run_by(&self, hugelift: &str, options: &[&str], cmd: &Cmd) -> Cmd {
        let cmd = cmd.clone().env("HUGELIFT_STORE", self.path());
        cmd.under([hugelift, "run"]).under(options).under(["--"])
    }
}

/// What hugelift did, as its log says.
fn did(store: &Store, options: &[&str], program: &Path) -> (bool, bool) {
    let cmd = Cmd::new([program]).env("HUGELIFT_LOG", "debug");
    let outcome = store.run(options, &cmd).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let has = |text: &str| outcome.stderr.contains(text);
    (has("files of the program's code"), has("planned plan="))
}

#[test]
fn what_is_looked_at() {
    let program = fat("state").build();
    let [nothing, others, own] = ALL.map(|has| Store::new(has, &program));
    let asks =
        hugelift_linux::proc::mapping::inodes_of_code(hugelift_linux::proc::procfs::Process::OWN).is_ok();
    assert_eq!(did(&nothing, &[], &program), (false, false));
    // Before Linux 6.11 the mappings are read.
    assert_eq!(did(&others, &[], &program), (true, !asks));
    assert_eq!(did(&own, &[], &program), (true, true));
    // What is asked for is looked at.
    let report = nothing.0.path().join("report");
    let report = report.to_str().expect("UTF-8");
    for options in
        [&["-v"][..], &["--report", report], &["--eager"], &["--parts", "all"], &["--after-fork", "join"]]
    {
        assert_eq!(did(&nothing, options, &program), (false, true), "{options:?}");
    }
}

/// Asserts that the program does the same in each case as without hugelift, which is silent.
fn agrees(program: &Path, cmd: &Cmd) -> Outcome {
    let outcomes = ALL.map(|has| {
        let store = Store::new(has, program);
        let bare = cmd.clone().env("HUGELIFT_STORE", store.path()).bare();
        let lifted = store.run(&[], cmd).bare();
        let differs = difference("stdout", &bare.stdout, &lifted.stdout);
        assert_eq!(differs, None, "{has:?}");
        assert_eq!((lifted.end, lifted.stderr.as_str()), (bare.end, bare.stderr.as_str()), "{has:?}");
        lifted
    });
    outcomes.into_iter().next().expect("three")
}

/// The SIGCONT by which the program stops itself at its entry point does not arrive, and no code stays in the vdso.
#[test]
fn no_signal_and_no_code_is_left() {
    for flags in [&[][..], &["-DBLOCKED"]] {
        let program = fat("conts").with(fat("conts").flags(flags).library().build()).build();
        let outcome = agrees(&program, &Cmd::new([&program]));
        assert_eq!(outcome.stdout, "conts 0, tracer 0, vdso 0, wrong 0\n");
    }
}

#[test]
fn it_cannot_tell() {
    let (setup, program) = (plain("setup").build(), fat("state").build());
    let blocked: [&[&str]; 4] =
        [&["block=10,17"], &["block=10,17,18"], &["pend=10,17,40"], &["pend=10,17,18,40"]];
    for words in blocked.into_iter().chain([&[][..], &["ignore=17", "ignore=18"]]) {
        let cmd = Cmd::new([&program]).under([&setup]).under(words).under(["--"]);
        let outcome = agrees(&program, &cmd);
        assert_eq!(outcome.end, End::Code(0), "{words:?}: {outcome:?}");
    }
}

/// A child of a constructor sends 2,000 signals that queue, during the whole start.
#[test]
fn signals_at_the_entry_point() {
    let object = fat("signals").library().build();
    let program = fat("signals").with(object).build();
    for _ in 0..3 {
        let outcome = agrees(&program, &Cmd::new([&program]));
        let expected = "queued 2000, out of order 0, plain 1, sender 0, wrong 0\n";
        assert_eq!(outcome.stdout, expected, "{outcome:?}");
    }
}

/// Another process stops and continues it, again and again: the SIGCONT of its own may be lost meanwhile, which the
/// helper must not wait for.
#[test]
fn stopped_and_continued_at_the_entry_point() {
    for flags in [&["-DSTOPS"][..], &["-DSTOPS", "-DHELD"]] {
        let program = fat("conts").with(fat("conts").flags(flags).library().build()).build();
        let store = Store::new(Has::Others, &program);
        let cmd = store.run(&[], &Cmd::new([&program])).patience(Duration::from_secs(60));
        for _ in 0..25 {
            let outcome = cmd.bare();
            let said = (outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.end);
            assert_eq!(said, ("conts 0, tracer 0, vdso 0, wrong 0\n", "", End::Code(0)), "{flags:?}");
        }
    }
}

/// A user may read entries of root's store but not list it: the program is looked at.
#[test]
fn a_user_finds_what_root_has_stored() {
    need_root!();
    need!("setpriv");
    let program = fat("state").build();
    let root = Store::new(Has::Own, &program);
    let open = open_dir(&[Path::new(HUGELIFT), &program]);
    std::fs::set_permissions(root.0.path(), Permissions::from_mode(0o711)).expect("chmod");
    let inside = |path: &Path| open.path().join(path.file_name().expect("a name"));
    let cmd = Cmd::new([program]).env("HUGELIFT_STORE", root.path()).env("HUGELIFT_LOG", "debug");
    let cmd = cmd.under(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    let outcome = cmd.under([inside(Path::new(HUGELIFT)).as_os_str(), "run".as_ref(), "--".as_ref()]).bare();
    assert!(outcome.stderr.contains("planned plan="), "{outcome:?}");
    assert!(!outcome.stderr.contains("files of the program's code"), "{outcome:?}");
}

/// SIGTERM kills, SIGSTOP stops, and the SIGCONT that follows continues, at each moment of the start.
#[test]
fn signals_from_outside() {
    let (reaper, setup) = (plain("reaper").build(), plain("setup").build());
    let program = fat("counts").build();
    let store = Store::new(Has::Others, &program);
    for (signal, said, end) in [
        (10, "usr1 1, wrong 0\n", "reaper: exited 0, left 0\n"),
        (15, "", "reaper: killed 15, left 0\n"),
        (19, "usr1 0, wrong 0\n", "reaper: exited 0, left 0\n"),
    ] {
        for after in (0..4000).step_by(200) {
            let cmd = Cmd::new([&program])
                .arg(if signal == 19 { "100000" } else { "10000000" })
                .under([setup.as_os_str(), "block=10".as_ref(), "--".as_ref()])
                .under([&reaper])
                .under([format!("signal={signal}:{after}"), "--".into()]);
            let outcome = store.run(&[], &cmd).bare();
            assert_eq!(
                (outcome.stdout.as_str(), outcome.stderr.as_str()),
                (said, end),
                "{signal} after {after} us"
            );
        }
    }
}

/// The helper is killed before each of its ptrace operations, and the program goes on; or the program is killed, and
/// no process is left.
#[test]
fn sudden_death() {
    let (reaper, program) = (plain("reaper").build(), fat("state").build());
    for has in [Has::Nothing, Has::Others] {
        let store = Store::new(has, &program);
        let cmd = Cmd::new([&program]).arg("quick").under([reaper.as_os_str(), "--".as_ref()]);
        let die = |when: &str| {
            let dying = cmd.clone().env("HUGELIFT_TEST_DIE", when);
            store.run_by(WITH_FAULT_POINTS, &[], &dying).bare()
        };
        let told = |outcome: &Outcome| {
            let volatile =
                ["parent ", "PPid:", "env HUGELIFT_", "/proc/self/environ:", "namespace ", "/proc/self/auto"];
            let lines = outcome.stdout.lines().filter(|l| !volatile.iter().any(|v| l.starts_with(v)));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let bare = cmd.bare();
        let counted = die("count").stderr;
        let count = counted.lines().find_map(|l| l.strip_prefix("hugelift-test: ptrace operations: "));
        let count: usize = count.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{counted}"));
        assert!(count > 10, "{counted}");
        for n in 0..count {
            let outcome = die(&format!("{n}:helper"));
            assert_eq!(difference("stdout", &told(&bare), &told(&outcome)), None, "{has:?}, {n} of {count}");
            assert_eq!(outcome.other_lines(), bare.stderr, "{has:?}, {n} of {count}");
            assert!(outcome.own_lines().len() <= 1, "{has:?}, {n} of {count}: {outcome:?}");
            // The last two operations let the program go: it may have ended before it is killed. Of 512 starts one is at
            // the wanted base by chance, and takes fewer operations: a second try.
            let die = || die(&format!("{n}:target"));
            let is_killed = |o: &Outcome| o.other_lines() == "reaper: killed 9, left 0\n";
            let outcome = Some(die()).filter(is_killed).unwrap_or_else(die);
            let has_ended = n + 2 >= count && outcome.other_lines() == bare.stderr;
            assert!(is_killed(&outcome) || has_ended, "{has:?}, {n} of {count}: {outcome:?}");
        }
    }
}
