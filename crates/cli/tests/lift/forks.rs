// SPDX-License-Identifier: Apache-2.0
//! fork(2) with data and bss on pages of a pool that is exhausted: no process is killed, and each
//! side reads what it has written.

use crate::common::{Cmd, End, HUGELIFT, Outcome, Pool, guard, plain};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};
use std::time::Duration;

const POOL: &[&str] = &["--parts", "data,bss", "--data-backing", "hugetlb"];

fn victim() -> PathBuf {
    plain("forks").flags(&["-pthread", "-O1"]).build()
}

fn forks(words: &[&str]) -> Cmd {
    Cmd::new([victim()]).args(words).patience(Duration::from_secs(300))
}

/// Returns how much of data and bss is on pages of the pool, as printed by the parent at the start,
/// by a child, and by the parent at the end.
fn kilobytes(outcome: &Outcome) -> Vec<u64> {
    let words = outcome.stdout.lines().filter(|line| line.ends_with(" kB"));
    words.filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect()
}

fn assert_right(outcome: &Outcome) -> Vec<u64> {
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    kilobytes(outcome)
}

macro_rules! pool {
    () => {
        match Pool::with_free(guard::PLENTY) {
            Ok(pool) => pool,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn a_thousand_forks_under_an_empty_pool() {
    need_root!();
    let _pool = pool!();
    let seen = assert_right(&forks(&["1000", "exhaust"]).lifted(POOL));
    // The child no longer uses the pool; the parent still does.
    assert!(seen[0] >= 10 << 10, "{seen:?}");
    assert_eq!((seen[1], seen[2]), (0, seen[0]), "{seen:?}");
}

/// A fork(2) that bypasses the guard shows why there is one.
#[test]
fn a_child_that_is_forked_past_the_library_is_killed() {
    need_root!();
    let _pool = pool!();
    let seen = forks(&["3", "exhaust", "raw"]).lifted(POOL);
    assert_eq!(seen.end, End::Code(1), "{seen:?}");
    assert!(
        seen.stdout.contains("the child ended with status 0x87") || seen.stdout.contains("status 0x7"),
        "{seen:?}"
    );
}

#[test]
fn children_of_children() {
    need_root!();
    let _pool = pool!();
    let seen = assert_right(&forks(&["20", "exhaust", "inner"]).lifted(POOL));
    assert!(seen[0] > 0 && seen[2] == seen[0], "{seen:?}");
    let seen = assert_right(&forks(&["20", "inner"]).lifted(&[POOL, &["--fork-reserve", "64"]].concat()));
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// A second thread might write while the child copies. So everything leaves the pool before a
/// second thread starts.
#[test]
fn threads() {
    need_root!();
    let _pool = pool!();
    let seen = assert_right(&forks(&["50", "exhaust", "thread"]).lifted(POOL));
    assert!(seen[0] > 0, "{seen:?}");
    assert_eq!(&seen[1..], [0, 0], "{seen:?}");
}

#[test]
fn a_reserve_for_a_child() {
    need_root!();
    let pool = pool!();
    let with =
        |pages: &str| assert_right(&forks(&["5"]).lifted(&[POOL, &["--fork-reserve", pages]].concat()));
    let (all, two) = (with("64"), with("2"));
    assert_eq!(all[1], all[0], "not the whole child is on the pool");
    assert_eq!((two[1], two[2]), (4 << 10, two[0]), "not two pages of the child are on the pool");
    assert_eq!(pool.free(), guard::PLENTY, "pages of the pool are lost");
    let none = assert_right(&forks(&["5", "exhaust"]).lifted(&[POOL, &["--fork-reserve", "64"]].concat()));
    assert_eq!((none[1], none[2]), (0, none[0]), "the child got pages although none could be reserved");
}

#[test]
fn with_either_c_library() {
    need_root!();
    need!("x86_64-linux-musl-gcc");
    let _pool = pool!();
    let musl = plain("forks").flags(&["-O1"]).compiler("x86_64-linux-musl-gcc").build();
    let cmd = |words: &[&str]| Cmd::new([&musl]).args(words);
    let seen = assert_right(&cmd(&["50", "exhaust"]).lifted(POOL));
    assert_eq!((seen[0] > 0, seen[1], seen[2]), (true, 0, seen[0]), "{seen:?}");
    let seen = assert_right(&cmd(&["20", "exhaust", "thread"]).lifted(POOL));
    assert_eq!((seen[0] > 0, &seen[1..]), (true, &[0, 0][..]), "{seen:?}");
}

/// Where no library can guard fork(2), writable memory is not put on the pool, and hugelift says
/// so.
#[test]
fn static_programs_stay_off_the_pool() {
    need_root!();
    let pool = pool!();
    let program = plain("forks").flags(&["-O1", "-static"]).build();
    let cmd = Cmd::new([&program]).args(["20", "exhaust"]);
    let seen = cmd.lifted(POOL);
    assert_eq!((seen.end, kilobytes(&seen)), (End::Code(0), vec![0, 0, 0]), "{seen:?}");
    let lines = seen.own_lines();
    assert!(lines.len() == 1 && lines[0].contains("--data-backing hugetlb"), "{lines:?}");
    assert!(lines[0].contains("static") && lines[0].contains("transparent huge pages instead"), "{lines:?}");
    let strict = cmd.lifted(&[POOL, &["--strict"]].concat());
    assert_eq!((strict.end, strict.stdout.as_str()), (End::Code(125), ""), "{strict:?}");
    assert_eq!(pool.free(), guard::PLENTY);
}

/// Here the library has no file, and vm.memfd_noexec=2 forbids one in memory that can be mapped as code.
#[test]
fn without_the_library_the_pool_is_left_alone() {
    need_root!();
    need!("unshare");
    let _pool = pool!();
    if !Path::new("/proc/sys/vm/memfd_noexec").exists() {
        skip!("no vm.memfd_noexec (Linux 6.3)");
    }
    let dir = tempfile::TempDir::new().expect("a folder");
    let alone = dir.path().join("hugelift");
    crate::common::cache::copy(HUGELIFT, &alone);
    // The setting is that of a PID namespace.
    let enter = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"];
    let cmd = forks(&["20", "exhaust"]).under(enter);
    let cmd = cmd.under(["echo 2 >/proc/sys/vm/memfd_noexec && \"$@\"", "sh"]);
    let seen = cmd.launcher(&alone).lifted(POOL);
    assert_eq!((seen.end, kilobytes(&seen)), (End::Code(0), vec![0, 0, 0]), "{seen:?}");
    let [line] = seen.own_lines()[..] else { panic!("{seen:?}") };
    assert!(line.contains("no libhugelift_inside.so in ") && line.contains("memfd_create(2): "), "{line}");
}

/// The library that guards a program is not passed on to its children, and LD_PRELOAD is what the
/// user had set.
#[test]
fn nothing_of_it_is_left_in_the_environment() {
    need_root!();
    let _pool = pool!();
    // The tests have variables of their own.
    let text = "env | grep -v -e HUGELIFT_STORE -e HUGELIFT_BUILD | grep -e HUGELIFT -e LD_PRELOAD; \
                grep -c libhugelift /proc/self/maps";
    let shim = plain("tiny").library().build();
    for (preload, want) in [(None, String::new()), (Some(&shim), format!("LD_PRELOAD={}\n", shim.display()))]
    {
        let mut cmd = Cmd::new(["sh", "-c", text]);
        if let Some(shim) = preload {
            cmd = cmd.env("LD_PRELOAD", shim);
        }
        let seen = cmd.lifted(POOL);
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), (format!("{want}0\n").as_str(), ""));
    }
}
