// SPDX-License-Identifier: Apache-2.0
//! Suite: what AArch64 adds to protection: guarded pages (BTI), signed return addresses (PAC),
//! tagged memory (MTE).

use crate::backings::pages_for;
use crate::grow::grow;
use crate::huge::{Pool, option, sizes, thp};
use crate::look::From;
use crate::place::{alone, lacks, needs_root};
use crate::start::{bare, compare, run};

fn has(bit: u64) -> bool {
    // SAFETY: getauxval(3) takes no pointer.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & bit != 0 }
}

const BTI: u64 = 1 << 17;
const MTE: u64 = 1 << 18;

/// The loader asks for guarded pages (`PROT_BTI`); they stay guarded.
#[test]
fn bti_on_transparent_pages() {
    let _alone = alone();
    if !has(BTI) {
        lacks!("this CPU has no BTI");
    }
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow("vm_big.bti", page);
    let plain = run(&mut bare::<&str>(&big.path, &[]));
    assert!(plain.look().has_flag(plain.look().text, "bt"), "the bare program is not guarded: {plain:#x?}");
    let run = compare(&["--backing", "thp"], &big.path);
    run.look().assert_lifted(page, From::Thp);
    assert!(run.look().has_flag(run.look().text, "bt"), "{:#x?}", run.look());
}

#[test]
fn bti_on_hugetlb_pages() {
    needs_root!();
    let _alone = alone();
    if !has(BTI) {
        lacks!("this CPU has no BTI");
    }
    for page in sizes().into_iter().filter(|p| *p <= 32 << 20) {
        let big = grow("vm_big.bti", page);
        let pool = Pool::of(page);
        assert!(pool.set(pages_for(&big, page)), "no {} pages of {page}", pages_for(&big, page));
        let run = compare(&["--backing", "hugetlb", "--page-size", &option(page)], &big.path);
        run.look().assert_lifted(page, From::Hugetlb);
        assert!(run.look().has_flag(run.look().text, "bt"), "{:#x?}", run.look());
    }
}

/// A program with signed return addresses and landing pads runs on a CPU without them too: there
/// the instructions are hints.
#[test]
fn protected_program_runs_everywhere() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow("vm_big.bti", page);
    compare(&["--backing", "thp"], &big.path).look().assert_lifted(page, From::Thp);
}

/// Tags that a constructor has set are still there in main.
#[test]
fn mte_memory_is_left_alone() {
    let _alone = alone();
    if !has(MTE) {
        lacks!("this CPU has no MTE");
    }
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow("vm_mte.pie", page);
    let run = compare(&["--backing", "thp"], &big.path);
    run.look().assert_lifted(page, From::Thp);
    run.assert_silent();
}
