// SPDX-License-Identifier: Apache-2.0
//! Which events of this machine's PMU count page walks.

use crate::perf::counters::{Code, Counters, PerfError, Start, find_pmu};
use crate::pmu::{Cpu, Model, model_of, parse_cpuinfo};

/// A PMU, and the table of its events.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// The CPU's events.
    pub model: &'static Model,
    /// Name of the PMU.
    pub pmu: String,
    /// Its type, for perf_event_open(2).
    kind: u32,
}

/// Why nothing can be counted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoHardware {
    /// As in most guests.
    #[error("{}", PerfError::NoPmu)]
    NoPmu,
    /// A wrong code counts something else without a word.
    #[error("{0}")]
    NoTable(String),
}

/// The kinds of cores that `/proc/cpuinfo` names.
pub fn cpus() -> Vec<Cpu> {
    parse_cpuinfo(&std::fs::read("/proc/cpuinfo").unwrap_or_default())
}

impl Hardware {
    /// The PMU of a machine with these kinds of cores.
    ///
    /// # Errors
    /// No PMU, or no table for it.
    pub fn find(cpus: &[Cpu]) -> Result<Hardware, NoHardware> {
        // Whether there is a PMU at all matters more than whose.
        let (some, _) = find_pmu(&["cpu", "cpu_core", "armv8_", "armv9_"]).ok_or(NoHardware::NoPmu)?;
        let model = match cpus {
            [] => Err("/proc/cpuinfo names no CPU that there is an event table for".into()),
            [cpu] => model_of(cpu).ok_or_else(|| format!("there is no event table for {cpu}")),
            several => Err(format!(
                "{} kinds of cores, of which a program may use any: not supported (PMU {some} and others)",
                several.len()
            )),
        };
        let model = model.map_err(NoHardware::NoTable)?;
        let (pmu, kind) = find_pmu(model.pmus).ok_or(NoHardware::NoPmu)?;
        Ok(Hardware { model, pmu, kind })
    }

    /// Counters of all its events for these threads.
    ///
    /// # Errors
    /// As [`Counters::open`].
    pub fn open(&self, threads: &[i32], start: Start) -> Result<Counters, PerfError> {
        let code = |config| Code { pmu: self.kind, config };
        let groups: Vec<Vec<Code>> =
            self.model.groups.iter().map(|group| group.iter().map(|e| code(e.config)).collect()).collect();
        Counters::open(&groups, threads, start)
    }
}
