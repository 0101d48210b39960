// SPDX-License-Identifier: Apache-2.0
//! The machine that the figures were measured on.

use hugelift_core::fields::field;
use hugelift_core::printable::text_to_parse;
use std::fs;

/// Describes the machine in one line: CPU, guest or not, kernel, THP setting, date.
pub fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |name: &str| field(&cpuinfo, name);
    let model = of("model name").or_else(|| of("CPU part")).unwrap_or("unknown CPU");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let guest = match of("flags") {
        Some(flags) if flags.split(' ').any(|flag| flag == "hypervisor") => ", in a guest",
        Some(_) => "",
        None => ", guest or not unknown",
    };
    let kernel = one_line("/proc/sys/kernel/osrelease");
    let thp = one_line("/sys/kernel/mm/transparent_hugepage/enabled");
    let thp = thp.split(['[', ']']).nth(1).unwrap_or("none");
    let date = std::process::Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|out| text_to_parse(&out.stdout).trim().to_string()).unwrap_or_default();
    format!("{model}, {cpus} CPUs{guest}; Linux {kernel}; THP {thp}; {date}")
}

/// Returns the bytes that one PMD entry maps: the size of a transparent huge page.
pub fn huge_page_bytes() -> u64 {
    let bytes = one_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").parse().ok();
    bytes.filter(|n: &u64| n.is_power_of_two()).unwrap_or(2 << 20)
}

fn one_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}
