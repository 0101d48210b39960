// SPDX-License-Identifier: Apache-2.0
//! How much two samples differ.

use super::sample::Sample;
use super::student::Confidence;

/// The difference of the means of two samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Difference {
    /// The mean of the sample minus that of the reference.
    pub difference: f64,
    /// Half of the width of the interval.
    pub error: f64,
    /// The mean of the reference.
    pub reference: f64,
    /// The standard deviation of both samples about their own means.
    pub pooled: f64,
}

impl Difference {
    /// Computes the difference between `sample` and `reference` with its interval at `confidence`.
    pub fn between(reference: &Sample, sample: &Sample, confidence: Confidence) -> Difference {
        let (m, n) = (reference.count(), sample.count());
        let freedom = m + n - 2.0;
        let squares = (m - 1.0) * reference.variance() + (n - 1.0) * sample.variance();
        let pooled = (squares / freedom).sqrt();
        Difference {
            difference: sample.mean() - reference.mean(),
            error: confidence.t(freedom as usize) * pooled * (1.0 / m + 1.0 / n).sqrt(),
            reference: reference.mean(),
            pooled,
        }
    }

    /// Whether the interval leaves out 0.
    pub fn proven(&self) -> bool {
        self.difference.abs() > self.error
    }
}
