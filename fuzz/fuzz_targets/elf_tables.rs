// SPDX-License-Identifier: Apache-2.0
//! Parses notes and the dynamic section of an ELF file.
#![no_main]

use hugelift_core::elf::{build_id, dynamic};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(id) = build_id(data) {
        assert!(!id.is_empty() && id.len() <= 2 * data.len());
    }
    assert!(dynamic(data).needed.len() <= data.len() / 16);
});
