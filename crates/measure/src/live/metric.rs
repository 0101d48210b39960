// SPDX-License-Identifier: Apache-2.0
//! What the verdict is on.

use super::command::Command;
use super::work::{Steady, Work};
use crate::run::Figure;
use serde::Serialize;

/// What the verdict is on.
#[derive(Clone, PartialEq, Debug, Serialize)]
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
    /// CPU time of the process for one of what the kernel counts of it: less is better.
    CpuPerWork(Steady),
    /// CPU time of the process per second: under a load that is the same in all periods, less is better.
    Cpu {
        /// Why it is not the CPU time for one of something.
        why: String,
    },
}

impl Metric {
    /// Returns the figures that the periods have; the verdict is on the first.
    pub fn figures(&self) -> &'static [Figure] {
        match self {
            Metric::Counter { .. } => &[Figure::Rate, Figure::CpuPerUnit, Figure::CpuPerSecond],
            Metric::CpuPer { .. } | Metric::CpuPerWork(_) => {
                &[Figure::CpuPerUnit, Figure::Rate, Figure::CpuPerSecond]
            }
            Metric::Gauge { .. } => &[Figure::Metric, Figure::CpuPerSecond],
            Metric::Cpu { .. } => &[Figure::CpuPerSecond],
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
            Metric::Gauge { .. } | Metric::CpuPerWork(_) | Metric::Cpu { .. } => None,
        }
    }

    /// Returns what the kernel counts of the process.
    pub fn work(&self) -> Option<Work> {
        match self {
            Metric::CpuPerWork(steady) => Some(steady.work),
            _ => None,
        }
    }

    /// Returns whether a period has a number of units of work.
    pub fn counts(&self) -> bool {
        self.counter().is_some() || self.work().is_some()
    }

    /// Returns the command that prints a gauge.
    pub fn gauge(&self) -> Option<&Command> {
        match self {
            Metric::Gauge { command } => Some(command),
            _ => None,
        }
    }
}
