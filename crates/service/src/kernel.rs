// SPDX-License-Identifier: Apache-2.0
//! What the kernel counts that is worth a metric: huge pages, pressure, pools, and the daemon's own cost.

use crate::metrics::figures::{Kernel, Pool, Pressure};
use hugelift_linux::machine::pools;
use hugelift_linux::machine::pressure::OF_MACHINE;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::Process;

/// Reads the counters of huge pages (/proc/vmstat).
pub fn counters() -> Kernel {
    counters_in(&std::fs::read_to_string("/proc/vmstat").unwrap_or_default())
}

fn counters_in(vmstat: &str) -> Kernel {
    let of = |key: &str| {
        let mut lines = vmstat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(name, _)| *name == key).and_then(|(_, value)| value.trim().parse().ok())
    };
    Kernel {
        splits: of("thp_split_page"),
        collapses: of("thp_collapse_alloc"),
        collapse_failures: of("thp_collapse_alloc_failed"),
        compaction_stalls: of("compact_stall"),
        faults: of("thp_fault_alloc"),
        fault_fallbacks: of("thp_fault_fallback"),
    }
}

/// Reads the machine's memory pressure; `None` where the kernel does not tell it.
pub fn pressure() -> Option<Pressure> {
    pressure_in(&std::fs::read_to_string(OF_MACHINE).ok()?)
}

fn pressure_in(text: &str) -> Option<Pressure> {
    let of = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse::<f64>().ok()
    };
    Some(Pressure { some_avg10: of("some ")?, full_avg10: of("full ")? })
}

/// Reads the hugetlb pools.
pub fn pools() -> Vec<Pool> {
    let all = pools::read(&Tree::new(None));
    all.into_iter()
        .map(|pool| Pool { page_size: pool.page_size, total: pool.total, free: pool.free })
        .collect()
}

/// Returns the CPU time of this process and of these, user and system, in seconds.
pub fn cpu_seconds(others: &[u32]) -> f64 {
    let of = |process: Process| process.stat().map_or(0, |stat| stat.cpu + stat.cpu_of_children);
    let ticks = of(Process::OWN) + others.iter().map(|pid| of(Process::new(*pid))).sum::<u64>();
    ticks as f64 / ticks_per_second().max(1) as f64
}

/// Returns the resident memory of this process and of these, in bytes.
pub fn resident_bytes(others: &[u32]) -> u64 {
    let page = hugelift_linux::machine::base_page().bytes();
    let of = |process: Process| {
        let statm = process.read("statm").unwrap_or_default();
        let word =
            std::str::from_utf8(&statm).ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        word.unwrap_or(0).saturating_mul(page)
    };
    of(Process::OWN) + others.iter().map(|pid| of(Process::new(*pid))).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_5_what_the_kernel_counts_is_read() {
        let kernel =
            counters_in("thp_split_page 3\nthp_split_page_failed 9\ncompact_stall 4\nthp_fault_alloc x\n");
        assert_eq!((kernel.splits, kernel.compaction_stalls, kernel.faults), (Some(3), Some(4), None));
        let text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(pressure_in(text), Some(Pressure { some_avg10: 1.5, full_avg10: 0.25 }));
        assert_eq!(pressure_in("some avg10=x\n"), None);
        assert!(resident_bytes(&[]) > 0 && cpu_seconds(&[1 << 23]) >= 0.0);
    }
}
