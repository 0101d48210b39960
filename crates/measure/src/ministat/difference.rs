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
    /// Half of the width of the interval of the difference as a share of the mean of the reference, which has an
    /// error of its own: it counts as often as the sample is larger than the reference.
    pub share_error: f64,
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
        let of_means = confidence.t(freedom as usize) * (1.0 / m + 1.0 / n).sqrt();
        // Of a ratio, to the first order: the deviation of the reference counts as often as the ratio is large.
        let ratio = sample.mean() / reference.mean();
        let of_ratio = (m - 1.0) * reference.variance() * ratio * ratio + (n - 1.0) * sample.variance();
        Difference {
            difference: sample.mean() - reference.mean(),
            error: of_means * pooled,
            share_error: (of_means * (of_ratio / freedom).sqrt() / reference.mean()).abs(),
            reference: reference.mean(),
            pooled,
        }
    }

    /// Whether the interval leaves out 0.
    pub fn proven(&self) -> bool {
        self.difference.abs() > self.error
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Layout;
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        let lines: String = values.iter().map(|value| format!("{value}\n")).collect();
        Sample::parse("s", &lines, &Layout::default()).unwrap()
    }

    /// Two samples like the published ones: 1.009 and 3.551 million a second, 252 % more. The deviation of the reference counts
    /// 3.52 times as often in percent of it, so that an error that divides only by the mean is too small.
    #[test]
    fn issue_34_6_the_error_in_percent_has_that_of_the_reference() {
        let reference = sample(&[1_006_000.0, 1_009_000.0, 1_012_000.0]);
        let certain = sample(&[3_551_000.0, 3_551_000.0, 3_551_000.0]);
        let found = Difference::between(&reference, &certain, Confidence::DEFAULT);
        let naive = found.error / found.reference;
        let ratio = 3551.0 / 1009.0;
        assert!((found.share_error / naive - ratio).abs() < 1e-9, "{found:?}");
        // The other way round: without an error of the reference both are the same.
        let found = Difference::between(&certain, &reference, Confidence::DEFAULT);
        assert!((found.share_error - found.error / found.reference).abs() < 1e-12, "{found:?}");
    }
}
