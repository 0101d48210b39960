// SPDX-License-Identifier: Apache-2.0
//! The measurements.

use super::counts::Figures;
use super::kind::{Kind, Source};
use super::perf_bench::PerfBench;
use super::source::Found;

/// The measurements of a [`Kind`] with blocks of one size.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    /// The operation.
    pub kind: Kind,
    /// CPU time of one operation in nanoseconds, by round.
    pub times: Vec<f64>,
    /// Wall time of one operation in nanoseconds, by round.
    pub wall: Vec<f64>,
    /// What was counted of one operation.
    pub counts: Option<Figures>,
}

/// All measurements with blocks of one size.
#[derive(Clone, Debug)]
pub(super) struct Size {
    /// Size of a block in bytes.
    pub bytes: usize,
    /// In the order of [`Kind::ALL`].
    pub timed: Vec<Timed>,
    /// Whether other programs disturbed some of its rounds.
    pub disturbed: bool,
}

impl Size {
    /// Returns the CPU times of a kind in nanoseconds, by round; `None` if there are none.
    pub fn times(&self, kind: Kind) -> Option<&[f64]> {
        self.measured(kind).map(|timed| &timed.times[..])
    }

    /// Returns the wall times of a kind in nanoseconds, by round; `None` if there are none.
    pub fn wall(&self, kind: Kind) -> Option<&[f64]> {
        self.measured(kind).map(|timed| &timed.wall[..])
    }

    fn measured(&self, kind: Kind) -> Option<&Timed> {
        self.timed.iter().find(|timed| timed.kind == kind && !timed.times.is_empty())
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// By size of the blocks.
    pub sizes: Vec<Size>,
    /// The pages that the sources were found to have.
    pub found: Vec<(Source, Found)>,
    /// Results of perf's own benchmark.
    pub perf: Option<PerfBench>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}
