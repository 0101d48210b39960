// SPDX-License-Identifier: Apache-2.0
//! Suite: kernels that lack a call. Whatever is missing, the program runs and its bytes are the
//! same. It is lifted wherever hugelift can do without the call.

use crate::backings::with_pool;
use crate::files::disk;
use crate::grow::{Big, grow, grow_at};
use crate::huge::thp;
use crate::look::From;
use crate::mask::{Mask, under};
use crate::place::{alone, lacks, needs_root};
use crate::start::{Run, bare, lifted, run};
use libc::{EINVAL, ENOSYS, ENOTTY};

const KINDS: [&str; 2] = ["vm_big.static", "vm_big.pie"];

/// MADV_POPULATE_READ and MADV_POPULATE_WRITE: Linux 5.14.
const POPULATE: [Mask; 2] =
    [Mask::argument(libc::SYS_madvise, 2, 22, EINVAL), Mask::argument(libc::SYS_madvise, 2, 23, EINVAL)];
/// MADV_COLLAPSE: Linux 6.1.
const COLLAPSE: Mask = Mask::argument(libc::SYS_madvise, 2, 25, EINVAL);
/// The lower 32 bits of PAGEMAP_SCAN: Linux 6.7.
const PAGEMAP_SCAN: Mask = Mask::argument(libc::SYS_ioctl, 1, 0xc060_6610, ENOTTY);
/// Moving hugetlb pages: Linux 5.16. (The backing thp cannot do without it.)
const MREMAP: Mask = Mask::call(libc::SYS_mremap, EINVAL);
const MEMFD: Mask = Mask::call(libc::SYS_memfd_create, ENOSYS);
/// Linux 5.9.
const CLOSE_RANGE: Mask = Mask::call(libc::SYS_close_range, ENOSYS);
/// CONFIG_CROSS_MEMORY_ATTACH.
const CROSS_MEMORY: [Mask; 2] =
    [Mask::call(libc::SYS_process_vm_readv, ENOSYS), Mask::call(libc::SYS_process_vm_writev, ENOSYS)];

fn compare(masks: &[Mask], options: &[&str], big: &Big) -> Run {
    // The masks are a seccomp filter that hugelift does not know.
    let options = [options, &["--seccomp", "try"]].concat();
    let run_masked = run(under(&mut lifted(&options, &big.path, &[]), masks));
    run_masked.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
    run_masked
}

fn thp_is_lifted_without(masks: &[Mask]) {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    for kind in KINDS {
        let big = grow(kind, page);
        let run = compare(masks, &["--backing", "thp"], &big);
        run.look().assert_lifted(page, From::Thp);
        run.assert_silent();
    }
}

fn hugetlb(masks: &[Mask], check: impl Fn(&Run, u64)) {
    needs_root!();
    let _alone = alone();
    let done =
        with_pool(&KINDS, |options, big| compare(masks, options, big), |run, _, page| check(run, page));
    if let Err(why) = done {
        lacks!("{why}");
    }
}

fn hugetlb_is_lifted_without(masks: &[Mask]) {
    hugetlb(masks, |run, page| {
        run.look().assert_lifted(page, From::Hugetlb);
        run.assert_silent();
    });
}

#[test]
fn populate_thp() {
    thp_is_lifted_without(&POPULATE);
}

#[test]
fn populate_hugetlb() {
    hugetlb_is_lifted_without(&POPULATE);
}

#[test]
fn collapse_thp() {
    thp_is_lifted_without(&[COLLAPSE]);
}

#[test]
fn populate_and_collapse_thp() {
    thp_is_lifted_without(&[&[COLLAPSE], &POPULATE[..]].concat());
}

#[test]
fn pagemap_scan_thp() {
    thp_is_lifted_without(&[PAGEMAP_SCAN]);
}

#[test]
fn pagemap_scan_hugetlb() {
    hugetlb_is_lifted_without(&[PAGEMAP_SCAN]);
}

#[test]
fn close_range() {
    thp_is_lifted_without(&[CLOSE_RANGE]);
}

#[test]
fn process_vm_readv() {
    thp_is_lifted_without(&CROSS_MEMORY);
}

/// A program that lies where its page cache fits is faulted in by other means. To move a program
/// hugelift needs the call itself, so a program that would have to be moved stays.
#[test]
fn process_vm_readv_pagecache() {
    let _alone = alone();
    let Some(dir) = disk("xfs") else { lacks!("no xfs disk") };
    let Some(page) = thp().filter(|page| *page <= 32 << 20) else { lacks!("no huge pages of 32 MB or less") };
    for kind in KINDS {
        let big = grow_at(&dir, kind, [2 * page, page], page);
        let start = |masks| compare(masks, &["--backing", "pagecache"], &big);
        start(&[]); // primes it
        start(&[]).look().assert_lifted(page, From::Any);
        let masked = start(&CROSS_MEMORY);
        match masked.look().huge_in_all(From::Any) {
            0 if kind == "vm_big.pie" => masked.assert_line("not lifted"),
            // The kernel may by chance have loaded it at an address that fits.
            _ => {
                masked.look().assert_lifted(page, From::Any);
                masked.assert_silent();
            }
        }
    }
}

/// Pages of which a page table holds several are lifted by way of a file alone
/// (`Machine::pool_page_is_lost_at_fork`).
#[test]
fn memfd_create() {
    // SAFETY: sysconf(3) takes a number.
    let base = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.cast_unsigned();
    let filled = base * (base / 8);
    hugetlb(&[MEMFD], |run, page| match page < filled {
        true => {
            assert_eq!(run.look().huge_in_all(From::Any), 0);
            run.assert_line("not lifted");
        }
        false => {
            run.look().assert_lifted(page, From::Hugetlb);
            run.assert_silent();
        }
    });
}

/// As before Linux 5.16: by way of a file on hugetlb pages.
#[test]
fn mremap_hugetlb() {
    hugetlb_is_lifted_without(&[MREMAP]);
}

/// As before Linux 5.14: without MADV_POPULATE_WRITE as well.
#[test]
fn mremap_and_populate_hugetlb() {
    hugetlb_is_lifted_without(&[&[MREMAP, CLOSE_RANGE, PAGEMAP_SCAN], &POPULATE[..]].concat());
}

/// No way at all is left.
#[test]
fn mremap_and_memfd_create_hugetlb() {
    hugetlb(&[MREMAP, MEMFD], |run, _| {
        assert_eq!(run.look().huge_in_all(From::Any), 0);
        run.assert_line("not lifted");
    });
}

#[test]
fn mremap_thp() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    for kind in KINDS {
        let run = compare(&[MREMAP], &["--backing", "thp"], &grow(kind, page));
        assert_eq!(run.look().huge_in_all(From::Any), 0);
        run.assert_line("not lifted");
    }
}
