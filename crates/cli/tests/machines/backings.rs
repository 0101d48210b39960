// SPDX-License-Identifier: Apache-2.0
//! Suite: huge pages of every size that the machine has, from each source.

use crate::giant;
use crate::grow::{Big, grow};
use crate::huge::{Pool, moderate, option, sizes, thp};
use crate::look::From;
use crate::place::{alone, lacks, needs_root};
use crate::start::{Run, compare};

/// What the loader and the C library may take from a pool of small pages.
const LIBRARIES: u64 = 8 << 20;

/// Returns how many pages lifting `big` takes at most.
pub fn pages_for(big: &Big, page: u64) -> u64 {
    let file = std::fs::metadata(&big.path).map_or(0, |m| m.len());
    file / page + LIBRARIES / page
}

#[test]
fn hugetlb_of_every_size() {
    needs_root!();
    let _alone = alone();
    let sizes: Vec<u64> = sizes().into_iter().filter(|p| *p < giant::GB).collect();
    if sizes.is_empty() {
        lacks!("no hugetlb pages");
    }
    for page in sizes {
        for kind in ["vm_big.static", "vm_big.pie"] {
            let big = grow(kind, page);
            let pool = Pool::of(page);
            assert!(pool.set(pages_for(&big, page)), "{kind}: no {} pages of {page}", pages_for(&big, page));
            let free = pool.free();
            let run = compare(&["--backing", "hugetlb", "--page-size", &option(page)], &big.path);
            run.look().assert_lifted(page, From::Hugetlb);
            run.assert_silent();
            assert_eq!(pool.free(), free, "not all pages came back to the pool");
        }
    }
}

/// `auto` takes transparent pages although the pool has free pages: parts of transparent pages can be
/// protected and unmapped, as parts of a file can.
#[test]
fn auto_does_not_take_pages_of_the_pool() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp().filter(|p| sizes().contains(p)) else { lacks!("no THP, or no pool of its size") };
    let big = grow("vm_big.static", page);
    // No pool of smaller pages may be preferred.
    let _empty: Vec<Pool> = sizes().into_iter().filter(|s| *s < page).map(emptied).collect();
    let pool = Pool::of(page);
    assert!(pool.set(5), "no 5 pages of {page}");
    let run = compare(&["--backing", "auto"], &big.path);
    run.look().assert_lifted(page, From::Any);
    assert_eq!(run.look().huge_in_all(From::Hugetlb), 0);
    run.assert_silent();
}

/// Runs `compare` with each of `kinds` and a pool that is large enough for it, calls `check` with
/// the result, and asserts that the pages return to the pool.
pub fn with_pool(
    kinds: &[&str],
    compare: impl Fn(&[&str], &Big) -> Run,
    check: impl Fn(&Run, &Big, u64),
) -> Result<(), &'static str> {
    let page = moderate().ok_or("no hugetlb pages")?;
    for kind in kinds {
        let big = grow(kind, page);
        let pool = Pool::of(page);
        assert!(pool.set(pages_for(&big, page)), "no {} pages of {page}", pages_for(&big, page));
        let free = pool.free();
        let run = compare(&["--backing", "hugetlb", "--page-size", &option(page)], &big);
        check(&run, &big, page);
        assert_eq!(pool.free(), free, "not all pages came back to the pool");
    }
    Ok(())
}

/// Returns a pool without pages.
pub fn emptied(page: u64) -> Pool {
    let pool = Pool::of(page);
    assert!(pool.set(0), "the pool keeps pages of {page}");
    pool
}

#[test]
fn thp_for_one_part() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow("vm_big.pie", page);
    let run = compare(&["--backing", "thp", "--parts", "text"], &big.path);
    let look = run.look();
    assert_eq!(look.huge(look.text, From::Thp), look.text.whole(page));
    assert_eq!(look.huge(look.rodata, From::Thp), 0);
}
