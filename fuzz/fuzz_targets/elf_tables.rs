// SPDX-License-Identifier: Apache-2.0
//! What lies deeper in an ELF file: notes and the dynamic section.
#![no_main]

use hugelift_core::elf::{build_id, dynamic};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(id) = build_id(data) {
        assert!(!id.is_empty() && id.len() <= 2 * data.len());
    }
    assert!(dynamic(data).needed.len() <= data.len() / 16);
});
