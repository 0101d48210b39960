// SPDX-License-Identifier: Apache-2.0
//! The description of the machine that an experiment ran on. `read_machine` fills it in.

use hugelift_core::addr::human_bytes;
use serde::{Deserialize, Serialize};

/// What influences experiments with memory. `None` is what could not be read.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Name of the CPU.
    pub cpu: Option<String>,
    /// CPUs that the experiment could use.
    pub cpus: u64,
    /// Cores that these CPUs belong to: fewer than CPUs if two hardware threads share a core.
    pub cores: Option<u64>,
    /// Caches of the first CPU, as the kernel shows them. A hypervisor may make them up.
    pub caches: Vec<Cache>,
    /// TLBs, as the CPU itself describes them. A hypervisor may make them up.
    pub tlbs: Vec<Tlb>,
    /// The most adjacent small pages that one entry of a TLB may hold: 4 on Zen. 0 or 1 if each page takes
    /// an entry.
    pub coalesced_pages: u64,
    /// Size of the memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Name of the hypervisor; "unknown" if the CPU only says that there is one.
    pub hypervisor: Option<String>,
    /// Bytes of a base page.
    pub base_page_bytes: u64,
    /// Bytes of a transparent huge page.
    pub thp_bytes: Option<u64>,
    /// The word in brackets in `transparent_hugepage/enabled`.
    pub thp_enabled: Option<String>,
    /// The word in brackets in `transparent_hugepage/defrag`.
    pub thp_defrag: Option<String>,
    /// Whether `transparent_hugepage/use_zero_page` is on.
    pub huge_zero_page: Option<bool>,
}

/// A cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cache {
    /// Level; 1 is the nearest.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A TLB, for one page size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tlb {
    /// Level; 1 is the nearest.
    pub level: u32,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// How many pages it holds.
    pub entries: u64,
}

impl Machine {
    /// Returns the caches that hold data (or code), nearest first.
    pub fn caches_for(&self, code: bool) -> Vec<&Cache> {
        let other = if code { "Data" } else { "Instruction" };
        let mut caches: Vec<&Cache> = self.caches.iter().filter(|cache| cache.kind != other).collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }

    /// Describes the machine in a few lines.
    pub fn lines(&self) -> Vec<String> {
        let mut first = self.cpu.clone().unwrap_or_else(|| "unknown CPU".into());
        first += &match self.cpus {
            1 => ", 1 CPU".to_string(),
            n => format!(", {n} CPUs"),
        };
        if let Some(cores) = self.cores.filter(|&cores| cores != self.cpus) {
            first += &format!(" on {cores} cores");
        }
        match self.hypervisor.as_deref() {
            Some("unknown") => first += ", in a guest",
            Some(name) => first += &format!(", in a guest ({name})"),
            None => {}
        }
        let caches = self.caches.iter().map(|cache| {
            let kind = match cache.kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            format!("L{}{kind} {}", cache.level, human_bytes(cache.bytes))
        });
        let mut second: Vec<String> = caches.collect();
        if let Some(bytes) = self.memory_bytes {
            second.push(format!("memory {}", human_bytes(bytes)));
        }
        let mut third = vec![format!("Linux {}", self.kernel.as_deref().unwrap_or("of an unknown release"))];
        third.push(format!("pages of {}", human_bytes(self.base_page_bytes)));
        third.push(match (&self.thp_enabled, self.thp_bytes) {
            (Some(word), Some(bytes)) => format!("THP {word}, {}", human_bytes(bytes)),
            (Some(word), None) => format!("THP {word}"),
            (None, _) => "no THP".into(),
        });
        if let Some(word) = &self.thp_defrag {
            third.push(format!("defrag {word}"));
        }
        if let Some(on) = self.huge_zero_page {
            third.push(format!("huge zero page {}", if on { "on" } else { "off" }));
        }
        [first, second.join(", "), third.join(", ")].into_iter().filter(|line| !line.is_empty()).collect()
    }

    /// Whether results from one machine hold for the other: same CPU, number of CPUs and kernel.
    pub fn is_like(&self, other: &Machine) -> bool {
        (&self.cpu, self.cpus, &self.kernel) == (&other.cpu, other.cpus, &other.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_words() {
        let cache = |level, kind: &str, bytes| Cache { level, kind: kind.into(), bytes };
        let machine = Machine {
            cpu: Some("AMD EPYC".into()),
            cpus: 4,
            cores: Some(2),
            caches: vec![
                cache(1, "Data", 32 << 10),
                cache(1, "Instruction", 64 << 10),
                cache(2, "Unified", 1 << 20),
            ],
            hypervisor: Some("KVM".into()),
            kernel: Some("6.18".into()),
            base_page_bytes: 4096,
            thp_bytes: Some(2 << 20),
            thp_enabled: Some("madvise".into()),
            ..Machine::default()
        };
        let lines = machine.lines();
        assert_eq!(lines[0], "AMD EPYC, 4 CPUs on 2 cores, in a guest (KVM)");
        assert_eq!(lines[1], "L1d 32 kB, L1i 64 kB, L2 1 MB");
        assert_eq!(lines[2], "Linux 6.18, pages of 4 kB, THP madvise, 2 MB");
        let code: Vec<u64> = machine.caches_for(true).iter().map(|c| c.bytes).collect();
        assert_eq!(code, [64 << 10, 1 << 20]);
        assert!(!machine.is_like(&Machine { kernel: None, ..machine.clone() }));
        assert_eq!(Machine::default().lines().len(), 2);
    }
}
