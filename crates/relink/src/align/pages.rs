// SPDX-License-Identifier: Apache-2.0
//! Base pages: which there are, and where an address and an offset in the file agree.

use hugelift_core::addr::PageSize;

/// The smallest base page that programs are linked for.
pub(crate) const BASE_PAGE: u64 = 4096;

pub(super) fn congruent(a: u64, b: u64, modulus: u64) -> bool {
    a.wrapping_sub(b) & (modulus - 1) == 0
}

/// Returns the base page of machines that have huge pages of size `page`: one table of the last level maps a huge
/// page, and has as many entries of 8 bytes as fit into a base page. Larger huge pages are those of a higher level.
pub(crate) fn base_of(page: PageSize) -> u64 {
    let bases = [BASE_PAGE, 0x4000, 0x10000];
    bases.into_iter().find(|base| base * (base / 8) >= page.bytes()).unwrap_or(BASE_PAGE)
}
