// SPDX-License-Identifier: Apache-2.0
//! The measurements of all schemes.

use super::compared::SCHEMES;
use super::tasks::Turn;
use crate::contention::Costs;

/// The measurements.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Nanoseconds of entering and exiting, by scheme and round.
    pub uncontended: [Vec<f64>; SCHEMES.len()],
    /// The same of [`SPINNING`].
    pub spinning_alone: Vec<f64>,
    /// Turns by number of tasks, scheme and round.
    pub turns: Vec<(usize, [Vec<Turn>; SCHEMES.len()])>,
    /// The same of [`SPINNING`], for no more tasks than CPUs.
    pub spinning: Vec<(usize, Vec<Turn>)>,
    /// The costs for the model; `None` with one CPU only.
    pub costs: Option<Costs>,
    /// Nanoseconds of the work around each operation in the literature.
    pub unmapping: Option<f64>,
    /// Whether other programs disturbed the measurements.
    pub disturbed: bool,
}

impl Measured {
    /// Adds the measurements of `count` tasks.
    pub fn add(&mut self, count: usize, results: Results) {
        if let Some((_, all)) = self.turns.iter_mut().find(|(tasks, _)| *tasks == count) {
            for (kept, turn) in all.iter_mut().zip(results.schemes) {
                kept.extend(turn);
            }
        }
        if let Some((_, kept)) = self.spinning.iter_mut().find(|(tasks, _)| *tasks == count) {
            kept.extend(results.spinning);
        }
    }
}

/// A turn of each scheme; `None` where it was stopped.
#[derive(Default)]
pub(super) struct Results {
    pub schemes: [Option<Turn>; SCHEMES.len()],
    pub spinning: Option<Turn>,
}
