// SPDX-License-Identifier: Apache-2.0
//! The lines of `/proc/PID/stat` and `/proc/PID/statm`.
#![no_main]

use hugelift_core::proc_stat::{parse_stat, parse_statm_text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(stat) = parse_stat(data) {
        let id = stat.pid.to_string();
        assert!(data.windows(id.len()).any(|window| window == id.as_bytes()));
    }
    if let Some(pages) = parse_statm_text(data) {
        assert!(data.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count() > 3, "{pages}");
    }
});
