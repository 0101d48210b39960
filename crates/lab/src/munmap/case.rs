// SPDX-License-Identifier: Apache-2.0
//! A combination that is measured, and its measurements.

use super::at_work::Places;
use super::cycle::{Cycle, Touch};
use super::tasks::Kind;
use crate::cpus;
use crate::memory::Pages;

/// One combination that is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Case {
    pub kind: Kind,
    pub cycle: Cycle,
    pub tasks: usize,
}

impl Case {
    pub fn name(&self) -> String {
        let Cycle { pages, touch } = self.cycle;
        format!("{}, {}, {} {}", pages.name(), touch.name(), self.tasks, self.kind.name())
    }

    /// Returns whether the sentences of the report rest on this case. Such cases come first, in case the time
    /// ends.
    pub fn is_stated(&self) -> bool {
        let Cycle { pages, touch } = self.cycle;
        let alone_or_full = self.tasks == 1 || self.tasks == cpus::count();
        match touch {
            Touch::None => pages == Pages::Small && alone_or_full,
            Touch::First => false,
            Touch::All => self.kind == Kind::Processes && self.tasks == 1,
        }
    }
}

/// Cycles per second in one sample.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    /// Whether it counts; a sample of the warm-up does not.
    pub measured: bool,
    /// Cycles per second of the slowest task.
    pub min: f64,
    /// Cycles per second of the fastest task.
    pub max: f64,
    /// Cycles per second of all tasks together.
    pub total: f64,
}

/// The measurements of a case.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Measured {
    pub case: Case,
    pub samples: Vec<Sample>,
    /// The kernel function in which tasks were seen asleep most often, and its share of all checks.
    pub asleep: Option<(String, f64)>,
    /// Where tasks were at work, or why that is not known.
    pub at_work: Result<Places, String>,
    /// CPU time per cycle in seconds, by sample that counts.
    pub cpu: Vec<f64>,
    /// Whether other programs disturbed the samples.
    pub disturbed: bool,
}

impl Measured {
    /// Returns the cycles per second of all tasks, by sample that counts.
    pub fn rates(&self) -> Vec<f64> {
        self.samples.iter().filter(|s| s.measured).map(|s| s.total).collect()
    }

    /// Returns the cycles per second of all tasks, over the samples that count.
    pub fn average(&self) -> Option<f64> {
        let counted = self.rates();
        // There is no rate if no cycle has ended.
        let sum = counted.iter().sum::<f64>();
        (sum > 0.0).then(|| sum / counted.len() as f64)
    }

    /// Returns the CPU time per cycle in seconds, over the samples that count.
    pub fn cpu(&self) -> Option<f64> {
        // Samples are equally long, so that each counts by its cycles.
        let cycles: Vec<f64> = self.cpu.iter().map(|cpu| 1.0 / cpu).collect();
        (!cycles.is_empty()).then(|| cycles.len() as f64 / cycles.iter().sum::<f64>())
    }
}
