// SPDX-License-Identifier: Apache-2.0
//! Whether a PMU of this machine samples the addresses of loads and stores: PEBS on Intel, IBS on AMD, SPE on Arm. hugelift
//! does not sample them yet.

use std::path::Path;

/// Files below /sys/bus/event_source/devices that are there where a PMU samples data addresses, with its name.
const PMUS: [(&str, &str); 4] = [
    ("cpu/events/mem-loads", "PEBS"),
    ("cpu_core/events/mem-loads", "PEBS"),
    ("ibs_op", "IBS"),
    ("arm_spe_0", "SPE"),
];

/// Says in one line why data addresses are not sampled.
pub fn why_not(sys: &Path) -> String {
    let devices = sys.join("bus/event_source/devices");
    match PMUS.iter().find(|(file, _)| devices.join(file).exists()) {
        Some((_, name)) => format!("this machine has {name}, which hugelift does not use"),
        None => "no PMU here samples them (PEBS, IBS, SPE), like in most guests".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_2_a_pmu_is_found_by_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(why_not(dir.path()).starts_with("no PMU here"));
        std::fs::create_dir_all(dir.path().join("bus/event_source/devices/ibs_op")).expect("a folder");
        assert!(why_not(dir.path()).contains("IBS"));
    }
}
