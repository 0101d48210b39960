// SPDX-License-Identifier: Apache-2.0
//! What huge pages have broken in other tools, as black-box tests. They cover what libhugetlbfs
//! tests, but are written anew (linkhuge_rw, linkhuge_nofd, zero_filesize_segment, brk_near_huge,
//! stack_grow_into_huge, fork-cow, mprotect, ptrace-write-hugepage, heapshrink, shmoverride). Its
//! linkshare corresponds to the sharing of the store, which other tests cover.

use crate::common::{Cmd, End, Pool, plain};
use crate::{need_root, skip};
use hugelift_core::elf::Headers;
use std::path::{Path, PathBuf};

const CASES: [&str; 8] = ["rw", "cow", "protect", "poke", "shrink", "brk-near", "stack", "shm"];
const KINDS: [&[&str]; 4] = [&["-pie", "-fPIE"], &["-no-pie"], &["-static"], &["-static-pie"]];

fn victims() -> Vec<PathBuf> {
    KINDS.iter().map(|flags| plain("heritage").flags(flags).build()).collect()
}

/// Asserts that every case passes as it does bare, and that hugelift writes nothing.
fn all_pass(program: &Path, options: &[&str], huge: bool) {
    for case in CASES {
        let mut cmd = Cmd::new([program.as_os_str(), case.as_ref()]);
        if huge {
            cmd = cmd.arg("huge");
        }
        let outcome = cmd.lifted(options);
        let seen = (outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.end);
        assert_eq!(seen, ("pass\n", "", End::Code(0)), "{case} {options:?} {}", program.display());
    }
}

#[test]
fn bare() {
    for program in victims() {
        for case in CASES {
            let outcome = Cmd::new([program.as_os_str(), case.as_ref()]).bare();
            assert_eq!(
                (outcome.stdout.as_str(), outcome.end),
                ("pass\n", End::Code(0)),
                "{case}: the victim is unsuitable"
            );
        }
    }
}

#[test]
fn on_transparent_pages() {
    for program in victims() {
        for span in ["inner", "outer"] {
            all_pass(&program, &["--parts", "all", "--backing", "thp", "--span", span], true);
        }
    }
}

#[test]
fn on_pages_of_the_pool() {
    need_root!();
    let _pool = match Pool::with_free(crate::common::guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    for (flags, program) in KINDS.iter().zip(victims()) {
        // In a static program no library guards fork(2), so its data stays off the pool.
        let data = if flags[0].starts_with("-static") { "thp" } else { "hugetlb" };
        for span in ["inner", "outer"] {
            let options = ["--parts", "all", "--backing", "hugetlb", "--data-backing", data, "--span", span];
            all_pass(&program, &options, true);
        }
    }
}

/// hugelift does without the resources that are lacking, and the program has everything that it
/// should have.
#[test]
fn where_something_is_lacking() {
    let program = plain("heritage").flags(&["-static"]).build();
    let rw = |before: &[&str], options: &[&str]| {
        let cmd = Cmd::new([program.as_os_str(), "rw".as_ref()]).under(before);
        let outcome = cmd.lifted(&[&["--parts", "all", "--span", "outer"], options].concat());
        assert_eq!(
            (outcome.stdout.as_str(), outcome.end),
            ("pass\n", End::Code(0)),
            "{before:?}: {outcome:?}"
        );
        outcome.own_lines().len()
    };
    // No address space for a copy.
    for kb in [44_000, 52_000, 60_000] {
        let limit = format!("ulimit -v {kb}; exec \"$@\"");
        assert!(rw(&["sh", "-c", &limit, "sh"], &["--backing", "thp"]) <= 1, "{kb} kB");
    }
    // hugelift and the program can open only a few files, or none.
    for files in 5..9 {
        let limit = format!("ulimit -n {files}; exec \"$@\"");
        assert!(rw(&["sh", "-c", &limit, "sh"], &["--backing", "thp"]) <= 1, "{files}");
    }
    need_root!();
    for free in [0, 1, 3] {
        let _pool = match Pool::with_free(free) {
            Ok(pool) => pool,
            Err(why) => skip!("{why}"),
        };
        assert_eq!(rw(&[], &["--backing", "hugetlb"]), 1, "{free} pages");
    }
}

#[test]
fn a_segment_that_takes_nothing_from_the_file() {
    let flags = ["-nostdlib", "-static", "-fno-stack-protector", "-Wl,--build-id=none"];
    let program = plain("zero_segment").flags(&flags).build();
    let headers = Headers::parse(&std::fs::read(&program).expect("read it")).expect("an ELF file");
    let empty = headers.segments.iter().any(|s| s.prot.write && s.filesz == 0 && s.memsz > 0);
    assert!(empty, "the victim is unsuitable: {headers:?}");
    for span in ["inner", "outer", "auto"] {
        let outcome = Cmd::new([&program]).lifted(&["--parts", "all", "--backing", "thp", "--span", span]);
        assert_eq!((outcome.stderr.as_str(), outcome.end), ("", End::Code(0)), "{span}");
    }
}
