// SPDX-License-Identifier: Apache-2.0
//! Tests that all processes share one copy.

use super::*;
use crate::need;

#[test]
fn ten_processes_have_one_copy() {
    let shelf = shelf!();
    let program = victim("hold");
    ten_of(&shelf, &shelf.cmd([&program]), &program);
}

#[test]
fn ten_static_processes_have_one_copy() {
    let shelf = shelf!();
    let program = fat("hold").flags(&["-static"]).build();
    ten_of(&shelf, &shelf.cmd([&program]), &program);
}

#[test]
fn ten_compilers_have_one_copy() {
    need!("clang++-19");
    let shelf = shelf!();
    let program = find("clang++-19").unwrap().canonicalize().unwrap();
    ten_of(&shelf, &shelf.cmd(["clang++-19", "-x", "c++", "-E", "-"]), &program);
}

/// Stopping a process costs more than a copy: the number of stops must not grow with the copies.
#[test]
fn many_copies_take_no_more_stops_than_a_few() {
    need!("clang++-19");
    let (small, large) = (shelf!(), shelf!());
    let warm = |cmd: Cmd| {
        cmd.lifted(&SHARED);
        operations(&cmd)
    };
    let few = warm(small.cmd([&victim("sums")]));
    let many = warm(large.cmd(["clang++-19", "--version"]));
    assert!(large.entries().len() > small.entries().len() + 1);
    assert!(many <= few, "{many} ptrace operations, but fewer copies take {few}");
}

#[test]
fn shared_code_is_reported_as_its_objects() {
    let shelf = shelf!();
    let program = victim("hold");
    let report = shelf._dir.path().join("report");
    let options = [&SHARED[..], &["--report", report.to_str().unwrap()]].concat();
    let held = Held::start(&shelf.cmd([&program]), Some(&options), &program);
    let inspected = Command::new(HUGELIFT).args(["inspect", "--json", &held.pid().to_string()]).output();
    let now: Value = serde_json::from_slice(&inspected.unwrap().stdout).unwrap();
    let then: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    for report in [now, then] {
        let object = &report["objects"][0];
        assert_eq!(object["path"], program.to_str().unwrap(), "{report}");
        let parts = object["parts"].as_array().unwrap();
        let text: Vec<&Value> = parts.iter().filter(|p| p["part"] == "text").collect();
        let [text] = text[..] else { panic!("{parts:?}") };
        assert_eq!(text["backing"], "shared", "{text}");
        assert_eq!(text["huge_bytes"], text["liftable_bytes"], "{text}");
        let from_store = |o: &Value| o["path"].as_str().unwrap().starts_with(shelf.path.to_str().unwrap());
        assert!(!report["objects"].as_array().unwrap().iter().any(from_store), "{report}");
    }
    held.finish();
}

#[test]
fn auto_makes_the_store_at_the_first_start() {
    let shelf = shelf!();
    // The program is on a tmpfs without huge pages: if the page cache had it on huge pages, `auto` would
    // make no copy.
    let program = copy(shelf._dir.path(), &victim("hold"));
    let backing = || {
        let held = Held::start(&shelf.cmd([&program]), Some(&["--backing", "auto"]), &program);
        let shared: u64 = smaps(held.pid()).iter().map(|u| u.shmem_huge).sum();
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.own_lines()), (End::Code(0), vec![]));
        shared > 0
    };
    assert!(backing() && backing());
    assert_eq!(shelf.entries().len(), 1);
}

/// Each process has another random base, which hugelift moves to where the copy fits.
#[test]
fn ten_position_independent_processes_have_one_copy() {
    let shelf = shelf!();
    for flags in [&["-pie"][..], &["-static-pie"]] {
        let program = fat("hold").flags(flags).build();
        ten_of(&shelf, &shelf.cmd([&program]), &program);
        let bases = (0..4).map(|_| {
            let held = Held::start(&shelf.cmd([&program]), Some(&SHARED), &program);
            held.proc("maps").split('-').next().unwrap().to_string()
        });
        assert!(bases.collect::<std::collections::BTreeSet<_>>().len() > 1, "all starts have the same base");
    }
}
