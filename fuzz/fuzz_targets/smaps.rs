// SPDX-License-Identifier: Apache-2.0
//! The text of /proc/PID/smaps.
#![no_main]

use hugelift_core::smaps::parse_smaps;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match parse_smaps(data) {
        Ok(all) => assert!(all.iter().all(|u| u.huge() <= u.mapping.range.len())),
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
