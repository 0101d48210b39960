// SPDX-License-Identifier: Apache-2.0
//! Separates the code of whole ELF files: nothing panics, nothing grows without bound, and what was separated
//! has its code on whole pages.
#![no_main]

use hugelift_core::addr::PageSize;
use hugelift_relink::separate::{Options, proof, separate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // A small size: inputs are small.
    let Some(page) = PageSize::new(64 << 10) else { return };
    let Ok(done) = separate(data, page, Options { least: 1 }) else { return };
    // Each segment and each table is padded by less than a page, and what is compressed is unpacked to 64 times the
    // file at most.
    let headers = data.len() / 56 + 3;
    assert!(done.bytes.len() <= 65 * data.len() + headers * (64 << 10));
    for gain in &done.gains {
        assert!(gain.cost() <= gain.huge_after && gain.huge_after % page.bytes() == 0);
    }
    // What is damaged in the input may be so in the copy.
    let _ = proof::check(data, &done.bytes, &done.distances);
});
