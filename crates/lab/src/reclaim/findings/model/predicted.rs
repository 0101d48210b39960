// SPDX-License-Identifier: Apache-2.0
//! What the model predicts: for this machine, beside the measurement, and for more cores.

use super::models::MODELS;
use super::published::{CPUS, PEAK};

/// How far a prediction may be from the measurement.
pub(super) const OFF: f64 = 2.0;

/// Numbers of cores in the model.
pub(super) const CORES: [usize; 11] = [1, 2, 4, 8, PEAK.0, 16, 24, 32, 48, 64, CPUS];

/// A prediction for this machine, and the measurement.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub model: usize,
    pub tasks: usize,
    pub predicted: f64,
    pub measured: f64,
}

impl Check {
    pub fn is_off(&self) -> bool {
        let ratio = self.predicted / self.measured;
        !(1.0 / OFF..=OFF).contains(&ratio)
    }
}

/// What a task does beside entering and exiting, and how long lines travel.
pub(super) struct Case {
    pub work: &'static str,
    pub transfers: &'static str,
    /// The rates for each of [`CORES`]; `None` for a scheme that is not shown.
    pub rates: [[Option<f64>; MODELS.len()]; CORES.len()],
}

impl Case {
    pub fn title(&self) -> String {
        format!("{}, transfers {}", self.work, self.transfers)
    }

    /// Returns the number of cores with the highest rate, and this rate.
    pub fn peak(&self, model: usize) -> Option<(usize, f64)> {
        let rates = CORES.iter().zip(self.rates).filter_map(|(cores, all)| Some((*cores, all[model]?)));
        rates.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    pub fn at(&self, cores: usize, model: usize) -> Option<f64> {
        self.rates[CORES.iter().position(|&c| c == cores)?][model]
    }
}
