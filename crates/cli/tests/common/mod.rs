// SPDX-License-Identifier: Apache-2.0
//! What the tests of `hugelift run` share: victims built with cc, programs run bare and
//! lifted and compared, and guards that put back what they change on the machine.
//!
//! A test says what it needs (root, a program, a pool) with [`need!`] or [`skip!`]; with
//! `REQUIRE_ALL=1` in the environment a skip is a failure.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

pub mod browser;
pub mod build;
pub mod cache;
pub mod favoured;
pub mod file_maps;
pub mod guard;
pub mod held;
pub mod huge;
pub mod level;
pub mod moments;
pub mod mounts;
pub mod pressure;
pub mod recorded;
pub mod run;
pub mod schema;
pub mod screen;
pub mod shipped;
pub mod thrashing;
pub mod ways;

pub use build::{Victim, fat, open_dir, plain};
pub use cache::Primed;
pub use guard::{CGroup, Pool};
pub use held::Held;
pub use run::{Cmd, End, Outcome, same, same_lines};
pub use schema::fits;
pub use shipped::{HUGELIFT, WITH_FAULT_POINTS};
pub use ways::{Way, each_way};

use std::path::PathBuf;

/// Ends the test here: prints `SKIP: why`, or fails if the environment says `REQUIRE_ALL=1`.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::common::skipped(&format!($($why)*));
        return;
    }};
}

/// Skips the test unless all of these programs are in PATH; evaluates to nothing.
#[macro_export]
macro_rules! need {
    ($($program:expr),+) => {
        $(if $crate::common::find($program).is_none() {
            $crate::skip!("needs {}", $program);
        })+
    };
}

/// Skips the test unless it runs as root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !nix::unistd::geteuid().is_root() {
            $crate::skip!("needs root");
        }
    };
}

/// The body of [`skip!`].
pub fn skipped(why: &str) {
    assert!(
        std::env::var_os("REQUIRE_ALL").is_none_or(|v| v != "1"),
        "REQUIRE_ALL=1, but this test would be skipped: {why}"
    );
    // Written past the test harness's capture, so that every skip is seen.
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "SKIP: {why}");
}

/// Returns where `program` is, as execvp(3) would find it.
pub fn find(program: &str) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(executable)
}

/// Returns a clang and an lld, with or without a version in their names.
pub fn clang_and_lld() -> Option<(&'static str, PathBuf)> {
    let clangs =
        ["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15"];
    let clang = clangs.into_iter().find(|name| find(name).is_some())?;
    let version = clang.trim_start_matches("clang");
    Some((clang, find("ld.lld").or_else(|| find(&format!("ld.lld{version}")))?))
}

/// Runs `body` with the backing thp, then with hugetlb and enough pages in the pool. Only root can
/// fill the pool: otherwise the second half is skipped.
pub fn each_backing(body: impl Fn(&[&str])) {
    body(&["--backing", "thp"]);
    if !nix::unistd::geteuid().is_root() {
        return skipped("the hugetlb half needs root, to fill the pool");
    }
    match Pool::shared() {
        Ok(_pool) => body(&["--backing", "hugetlb"]),
        Err(why) => skipped(&why),
    }
}

/// Returns the lines that hugelift itself has written.
pub fn own_lines(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("hugelift: ")).collect()
}
