// SPDX-License-Identifier: Apache-2.0
//! Suite: unwinding through lifted code works, and finds its names.

use crate::backings::with_pool;
use crate::grow::{Big, grow};
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks, needs_root};
use crate::start::{Run, bare, compare, run};

const KINDS: [&str; 2] = ["vm_symbols.dynamic", "vm_symbols.pie"];

fn told(run: &Run) -> Vec<&str> {
    run.stdout.lines().filter(|l| l.starts_with("frame ") || l.starts_with("object ")).collect()
}

/// Asserts that frames and objects are those of the bare program, and that the lifted function is
/// among them.
fn assert_named(lifted: &Run, path: &std::path::Path) {
    let plain = run(&mut bare::<&str>(path, &[]));
    assert_eq!(told(lifted), told(&plain));
    let frames: Vec<&str> =
        told(lifted).iter().filter_map(|l| l.strip_prefix("frame ")?.split('+').next()).collect();
    assert_eq!(frames[..2], ["through_big", "main"], "{}", lifted.stdout);
}

#[test]
fn names_on_transparent_pages() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    for kind in KINDS {
        let big = grow(kind, page);
        let run = compare(&["--backing", "thp"], &big.path);
        run.look().assert_lifted(page, From::Thp);
        assert_named(&run, &big.path);
    }
}

#[test]
fn names_on_hugetlb_pages() {
    needs_root!();
    let _alone = alone();
    let compare = |options: &[&str], big: &Big| compare(options, &big.path);
    let done = with_pool(&KINDS, compare, |run, big, page| {
        run.look().assert_lifted(page, From::Hugetlb);
        assert_named(run, &big.path);
    });
    if let Err(why) = done {
        lacks!("{why}");
    }
}
