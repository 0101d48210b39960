// SPDX-License-Identifier: Apache-2.0
//! One run, and its figures that can be compared.

use crate::memory::Memory;
use crate::pmu::counts::Counts;
use serde::Serialize;

/// A figure of two runs that can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// From the start to the end of the program, seconds.
    #[default]
    Wall,
    /// User and system time of the program, and of hugelift's helper, seconds.
    Cpu,
    /// The number in the load's output.
    Metric,
    /// The second number in the load's output, such as a latency.
    Latency,
    /// CPU time of the server for one transaction, or for the whole load where transactions are not
    /// counted, seconds.
    ServerCpu,
    /// By how much the counter of a running process grows in a second.
    Rate,
    /// CPU time of a running process for one unit of its counter, seconds.
    CpuPerUnit,
    /// CPU time of a running process in a second, seconds.
    CpuPerSecond,
}

impl Figure {
    /// Returns its name as in "less wall time".
    pub fn words(self) -> &'static str {
        match self {
            Figure::Wall => "wall time",
            Figure::Cpu => "CPU time",
            Figure::Metric => "metric",
            Figure::Latency => "latency",
            Figure::ServerCpu => "server CPU per transaction",
            Figure::Rate => "work per second",
            Figure::CpuPerUnit => "CPU time per unit of work",
            Figure::CpuPerSecond => "CPU time per second",
        }
    }

    /// Returns its value in a run, where the run has it.
    pub fn of(self, run: &Run) -> Option<f64> {
        match self {
            Figure::Wall => Some(run.wall),
            Figure::Cpu => Some(run.user + run.system + run.helper),
            Figure::Metric | Figure::Rate => run.metric,
            Figure::Latency => run.latency,
            Figure::ServerCpu | Figure::CpuPerUnit => run.server_cpu,
            Figure::CpuPerSecond => run.cpu_per_second,
        }
    }
}

/// One run of one side.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Run {
    /// The pair (round), from 1.
    pub pair: usize,
    /// Its place in the order of its round, from 1.
    pub position: usize,
    /// Seconds from start to end.
    pub wall: f64,
    /// User CPU seconds of the program and the children it waited for.
    pub user: f64,
    /// System CPU seconds of the program and the children it waited for.
    pub system: f64,
    /// CPU seconds of its orphans that have ended: for a lifted program, of hugelift's helper.
    pub helper: f64,
    /// Page faults that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Exit status, or 128 plus the number of the signal that ended it.
    pub status: i32,
    /// Peak resident memory of the process alone in bytes, where it was read.
    pub peak_bytes: Option<u64>,
    /// The most that was huge, where it was read.
    pub memory: Option<Memory>,
    /// The number in the load's output; of a running process [`Figure::Metric`] or [`Figure::Rate`].
    pub metric: Option<f64>,
    /// See [`Figure::Latency`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<f64>,
    /// See [`Figure::ServerCpu`] and [`Figure::CpuPerUnit`].
    pub server_cpu: Option<f64>,
    /// See [`Figure::CpuPerSecond`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_per_second: Option<f64>,
    /// Of a running process the most by which `wall` may differ from the time between what was read at both ends, in seconds: half
    /// of the time that the readings took, with the user's command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_error: Option<f64>,
    /// The transactions of the load, if they were counted.
    #[serde(skip)]
    pub transactions: Option<f64>,
    /// What was counted of it, if that was asked for; a comparison has the totals.
    #[serde(skip)]
    pub counts: Option<Box<Counts>>,
}
