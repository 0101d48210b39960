// SPDX-License-Identifier: Apache-2.0
//! A process that runs, compared with itself: it is lifted and restored again and again, and periods that
//! follow each other are compared. This module holds what is read of it; who lifts it calls it from above.

mod command;
mod reading;

pub use command::Command;
pub use reading::{Reading, run};

use crate::comparison::{Figure, Run};
use serde::Serialize;

/// What the verdict is on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Metric {
    /// The growth of a counter per second: more is better.
    Counter {
        /// Prints the counter.
        command: Command,
    },
    /// A value at the end of each period.
    Gauge {
        /// Prints the value.
        command: Command,
    },
    /// CPU time of the process per unit of a counter: less is better.
    CpuPer {
        /// Prints the counter.
        command: Command,
    },
    /// CPU time of the process per second: under a load that is the same in all periods, less is better.
    Cpu,
}

impl Metric {
    /// Returns the figures that the periods have; the verdict is on the first.
    pub fn figures(&self) -> &'static [Figure] {
        match self {
            Metric::Counter { .. } => &[Figure::Rate, Figure::CpuPerUnit, Figure::CpuPerSecond],
            Metric::CpuPer { .. } => &[Figure::CpuPerUnit, Figure::Rate, Figure::CpuPerSecond],
            Metric::Gauge { .. } => &[Figure::Metric, Figure::CpuPerSecond],
            Metric::Cpu => &[Figure::CpuPerSecond],
        }
    }

    /// Returns the figure that the verdict is on.
    pub fn figure(&self) -> Figure {
        self.figures().first().copied().unwrap_or(Figure::CpuPerSecond)
    }

    /// Returns the command that prints a counter.
    pub fn counter(&self) -> Option<&Command> {
        match self {
            Metric::Counter { command } | Metric::CpuPer { command } => Some(command),
            Metric::Gauge { .. } | Metric::Cpu => None,
        }
    }

    /// Returns the command that prints a gauge.
    pub fn gauge(&self) -> Option<&Command> {
        match self {
            Metric::Gauge { command } => Some(command),
            Metric::Counter { .. } | Metric::CpuPer { .. } | Metric::Cpu => None,
        }
    }
}

/// Whether code and read-only data of a process are copies on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// They are the pages of their files.
    Bare,
    /// Some of them are copies.
    Lifted,
}

impl State {
    /// Returns the name of its side.
    pub fn name(self) -> &'static str {
        match self {
            State::Bare => "bare",
            State::Lifted => "lifted",
        }
    }
}

/// What lifting and restoring cost.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Switching {
    /// The lift before the first period, which also makes an entry of the store, in milliseconds.
    pub first_lift_ms: f64,
    /// Each further lift.
    pub lift_ms: Vec<f64>,
    /// Each restoring.
    pub restore_ms: Vec<f64>,
    /// How often a thread of the process was borrowed.
    pub borrowed: u64,
    /// The longest time for which one was stopped, in microseconds.
    pub longest_stop_us: u64,
}

/// How the experiment was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Live {
    /// The process.
    pub pid: u32,
    /// Its name and id, for people.
    pub name: String,
    /// What the verdict is on.
    pub metric: Metric,
    /// Seconds of a period.
    pub period_s: f64,
    /// Seconds after a switch that are in no period.
    pub settle_s: f64,
    /// The seed of the orders.
    pub seed: u64,
    /// How it was found.
    pub found: State,
    /// How it was left; none if it has ended.
    pub left: Option<State>,
    /// What the experiment cost.
    pub switching: Switching,
}

/// Returns whether each lifted period had more text and read-only data on huge pages than every bare one.
pub fn was_switched(bare: &[Run], lifted: &[Run]) -> bool {
    let huge =
        |runs: &[Run]| -> Option<Vec<u64>> { runs.iter().map(|run| Some(run.memory?.lifted())).collect() };
    let (Some(bare), Some(lifted)) = (huge(bare), huge(lifted)) else { return false };
    match (bare.iter().max(), lifted.iter().min()) {
        (Some(most), Some(least)) => least > most,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
