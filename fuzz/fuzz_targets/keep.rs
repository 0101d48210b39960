// SPDX-License-Identifier: Apache-2.0
//! The configuration of `hugelift keep`.
#![no_main]

use hugelift_core::keep::Config;
use libfuzzer_sys::fuzz_target;
use std::time::Instant;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text) {
        Ok(config) => {
            assert!(config.programs.len() + config.files.len() > 0);
            assert!(config.files.iter().all(|file| file.starts_with('/')));
            assert!(Instant::now().checked_add(config.interval).is_some());
        }
        Err(error) => assert!(!error.contains('\n'), "{error}"),
    }
});
