// SPDX-License-Identifier: Apache-2.0
//! This machine's PMU, with the table of the events that count page walks.

use crate::perf::counters::{Code, Counters, Later, Start, find_pmu};
use crate::pmu::{Cpu, Model, model_of, parse_cpuinfo};
use hugelift_heat::refusal::PerfError;

/// A PMU, and the table of its events.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// The CPU's events.
    pub model: &'static Model,
    /// The kernel's name for it.
    pub pmu: String,
    /// Its type, for perf_event_open(2).
    kind: u32,
}

/// Why page walks cannot be counted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoHardware {
    /// There is no PMU, as in most guests.
    #[error("{}", PerfError::NoPmu)]
    NoPmu,
    /// There is no table of its events.
    #[error("{0}")]
    NoTable(String),
}

/// Returns the kinds of cores that `/proc/cpuinfo` names.
pub fn cpus() -> Vec<Cpu> {
    parse_cpuinfo(&std::fs::read("/proc/cpuinfo").unwrap_or_default())
}

impl Hardware {
    /// Finds the PMU of a machine with these kinds of cores.
    ///
    /// # Errors
    /// There is no PMU, or no table for it.
    pub fn find(cpus: &[Cpu]) -> Result<Hardware, NoHardware> {
        // A missing PMU is the more important answer, so it is checked first.
        let (some, _) = find_pmu(&["cpu", "cpu_core", "armv8_", "armv9_"]).ok_or(NoHardware::NoPmu)?;
        let model = match cpus {
            [] => Err("/proc/cpuinfo names no x86 or Arm CPU, and only these have event tables".into()),
            [cpu] => model_of(cpu).ok_or_else(|| format!("there is no event table for {cpu}")),
            several => Err(format!(
                "this machine has {} kinds of cores, and a program may run on any of them: not supported (PMU {some} and others)",
                several.len()
            )),
        };
        let model = model.map_err(NoHardware::NoTable)?;
        let (pmu, kind) = find_pmu(model.pmus).ok_or(NoHardware::NoPmu)?;
        Ok(Hardware { model, pmu, kind })
    }

    /// Opens counters of all its events for these threads, and for what `later` says.
    ///
    /// # Errors
    /// Those of [`Counters::open`].
    pub fn open(&self, threads: &[i32], start: Start, later: Later) -> Result<Counters, PerfError> {
        let code = |config| Code { pmu: self.kind, config };
        let groups: Vec<Vec<Code>> =
            self.model.groups.iter().map(|group| group.iter().map(|e| code(e.config)).collect()).collect();
        Counters::open_for(&groups, threads, start, later)
    }
}
