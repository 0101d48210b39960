// SPDX-License-Identifier: Apache-2.0
//! Reads what the report of an experiment says of the machine: CPU, caches, TLBs, memory, kernel.

#[cfg(target_arch = "x86_64")]
mod cpuid;
#[cfg(any(target_arch = "x86_64", test))]
mod tlb_leaves;

use crate::cpus;
use crate::results::machine::{Cache, Machine, Tlb};
use crate::setting::chosen;
use hugelift_core::fields::{bytes_of, field};
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::{base_page, thp_page};

const CPU: &str = "/sys/devices/system/cpu";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Reads the machine that `tree` stands for. What cannot be read is `None`.
pub fn read_machine(tree: &Tree) -> Machine {
    let cpuinfo = tree.read("/proc/cpuinfo").unwrap_or_default();
    let word = |name: &str| Some(chosen(&tree.read(format!("{THP}/{name}"))?).to_string());
    let meminfo = tree.read("/proc/meminfo").unwrap_or_default();
    let (tlbs, coalesced_pages) = tlbs();
    let flagged = field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"));
    Machine {
        cpu: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "CPU part")).map(str::to_string),
        cpus: cpus::count() as u64,
        cores: cores(tree),
        caches: caches(tree),
        tlbs,
        coalesced_pages,
        memory_bytes: bytes_of(&meminfo, "MemTotal"),
        kernel: tree.read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_string()),
        hypervisor: hypervisor(tree).or_else(|| flagged.then(|| "unknown".to_string())),
        base_page_bytes: base_page().bytes(),
        thp_bytes: thp_page().filter(|_| tree.is_live()).map(|page| page.bytes()),
        thp_enabled: word("enabled"),
        thp_defrag: word("defrag"),
        huge_zero_page: word("use_zero_page").map(|text| text == "1"),
    }
}

/// Counts the cores: the distinct pairs of a package and a core in it.
fn cores(tree: &Tree) -> Option<u64> {
    let cpu = |name: &String| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let number = |name: &str, file: &str| tree.read(format!("{CPU}/{name}/topology/{file}"));
    let mut cores: Vec<(String, String)> = tree
        .names(CPU)
        .iter()
        .filter(|name| cpu(name))
        .filter_map(|name| Some((number(name, "physical_package_id")?, number(name, "core_id")?)))
        .collect();
    cores.sort();
    cores.dedup();
    (!cores.is_empty()).then_some(cores.len() as u64)
}

/// Reads the caches of the first CPU, nearest first.
fn caches(tree: &Tree) -> Vec<Cache> {
    let folder = format!("{CPU}/cpu0/cache");
    let cache = |name: &String| {
        let read = |file: &str| Some(tree.read(format!("{folder}/{name}/{file}"))?.trim().to_string());
        let kilobytes: u64 = read("size")?.strip_suffix('K')?.parse().ok()?;
        Some(Cache {
            level: read("level")?.parse().ok()?,
            kind: read("type")?,
            bytes: kilobytes.checked_mul(1024)?,
        })
    };
    let mut caches: Vec<Cache> = tree.names(&folder).iter().filter_map(cache).collect();
    caches.sort_by(|a, b| (a.level, &a.kind).cmp(&(b.level, &b.kind)));
    caches
}

/// Returns the name of the hypervisor. Xen gives it in /sys; others are known by CPUID, or by the name that
/// the firmware gives the machine.
fn hypervisor(tree: &Tree) -> Option<String> {
    let line = |path: &str| tree.read(path).map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
    if let Some(kind) = line("/sys/hypervisor/type") {
        return Some(kind);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(name) = cpuid::hypervisor() {
        return Some(name);
    }
    let firmware = line("/sys/class/dmi/id/product_name")?;
    let known = ["KVM", "QEMU", "VMware", "VirtualBox", "Virtual Machine", "HVM"];
    known.iter().any(|name| firmware.contains(name)).then_some(firmware)
}

/// Returns the TLBs, and how many adjacent small pages an entry may hold.
#[cfg(target_arch = "x86_64")]
fn tlbs() -> (Vec<Tlb>, u64) {
    let leaves = cpuid::leaves();
    (tlb_leaves::tlbs(&leaves), tlb_leaves::coalesced(&leaves))
}

/// Returns nothing: the ID registers of Arm do not give the sizes of TLBs, and other CPUs have no such
/// registers.
#[cfg(not(target_arch = "x86_64"))]
fn tlbs() -> (Vec<Tlb>, u64) {
    (Vec::new(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let machine = read_machine(&Tree::default());
        assert!(machine.kernel.is_some() && machine.memory_bytes > Some(1 << 20), "{machine:?}");
        assert!(machine.cores.is_none_or(|cores| cores >= 1), "{machine:?}");
        for cache in &machine.caches {
            assert!(cache.level >= 1 && (1 << 10..1 << 34).contains(&cache.bytes), "{cache:?}");
        }
        for tlb in &machine.tlbs {
            assert!((1..=3).contains(&tlb.level) && tlb.entries < 1 << 20, "{tlb:?}");
        }
    }

    #[test]
    fn nothing_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let machine = read_machine(&Tree::new(Some(dir.path().to_path_buf())));
        assert_eq!((machine.kernel, machine.caches.len(), machine.cores), (None, 0, None));
    }
}
