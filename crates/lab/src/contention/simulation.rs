// SPDX-License-Identifier: Apache-2.0
//! The time of a simulation: what happens next, and how long work takes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Operations per core in a simulation.
pub(super) const OPERATIONS: usize = 100;

/// Events in the order of time; events at the same time in the order of cores.
#[derive(Default)]
pub(super) struct Events(BinaryHeap<Reverse<(u64, usize)>>);

impl Events {
    /// Adds an event, in whole picoseconds, which keep the order exact. Returns the rounded time.
    pub fn add(&mut self, nanoseconds: f64, core: usize) -> f64 {
        let time = (nanoseconds.max(0.0) * 1e3) as u64;
        self.0.push(Reverse((time, core)));
        time as f64 / 1e3
    }

    pub fn next(&mut self) -> Option<(f64, usize)> {
        self.0.pop().map(|Reverse((time, core))| (time as f64 / 1e3, core))
    }
}

/// Draws the time of the work. It varies by up to a quarter, and in the same way at every run.
pub(super) struct VaryingWork(fastrand::Rng);

impl VaryingWork {
    pub fn new() -> VaryingWork {
        VaryingWork(fastrand::Rng::with_seed(1))
    }

    pub fn next(&mut self, mean: f64) -> f64 {
        mean * (0.75 + 0.5 * self.0.f64())
    }
}
