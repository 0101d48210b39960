// SPDX-License-Identifier: Apache-2.0
//! Suite: too few huge pages. The program runs, and one line says what helps.

use crate::backings::{emptied, pages_for};
use crate::grow::grow;
use crate::huge::{Pool, moderate, option, sizes, thp};
use crate::look::From;
use crate::place::{alone, lacks, needs_root};
use crate::start::{compare, lifted, run};

const KINDS: [&str; 2] = ["vm_big.static", "vm_big.pie"];

#[test]
fn empty_pool() {
    needs_root!();
    let _alone = alone();
    let Some(page) = moderate() else { lacks!("no hugetlb pages") };
    let _pool = emptied(page);
    for kind in KINDS {
        let big = grow(kind, page);
        let run = compare(&["--backing", "hugetlb", "--page-size", &option(page)], &big.path);
        assert_eq!(run.look().huge_in_all(From::Any), 0);
        run.assert_line("hugelift pool set ");
    }
}

#[test]
fn empty_pool_and_strict() {
    needs_root!();
    let _alone = alone();
    let Some(page) = moderate() else { lacks!("no hugetlb pages") };
    let _pool = emptied(page);
    for kind in KINDS {
        let big = grow(kind, page);
        let options = ["--strict", "--backing", "hugetlb", "--page-size", &option(page)];
        let run = run(&mut lifted(&options, &big.path, &[]));
        assert_eq!((run.status.code(), run.stdout.as_str()), (Some(125), ""), "{}", run.stderr);
        run.assert_line("not started");
    }
}

#[test]
fn empty_pool_and_auto() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let _pools: Vec<Pool> = sizes().into_iter().filter(|s| *s <= page).map(emptied).collect();
    for kind in KINDS {
        let big = grow(kind, page);
        let run = compare(&[], &big.path);
        run.look().assert_lifted(page, From::Any);
        run.assert_silent();
    }
}

#[test]
fn one_page_short() {
    needs_root!();
    let _alone = alone();
    let Some(page) = moderate() else { lacks!("no hugetlb pages") };
    let big = grow("vm_big.static", page);
    let pool = Pool::of(page);
    let options = ["--backing", "hugetlb", "--page-size", &option(page)];
    assert!(pool.set(pages_for(&big, page)), "no {} pages of {page}", pages_for(&big, page));
    let all = compare(&options, &big.path).look().huge_in_all(From::Hugetlb);
    assert!(pool.set(all / page - 1));
    let run = compare(&options, &big.path);
    assert_eq!(run.look().huge_in_all(From::Hugetlb), all - page);
    run.assert_line("hugelift pool set ");
}
