// SPDX-License-Identifier: Apache-2.0
//! Parses the text of /proc/cpuinfo and looks up the event table for it.
#![no_main]

use hugelift_measure::pmu::{model_of, parse_cpuinfo};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let kinds = parse_cpuinfo(data);
    for (i, cpu) in kinds.iter().enumerate() {
        assert!(!kinds[..i].contains(cpu));
        assert!(!cpu.to_string().chars().any(char::is_control));
        if let Some(model) = model_of(cpu) {
            assert!(!model.groups.is_empty());
        }
    }
    // The same processors listed twice are of the same kinds.
    let mut twice = data.to_vec();
    twice.extend_from_slice(b"\n\n");
    twice.extend_from_slice(data);
    assert_eq!(parse_cpuinfo(&twice), kinds);
});
