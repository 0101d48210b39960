// SPDX-License-Identifier: Apache-2.0
//! What the kernel counts itself, with or without a PMU: page faults and context switches of a
//! program, TLB flushes where the tracepoint exists, huge pages of the whole machine.
//!
//! Where perf_event_open(2) is refused (by default in containers), the page faults are read from
//! /proc/PID/stat.

use crate::perf::counters::{Code, Counters, Later, Start};
use crate::perf::tracepoint;
use crate::pmu::report::{KernelCount, Scope};
use hugelift_heat::refusal::PerfError;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Lines of /proc/vmstat on huge pages, and their names in the text.
const VMSTAT: [(&str, &str); 4] = [
    ("thp_fault_alloc", "huge pages at page faults"),
    ("thp_fault_fallback", "page faults that got small pages instead"),
    ("thp_collapse_alloc", "huge pages by khugepaged or MADV_COLLAPSE"),
    ("thp_split_page", "huge pages split"),
];

/// Counts of the kernel for some threads and for what these start.
#[derive(Debug)]
pub struct KernelCounts {
    /// The one that page faults are read from without perf_event_open(2).
    process: Option<Process>,
    counters: Option<Counters>,
    /// The value of [`faults`] at the beginning.
    faults: Option<[u64; 2]>,
    vmstat: BTreeMap<&'static str, u64>,
    /// What cannot be counted, and why.
    pub notes: Vec<String>,
}

impl KernelCounts {
    /// Opens them for the threads of a process, and for what `later` says. What cannot be counted is left out, with a note.
    ///
    /// # Errors
    /// [`PerfError::Vanished`] and [`PerfError::Files`] only.
    pub fn open(
        process: Option<Process>,
        threads: &[i32],
        start: Start,
        later: Later,
    ) -> Result<KernelCounts, PerfError> {
        let mut notes = Vec::new();
        let mut codes =
            vec![vec![Code::MINOR_FAULTS], vec![Code::MAJOR_FAULTS], vec![Code::CONTEXT_SWITCHES]];
        // Other architectures than x86 have no such tracepoint, and only root may read its number.
        codes.extend(tracepoint::number("tlb/tlb_flush").map(|id| vec![Code::tracepoint(id)]));
        let opened = match Counters::open_for(&codes, threads, start, later) {
            // Only privileged users may use tracepoints.
            Err(PerfError::Denied { .. }) if codes.len() > 3 => {
                Counters::open_for(&codes[..3], threads, start, later)
            }
            other => other,
        };
        let counters = match opened {
            Ok(counters) => Some(counters),
            Err(error @ (PerfError::Vanished | PerfError::Files { .. })) => return Err(error),
            Err(error) => {
                notes.push(match process {
                    Some(_) => format!(
                        "page faults are read from /proc/PID/stat and context switches are not counted: {error}"
                    ),
                    None => format!("page faults and context switches are not counted: {error}"),
                });
                None
            }
        };
        if counters.as_ref().is_some_and(|c| c.user_only) {
            notes.push("page faults of system calls are not counted (kernel.perf_event_paranoid)".into());
        }
        let faults = process.and_then(faults);
        Ok(KernelCounts { process, counters, faults, vmstat: vmstat(), notes })
    }

    /// Starts counting.
    pub fn enable(&self) {
        if let Some(counters) = &self.counters {
            counters.enable();
        }
    }

    /// Stops counting.
    pub fn disable(&self) {
        if let Some(counters) = &self.counters {
            counters.disable();
        }
    }

    /// Returns the counts so far.
    pub fn read(&self) -> Vec<KernelCount> {
        const PROGRAM: [(&str, &str); 4] = [
            ("minor_faults", "page faults without reading from disk"),
            ("major_faults", "page faults that read from disk"),
            ("context_switches", "context switches"),
            ("tlb_flushes", "TLB flushes"),
        ];
        let values: Vec<Option<u64>> = match &self.counters {
            Some(counters) => counters.read().iter().map(|g| Some((*g.first()?)?.value)).collect(),
            None => match (self.faults, self.process.and_then(faults)) {
                (Some(before), Some(now)) => {
                    before.iter().zip(now).map(|(before, now)| Some(now.saturating_sub(*before))).collect()
                }
                _ => Vec::new(),
            },
        };
        let mut all: Vec<KernelCount> = PROGRAM
            .iter()
            .zip(values)
            .filter_map(|((key, label), value)| {
                Some(KernelCount { key, label, value: value?, scope: Scope::Program })
            })
            .collect();
        let now = vmstat();
        all.extend(VMSTAT.iter().filter_map(|(key, label)| {
            let value = now.get(key)?.saturating_sub(*self.vmstat.get(key)?);
            Some(KernelCount { key, label, value, scope: Scope::Machine })
        }));
        all
    }
}

/// Returns the minor and major faults of a process so far, its own and those of the children that it
/// has waited for.
fn faults(process: Process) -> Option<[u64; 2]> {
    let stat = process.stat().ok()?;
    let minor = stat.minor_faults.checked_add(stat.minor_faults_of_children)?;
    Some([minor, stat.major_faults.checked_add(stat.major_faults_of_children)?])
}

fn vmstat() -> BTreeMap<&'static str, u64> {
    let text = fs::read_to_string(Path::new("/proc/vmstat")).unwrap_or_default();
    let find = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    VMSTAT.iter().filter_map(|(key, _)| Some((*key, find(key)?))).collect()
}
