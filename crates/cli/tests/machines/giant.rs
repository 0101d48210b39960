// SPDX-License-Identifier: Apache-2.0
//! Suite: hugetlb pages of 1 GB. They are reserved at boot, and to copy as much takes an emulated machine
//! long, so only one machine of ci/vm has them.

use crate::grow::grow_to;
use crate::huge::{Pool, sizes};
use crate::look::From;
use crate::place::{alone, lacks, needs_root};
use crate::start::compare;

/// The bytes of a giant page.
pub const GB: u64 = 1 << 30;

/// A page of 1 GB. In so little memory only a program that is loaded at its stated address can have
/// one.
#[test]
fn hugetlb_of_1_gb() {
    needs_root!();
    let _alone = alone();
    if !sizes().contains(&GB) {
        lacks!("no pages of 1 GB");
    }
    let pool = Pool::of(GB);
    if pool.free() == 0 {
        lacks!("no page of 1 GB is reserved (hugepagesz=1G hugepages=1 at boot)");
    }
    let big = grow_to(&std::env::temp_dir(), "vm_big.static", [GB, 64 << 10]);
    let run = compare(&["--backing", "hugetlb", "--page-size", "1G"], &big.path);
    let look = run.look();
    assert_eq!(look.huge(look.text, From::Hugetlb), GB);
    assert_eq!(look.huge_in_all(From::Any), GB);
    run.assert_silent();
}

/// What the one page of 1 GB does not cover goes to pages of 2 MB.
#[test]
fn hugetlb_of_mixed_sizes() {
    needs_root!();
    const MB2: u64 = 2 << 20;
    if !sizes().contains(&GB) || !sizes().contains(&MB2) {
        lacks!("no pages of 1 GB, or none of 2 MB");
    }
    let _alone = alone();
    let (large, small) = (Pool::of(GB), Pool::of(MB2));
    if large.free() == 0 || !small.set(4) {
        lacks!("no page of 1 GB is reserved (hugepagesz=1G hugepages=1 at boot)");
    }
    let big = grow_to(&std::env::temp_dir(), "vm_big.static", [GB + 3 * MB2, 64 << 10]);
    let run = compare(&["--backing", "hugetlb", "--page-size", "auto"], &big.path);
    let look = run.look();
    let whole = look.text.whole(MB2);
    assert!(whole > GB && look.text.whole(GB) == GB, "{look:?}");
    assert_eq!(look.huge(look.text, From::Hugetlb), whole);
}
