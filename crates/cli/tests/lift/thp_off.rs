// SPDX-License-Identifier: Apache-2.0
//! A program that switches transparent huge pages off for itself as soon as it runs, as Debian's mariadbd does: its code is
//! lifted all the same, by each command that lifts a program while it runs. Its own memory stays as it wants it.

use crate::common::huge::{files, pieces, smaps};
use crate::common::run::{PATIENCE, end_group, until};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// At fixed addresses: other processes can have the same huge pages. On a tmpfs its page cache is in small pages.
fn program(dir: &Path) -> PathBuf {
    let copy = dir.join("works");
    let victim = fat("works").flags(&["-no-pie"]).build();
    assert!(Command::new("cp").arg(victim).arg(&copy).status().is_ok_and(|status| status.success()));
    copy
}

fn place() -> tempfile::TempDir {
    tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm")
}

fn started(program: &Path) -> Held {
    Held::start_favoured(&Cmd::new([program]).arg("thp-off"), program)
}

/// Returns the huge bytes of its code and constants.
fn huge(pid: u32, program: &Path) -> u64 {
    pieces(pid, &[program.to_path_buf()]).iter().map(|piece| piece.huge).sum()
}

/// Returns what is in whole huge pages.
fn whole(pid: u32, program: &Path) -> u64 {
    pieces(pid, &[program.to_path_buf()])
        .iter()
        .filter_map(|piece| piece.inner)
        .map(|inner| inner.len())
        .sum()
}

/// Asserts that the process has huge pages where hugelift has put them, and is as it wants to be.
fn assert_lifted(pid: u32, program: &Path, after: &Outcome) {
    let (huge, whole) = (huge(pid, program), whole(pid, program));
    assert!(huge == whole && whole >= 8 << 20, "{huge} of {whole} bytes: {after:?}");
    assert_off(pid);
}

/// Asserts that transparent huge pages are off for it, and that what it writes to has none.
fn assert_off(pid: u32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    assert!(status.contains("THP_enabled:\t0"), "{status}");
    let own: u64 = smaps(pid).iter().filter(|u| u.mapping.prot.write).map(|u| u.anon_huge).sum();
    assert_eq!(own, 0);
}

#[test]
fn issue_29_b5_attach_lifts_its_code_and_restore_undoes_it() {
    let dir = place();
    let (program, store) = (program(dir.path()), dir.path().join("store"));
    for backing in ["auto", "thp", "shared"] {
        let held = started(&program);
        let (pid, before) = (held.pid(), files(held.pid()));
        let run = |words: &[&str]| {
            let pid = pid.to_string();
            Cmd::new([HUGELIFT]).args(words).arg(&pid).env("HUGELIFT_STORE", &store).bare()
        };
        let attached = run(&["attach", "--whole", "--backing", backing]);
        assert_eq!((attached.end, attached.stderr.as_str()), (End::Code(0), ""), "{attached:?}");
        assert!(attached.stdout.contains("are off again"), "{attached:?}");
        assert_lifted(pid, &program, &attached);
        let again = run(&["attach", "--whole", "--backing", backing]);
        assert_lifted(pid, &program, &again);
        let restored = run(&["restore"]);
        assert_eq!((restored.end, huge(pid, &program)), (End::Code(0), 0), "{restored:?}");
        assert_eq!(files(pid), before, "{restored:?}");
        let ended = held.finish();
        assert_eq!((ended.end, ended.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"));
    }
}

#[test]
fn issue_29_b5_run_lifts_it_at_its_first_start() {
    let dir = place();
    let (program, store) = (program(dir.path()), dir.path().join("store"));
    let cmd = Cmd::new([&program]).arg("thp-off").env("HUGELIFT_STORE", &store);
    // The first start copies while it runs; the second maps the store's entry before it runs.
    for _ in 0..2 {
        let held = Held::start_busy(&cmd.clone().lazy(), Some(&["--whole"]), &program);
        until("the watcher", || huge(held.pid(), &program) == whole(held.pid(), &program));
        let ended = {
            assert_off(held.pid());
            held.finish()
        };
        assert_eq!((ended.end, ended.stderr.as_str()), (End::Code(0), ""));
    }
}

#[test]
fn issue_29_b5_attach_watch_lifts_it() {
    let dir = place();
    let program = program(dir.path());
    let held = started(&program);
    let mut watch = Command::new(HUGELIFT);
    watch.args(["attach", "--whole", "--watch", "--backing", "thp", &held.pid().to_string()]);
    let mut watch = watch.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("hugelift");
    until("the watcher", || huge(held.pid(), &program) >= 8 << 20);
    assert_off(held.pid());
    assert_eq!(held.finish().end, End::Code(0));
    end_group(&mut watch);
}

#[test]
fn issue_29_b5_compare_lifts_it_in_turn() {
    let dir = place();
    let program = program(dir.path());
    let held = started(&program);
    let before = files(held.pid());
    let pid = held.pid().to_string();
    let words = ["compare", "--json", "--pid", &pid, "--backing", "thp", "--pairs", "6", "--period", "100ms"];
    let compared = Cmd::new([HUGELIFT]).args(words).args(["--settle", "20ms"]).patience(2 * PATIENCE).bare();
    assert_eq!((compared.end, compared.stderr.as_str()), (End::Code(0), ""), "{compared:?}");
    let result: serde_json::Value = serde_json::from_str(&compared.stdout).expect("JSON");
    assert_ne!(result["variants"][0]["verdict"], "not-switched", "{result}");
    assert_eq!(files(held.pid()), before);
    assert_off(held.pid());
}

/// What it writes to stays, and no command is named that would not help.
#[test]
fn issue_29_b5_its_data_stay_as_it_wants_them() {
    let dir = place();
    let program = program(dir.path());
    let held = started(&program);
    let pid = held.pid().to_string();
    let attached =
        Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp", "--parts", "all", &pid]).bare();
    assert_lifted(held.pid(), &program, &attached);
    assert!(!attached.stderr.contains("hugetlb"), "{attached:?}");
    let doctor = Cmd::new([HUGELIFT, "doctor", "--pid", &pid]).bare();
    assert!(!doctor.stdout.contains("hugelift run --backing hugetlb"), "{doctor:?}");
    assert_eq!(held.finish().end, End::Code(0));
}
