// SPDX-License-Identifier: Apache-2.0
//! The machine that an experiment runs on.

use crate::results::machine::{Cache, Machine, Tlb};
use crate::setting::chosen;
use hugelift_core::fields::{bytes_of, field};
use hugelift_os::machine::tree::Tree;
use hugelift_os::machine::{base_page, thp_page};

const CPU: &str = "/sys/devices/system/cpu";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// What can be read of it.
pub fn read(tree: &Tree) -> Machine {
    let cpuinfo = tree.read("/proc/cpuinfo").unwrap_or_default();
    let word = |name: &str| Some(chosen(&tree.read(format!("{THP}/{name}"))?).to_string());
    let meminfo = tree.read("/proc/meminfo").unwrap_or_default();
    let flagged = field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"));
    Machine {
        cpu: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "CPU part")).map(str::to_string),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        cores: cores(tree),
        caches: caches(tree),
        tlbs: tlbs(),
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

/// UTC, as in 2026-01-31T12:00:00Z.
pub fn now() -> String {
    // SAFETY: time(2) with no place to store the time in; gmtime_r(3) writes to the given tm,
    // which lives through the call.
    let tm = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut tm: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const now, &raw mut tm);
        tm
    };
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    let (hour, minute, second) = (tm.tm_hour, tm.tm_min, tm.tm_sec);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", tm.tm_mday)
}

/// Pairs of a package and a core in it.
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

/// Those of the first CPU, nearest first.
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

/// Xen says it in /sys; the others by CPUID, or by what the firmware calls the machine.
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

#[cfg(target_arch = "x86_64")]
use cpuid::tlbs;

/// Other CPUs do not tell.
#[cfg(not(target_arch = "x86_64"))]
fn tlbs() -> Vec<Tlb> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
mod cpuid {
    use super::Tlb;
    use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

    // CPUID is there on every x86-64; newer toolchains have it as safe functions.
    fn leaf(number: u32) -> CpuidResult {
        #[allow(unused_unsafe)]
        // SAFETY: the instruction only returns numbers.
        unsafe {
            __cpuid(number)
        }
    }

    /// The twelve letters of leaf 0x4000_0000, where leaf 1 says that a hypervisor is there.
    pub fn hypervisor() -> Option<String> {
        if leaf(1).ecx & 1 << 31 == 0 {
            return None;
        }
        let answer = leaf(0x4000_0000);
        let bytes: Vec<u8> =
            [answer.ebx, answer.ecx, answer.edx].into_iter().flat_map(u32::to_le_bytes).collect();
        let name = hugelift_core::printable::text_to_parse(&bytes);
        let name: String = name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        let known = match name.trim() {
            "KVMKVMKVM" => "KVM",
            "Microsoft Hv" => "Hyper-V",
            "VMwareVMware" => "VMware",
            "XenVMMXenVMM" => "Xen",
            "TCGTCGTCGTCG" => "QEMU, emulated",
            "" => "unknown",
            other => other,
        };
        Some(known.to_string())
    }

    /// What the CPU says of its TLBs: AMD in leaves 0x8000_0005, 6 and 0x19 (AMD64 Architecture
    /// Programmer's Manual, volume 3, appendix E), Intel in leaf 0x18 (Software Developer's
    /// Manual, volume 2A, CPUID).
    pub fn tlbs() -> Vec<Tlb> {
        let vendor = leaf(0);
        let mut found = match vendor.ebx {
            // "Auth", "Hygo"
            0x6874_7541 | 0x6f67_7948 => amd(),
            // "Genu"
            0x756e_6547 if vendor.eax >= 0x18 => intel(),
            _ => Vec::new(),
        };
        found.retain(|tlb| tlb.entries > 0);
        found.sort_by(|a, b| (&a.kind, a.page_bytes, a.level).cmp(&(&b.kind, b.page_bytes, b.level)));
        found
    }

    fn amd() -> Vec<Tlb> {
        let most = leaf(0x8000_0000).eax;
        let tlb = |level, kind: &str, page_bytes: u64, entries: u32| Tlb {
            level,
            kind: kind.into(),
            page_bytes,
            entries: u64::from(entries),
        };
        let mut all = Vec::new();
        if most >= 0x8000_0005 {
            let first = leaf(0x8000_0005);
            all.extend([
                tlb(1, "data", 4 << 10, first.ebx >> 16 & 0xff),
                tlb(1, "instruction", 4 << 10, first.ebx & 0xff),
                tlb(1, "data", 2 << 20, first.eax >> 16 & 0xff),
                tlb(1, "instruction", 2 << 20, first.eax & 0xff),
            ]);
        }
        if most >= 0x8000_0006 {
            let second = leaf(0x8000_0006);
            all.extend([
                tlb(2, "data", 4 << 10, second.ebx >> 16 & 0xfff),
                tlb(2, "instruction", 4 << 10, second.ebx & 0xfff),
                tlb(2, "data", 2 << 20, second.eax >> 16 & 0xfff),
                tlb(2, "instruction", 2 << 20, second.eax & 0xfff),
            ]);
        }
        if most >= 0x8000_0019 {
            let giant = leaf(0x8000_0019);
            all.extend([
                tlb(1, "data", 1 << 30, giant.eax >> 16 & 0xfff),
                tlb(2, "data", 1 << 30, giant.ebx >> 16 & 0xfff),
            ]);
        }
        all
    }

    fn intel() -> Vec<Tlb> {
        let count = |sub: u32| {
            #[allow(unused_unsafe)]
            // SAFETY: the instruction only returns numbers.
            unsafe {
                __cpuid_count(0x18, sub)
            }
        };
        // The first answer says how many there are; more than a few dozen nobody has.
        let last = count(0).eax.min(63);
        let tlb = |answer: CpuidResult| {
            let kind = match answer.edx & 0x1f {
                1 | 4 => "data",
                2 => "instruction",
                3 => "unified",
                _ => return Vec::new(),
            };
            let (ways, sets) = (u64::from(answer.ebx >> 16), u64::from(answer.ecx));
            let sizes = [(0, 4 << 10), (1, 2 << 20), (3, 1u64 << 30)];
            let sizes = sizes.into_iter().filter(|(bit, _)| answer.ebx & 1 << bit != 0);
            let level = answer.edx >> 5 & 7;
            sizes
                .map(|(_, page_bytes)| Tlb { level, kind: kind.into(), page_bytes, entries: ways * sets })
                .collect()
        };
        (0..=last).flat_map(|sub| tlb(count(sub))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let machine = read(&Tree::default());
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
    fn a_machine_of_which_nothing_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let machine = read(&Tree::new(Some(dir.path().to_path_buf())));
        assert_eq!((machine.kernel, machine.caches.len(), machine.cores), (None, 0, None));
    }

    #[test]
    fn the_time_is_that_of_the_date_command() {
        let seconds = |text: &str| {
            let out = std::process::Command::new("date").args(["-ud", text, "+%s"]).output().unwrap();
            String::from_utf8(out.stdout).unwrap().trim().parse::<u64>().unwrap()
        };
        let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(seconds(&now()).abs_diff(real) < 60, "{}", now());
    }
}
