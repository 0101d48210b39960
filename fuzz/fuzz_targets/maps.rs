// SPDX-License-Identifier: Apache-2.0
//! The text of /proc/PID/maps.
#![no_main]

use hugelift_core::maps::parse_maps;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match parse_maps(data) {
        Ok(all) => {
            assert!(all.iter().all(|m| !m.range.is_empty()));
            assert!(all.windows(2).all(|w| w[0].range.end <= w[1].range.start));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
