// SPDX-License-Identifier: Apache-2.0
//! The ratio of a figure of two sides.

use crate::run::{Figure, Run};
use crate::stats::{self, Estimate};
use serde::Serialize;

/// The ratio of one figure, variant / bare.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The figure.
    pub figure: Figure,
    /// Median ratio.
    pub point: f64,
    /// Lower end of the interval.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// How many pairs it rests on.
    pub pairs: usize,
}

impl Ratio {
    /// Returns an estimate of the ratio of a figure.
    pub(super) fn of(figure: Figure, estimate: &Estimate) -> Ratio {
        let (low, high) = (estimate.interval.map(|i| i.low), estimate.interval.map(|i| i.high));
        Ratio { figure, point: estimate.point, low, high, pairs: estimate.count }
    }
}

/// Estimates the ratio variant / bare of `figure`, from the rounds in which both have it.
pub fn ratio(figure: Figure, bare: &[Run], variant: &[Run]) -> Option<Estimate> {
    let pairs: Vec<(f64, f64)> =
        bare.iter().zip(variant).filter_map(|(a, b)| Some((figure.of(a)?, figure.of(b)?))).collect();
    stats::ratio(&pairs).ok()
}
