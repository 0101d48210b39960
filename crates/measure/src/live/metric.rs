// SPDX-License-Identifier: Apache-2.0
//! What the verdict is on.

use super::command::Command;
use crate::run::Figure;
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
