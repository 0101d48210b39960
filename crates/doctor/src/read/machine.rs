// SPDX-License-Identifier: Apache-2.0
//! Reads the facts of a machine from /proc and /sys and, on the machine itself, by trying.

use super::parse::{counters, memlock, numbers, zones};
use super::shared::shared;
use super::{alone, probes, process};
use crate::facts::{Facts, Memory, Reading, Thp, Trace};
use hugelift_core::addr::PageSize;
use hugelift_core::fields::{bytes_of, field};
use hugelift_core::printable::Escape;
use hugelift_linux::machine;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::{cgroup, pools, sysfs};
use hugelift_linux::proc::procfs::ProcError;
use std::path::Path;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Reads the facts of the machine that `tree` is, and of process `pid` on it. The trials make
/// temporary files in `folder`.
///
/// # Errors
/// The process cannot be read.
pub fn facts(tree: &Tree, pid: Option<u32>, folder: &Path) -> Result<Facts, ProcError> {
    let path_of = |name: &str| match pid {
        Some(pid) => format!("/proc/{pid}/{name}"),
        None => format!("/proc/self/{name}"),
    };
    let status = tree.read("/proc/self/status").unwrap_or_default();
    let cpuinfo = tree.read("/proc/cpuinfo").unwrap_or_default();
    let pools = pools::read(tree);
    let sizes: Vec<PageSize> = pools.iter().filter_map(|p| PageSize::new(p.page_size)).collect();
    let mut groups = cgroup::limits(
        &tree.read(path_of("cgroup")).unwrap_or_default(),
        &tree.read("/proc/self/mountinfo").unwrap_or_default(),
        &sizes,
        &|path| tree.read(path),
    );
    for group in &mut groups {
        group.limit.source = tree.path(&group.limit.source).escaped().to_string();
    }
    let process = pid.map(process::facts).transpose()?;
    Ok(Facts {
        kernel: tree.read("/proc/sys/kernel/osrelease").map(|t| t.trim().to_string()),
        cpu: field(&cpuinfo, "model name").map(str::to_string),
        guest: field(&cpuinfo, "flags").map(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        root: (!tree.is_live())
            .then(|| tree.path("").escaped().to_string().trim_end_matches('/').to_string()),
        attaches: tree.is_live(),
        thp: thp(tree, &status),
        counters: counters(&tree.read("/proc/vmstat").unwrap_or_default()),
        pools,
        memory: memory(tree),
        groups,
        memlock: tree.read(path_of("limits")).and_then(|text| memlock(&text)),
        trace: trace(tree, &status),
        nodes_allowed: field(&status, "Mems_allowed_list").and_then(numbers),
        alone: tree.is_live().then(|| alone::try_all(folder)),
        probes: tree.is_live().then(|| probes::try_all(folder)),
        shared: if tree.is_live() { shared(pid) } else { None },
        process,
        // `programs()` finds these, which takes time.
        programs: Vec::new(),
    })
}

/// Reads a file, with its path.
fn reading(tree: &Tree, path: &str) -> Option<Reading> {
    let value = tree.read(path)?.trim().to_string();
    Some(Reading { source: tree.path(path).escaped().to_string(), value })
}

fn thp(tree: &Tree, status: &str) -> Thp {
    let (_, page) = sysfs::thp(&|path| tree.read(path));
    let setting = |name: &str| reading(tree, &format!("{THP}/{name}"));
    Thp {
        page_size: page.map(PageSize::bytes),
        enabled: setting("enabled"),
        size_enabled: page.and_then(|p| setting(&format!("hugepages-{}kB/enabled", p.bytes() >> 10))),
        defrag: setting("defrag"),
        shmem_enabled: setting("shmem_enabled"),
        use_zero_page: setting("use_zero_page"),
        khugepaged_defrag: setting("khugepaged/defrag"),
        scan_sleep: setting("khugepaged/scan_sleep_millisecs"),
        pages_to_scan: setting("khugepaged/pages_to_scan"),
        max_ptes_none: setting("khugepaged/max_ptes_none"),
        off_here: field(status, "THP_enabled").map(|value| value == "0"),
    }
}

fn memory(tree: &Tree) -> Memory {
    let meminfo = tree.read("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| bytes_of(&meminfo, name);
    Memory {
        total: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        commit_limit: bytes("CommitLimit"),
        committed: bytes("Committed_AS"),
        overcommit: reading(tree, "/proc/sys/vm/overcommit_memory"),
        proactiveness: reading(tree, "/proc/sys/vm/compaction_proactiveness"),
        compact: tree.path(COMPACT).exists().then(|| tree.path(COMPACT).escaped().to_string()),
        zones: zones(&tree.read("/proc/buddyinfo").unwrap_or_default()),
        base_page: Some(if tree.is_live() { machine::base_page() } else { PageSize::SMALL }.bytes()),
        itlb_multihit: reading(tree, "/sys/devices/system/cpu/vulnerabilities/itlb_multihit"),
    }
}

fn trace(tree: &Tree, status: &str) -> Trace {
    let hex = |name: &str| u64::from_str_radix(field(status, name)?, 16).ok();
    Trace {
        yama: reading(tree, "/proc/sys/kernel/yama/ptrace_scope"),
        paranoid: reading(tree, "/proc/sys/kernel/perf_event_paranoid"),
        capabilities: hex("CapEff").unwrap_or(0),
        seccomp: field(status, "Seccomp").and_then(|v| v.parse().ok()).unwrap_or(0),
        // Hybrid CPUs and Arm have one for each kind of core.
        pmu: tree
            .names("/sys/bus/event_source/devices")
            .iter()
            .any(|name| name == "cpu" || name.starts_with("cpu_") || name.starts_with("armv8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_readable() {
        let facts = facts(&Tree::default(), None, &std::env::temp_dir()).unwrap();
        assert!(facts.kernel.is_some() && facts.memory.total.is_some() && facts.memlock.is_some());
        let probes = facts.probes.unwrap();
        assert!(probes.ptrace.works.is_some() && !probes.file_system.is_empty(), "{probes:?}");
        // The files of the trials are gone.
        let own = format!(".hugelift-probe-{}", std::process::id());
        let left = std::fs::read_dir(std::env::temp_dir()).unwrap();
        assert!(!left.flatten().any(|e| e.file_name().to_string_lossy().starts_with(&own)));
    }
}
