// SPDX-License-Identifier: Apache-2.0
//! Code that a program makes while it runs is collapsed if that is asked for, and only then.

use crate::common::huge::smaps;
use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT, Held, plain};
use crate::{need_root, skip};
use hugelift_core::addr::PageSize;
use hugelift_core::maps::Prot;
use hugelift_core::smaps::Usage;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::procfs::Process;
use std::process::Command;

const BYTES: u64 = 8 << 20;

fn start(how: &str) -> Held {
    let program = plain("jit").flags(&["-pthread"]).build();
    let held = Held::start_busy(&Cmd::new([&program]).arg(how), None, &program);
    until("its code is made", || code(&held).iter().map(|u| u.rss).sum::<u64>() >= BYTES);
    held
}

/// Returns the mappings of the code that it makes.
fn code(held: &Held) -> Vec<Usage> {
    let is_code = |u: &Usage| u.mapping.prot.exec && !u.mapping.is_file() && !u.mapping.is_kernel_code();
    smaps(held.pid()).into_iter().filter(is_code).collect()
}

fn huge(held: &Held) -> u64 {
    code(held).iter().map(|u| u.anon_huge).sum()
}

fn attach(held: &Held, parts: &str) -> String {
    let out = Cmd::new([HUGELIFT, "attach", "--cpu-budget", "60", "--parts", parts])
        .arg(held.pid().to_string())
        .bare();
    assert_eq!(out.end, End::Code(0), "{out:?}");
    out.stdout
}

/// Runs attach until all is huge: a page that the kernel moves just then keeps its block small.
fn attach_to_all(held: &Held) {
    until("all of it is huge", || {
        attach(held, "jit");
        huge(held) == BYTES
    });
}

/// Returns whether the tests can run: with other pages the victim has other code, and under `always` all is huge from the start.
fn is_fit() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    thp_page() == Some(PageSize::MB2) && base_page() == PageSize::SMALL && !enabled.contains("[always]")
}

fn finish(held: Held) {
    let told = held.finish();
    assert_eq!((told.end, told.stdout.as_str()), (End::Code(0), "ready\nwrong 0\n"));
}

#[test]
fn issue_32_3_code_that_a_program_makes_is_huge_and_keeps_its_protection() {
    need_root!();
    if !is_fit() {
        skip!("needs pages of 4 kB and 2 MB, and not THP always");
    }
    for (how, prot) in [("wx", Prot { write: true, ..Prot::RX }), ("flip", Prot::RX)] {
        let held = start(how);
        let said = attach(&held, "all");
        assert_eq!(huge(&held), 0, "{how}: jit is not among all: {said}");
        let said = attach(&held, "jit");
        assert!(said.contains(" MB of anonymous memory is on huge pages now"), "{how}: {said}");
        attach_to_all(&held);
        assert!(code(&held).iter().all(|u| u.mapping.prot == prot), "{how}: {:?}", code(&held));
        let seen =
            Command::new(HUGELIFT).args(["inspect", &held.pid().to_string()]).output().expect("inspect");
        let seen = String::from_utf8(seen.stdout).expect("UTF-8");
        let row = seen.lines().find(|line| line.starts_with("jit ")).unwrap_or_default();
        assert!(row.contains("huge 8 MB"), "{how}: {seen}");
        finish(held);
    }
}

/// A program that changes the protection of a page splits its huge page. Another collapse joins it.
#[test]
fn issue_32_3_a_split_is_joined_again() {
    need_root!();
    if !is_fit() {
        skip!("needs pages of 4 kB and 2 MB, and not THP always");
    }
    let mut held = start("flip");
    for _ in 0..5 {
        attach_to_all(&held);
        held.write(b"\n");
        until("its huge pages are split", || huge(&held) == 0);
        // It waits for the next byte.
        until("its code is made anew", || {
            Process::new(held.pid()).stat().is_ok_and(|stat| stat.state == 'S')
        });
    }
    finish(held);
}

/// The watcher of a run collapses it as well.
#[test]
fn a_run_collapses_it_too() {
    need_root!();
    if !is_fit() {
        skip!("needs pages of 4 kB and 2 MB, and not THP always");
    }
    let program = plain("jit").flags(&["-pthread"]).build();
    let options: &[&str] = &["--parts", "text,rodata,jit"];
    let held = Held::start_busy(&Cmd::new([&program]).arg("wx"), Some(options), &program);
    until("all of it is huge", || huge(&held) == BYTES);
    finish(held);
}
