// SPDX-License-Identifier: Apache-2.0
//! Statistics of paired measurements.
//!
//! Times of programs are skewed and have outliers, so nothing here assumes a normal distribution.
//! The estimate is that of Hodges and Lehmann (the median of all averages of two values); its
//! interval inverts Wilcoxon's signed-rank test (Hollander, Wolfe & Chicken, "Nonparametric
//! Statistical Methods", chapter 3). The only assumption is that each pair differs by the same
//! amount plus symmetric noise.

use std::fmt;

/// The least confidence of an interval (exact up to [`EXACT`] values).
const CONFIDENCE: f64 = 0.95;

/// Up to this many values the null distribution is computed exactly; beyond, a normal distribution
/// approximates it.
const EXACT: usize = 50;

/// The most estimates of which all intervals can hold together.
pub const MOST_TOGETHER: usize = 16;

/// The points of the standard normal distribution that 2.5 %, 2.5 % / 2, 2.5 % / 3... lie above.
const Z: [f64; MOST_TOGETHER] = [
    1.959_963_985,
    2.241_402_728,
    2.393_979_800,
    2.497_705_474,
    2.575_829_304,
    2.638_257_273,
    2.690_109_527,
    2.734_368_787,
    2.772_921_295,
    2.807_033_768,
    2.837_596_913,
    2.865_260_239,
    2.890_511_561,
    2.913_726_318,
    2.935_199_469,
    2.955_166_847,
];

/// Why measurements have no estimate.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum StatsError {
    /// Nothing was measured.
    #[error("no measurements")]
    Empty,
    /// A value that is not finite, or one that has no ratio.
    #[error("measurement {index} is {value}, which has no {what}")]
    Unusable {
        /// Counted from 0.
        index: usize,
        /// The value seen.
        value: f64,
        /// What cannot be computed from it.
        what: &'static str,
    },
}

/// A closed interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Where the middle of some values lies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The Hodges-Lehmann estimate.
    pub point: f64,
    /// Its 95 % interval; `None` with fewer than six values, which cannot give one.
    pub interval: Option<Interval>,
    /// How many values (pairs) it rests on.
    pub count: usize,
}

/// How an estimate compares with the value that means "no difference".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The whole interval is below.
    Less,
    /// The whole interval is above.
    More,
    /// The interval contains the value: neither a difference nor equality is shown.
    Undecided,
    /// Too few values for an interval.
    TooFew,
}

impl Estimate {
    /// Compares the interval with `neutral`: 1 for ratios, 0 for differences.
    pub fn verdict(&self, neutral: f64) -> Verdict {
        match self.interval {
            None => Verdict::TooFew,
            Some(i) if i.high < neutral => Verdict::Less,
            Some(i) if i.low > neutral => Verdict::More,
            Some(_) => Verdict::Undecided,
        }
    }

    /// Returns the larger distance from the point to an end of the interval, as a share of the
    /// point (for ratios). The measurement could not have shown a difference smaller than this.
    pub fn half_width(&self) -> Option<f64> {
        let Interval { low, high } = self.interval?;
        Some((high / self.point).max(self.point / low) - 1.0)
    }

    /// Turns the estimate of a logarithm into that of the value.
    #[must_use]
    pub fn exp(self) -> Estimate {
        self.map(f64::exp)
    }

    fn map(self, f: impl Fn(f64) -> f64) -> Estimate {
        let interval = self.interval.map(|i| Interval { low: f(i.low), high: f(i.high) });
        Estimate { point: f(self.point), interval, ..self }
    }
}

/// `0.79 [0.78, 0.81]`; the precision applies to all three figures (default 3 digits).
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(3);
        write!(f, "{:.digits$} ", self.point)?;
        match self.interval {
            Some(i) => write!(f, "[{:.digits$}, {:.digits$}]", i.low, i.high),
            None => write!(f, "[{} rounds; an interval needs 6]", self.count),
        }
    }
}

/// Returns the mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the standard deviation of a sample; `None` with fewer than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Returns the median; of an even number of values the mean of the middle two.
///
/// # Errors
/// No values, or one that is not finite.
pub fn median(values: &[f64]) -> Result<f64, StatsError> {
    let mut sorted = checked(values, "median", |_| true)?;
    sorted.sort_by(f64::total_cmp);
    Ok(middle(&sorted))
}

/// Returns the Hodges-Lehmann estimate of the middle of `values` with its 95 % interval.
///
/// # Errors
/// No values, or one that is not finite.
pub fn location(values: &[f64]) -> Result<Estimate, StatsError> {
    location_of(values, 1)
}

/// Does the same for one of several estimates, from 1 to [`MOST_TOGETHER`]: the intervals of all of them contain what they
/// should with a probability of at least 95 % (Bonferroni).
///
/// # Errors
/// No values, or one that is not finite.
pub fn location_of(values: &[f64], estimates: usize) -> Result<Estimate, StatsError> {
    let values = checked(values, "estimate", |_| true)?;
    let n = values.len();
    let mut walsh = Vec::with_capacity(n * (n + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        walsh.extend(values[i..].iter().map(|b| a / 2.0 + b / 2.0));
    }
    walsh.sort_by(f64::total_cmp);
    let interval = critical(n, estimates).and_then(|t| {
        let (low, high) = (walsh.get(t)?, walsh.get(walsh.len().checked_sub(t + 1)?)?);
        Some(Interval { low: *low, high: *high })
    });
    Ok(Estimate { point: middle(&walsh), interval, count: n })
}

/// Estimates the ratio second / first of pairs, with its 95 % interval.
///
/// # Errors
/// No pairs, or a value that is not positive and finite.
pub fn ratio(pairs: &[(f64, f64)]) -> Result<Estimate, StatsError> {
    let flat: Vec<f64> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
    let flat = checked(&flat, "ratio", |v| v > 0.0)?;
    let logs: Vec<f64> = flat.chunks_exact(2).map(|pair| pair[1].ln() - pair[0].ln()).collect();
    Ok(location(&logs)?.exp())
}

/// Estimates the difference second - first of pairs, with its 95 % interval.
///
/// # Errors
/// No pairs, or a value that is not finite.
pub fn difference(pairs: &[(f64, f64)]) -> Result<Estimate, StatsError> {
    location(&pairs.iter().map(|(a, b)| b - a).collect::<Vec<f64>>())
}

fn checked(values: &[f64], what: &'static str, ok: impl Fn(f64) -> bool) -> Result<Vec<f64>, StatsError> {
    if values.is_empty() {
        return Err(StatsError::Empty);
    }
    match values.iter().position(|&v| !v.is_finite() || !ok(v)) {
        Some(index) => Err(StatsError::Unusable { index, value: values[index], what }),
        None => Ok(values.to_vec()),
    }
}

/// Returns the median of sorted values, of which there is at least one.
fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    sorted[(n - 1) / 2] / 2.0 + sorted[n / 2] / 2.0
}

/// Returns the largest rank sum `t` with P(T <= t) <= 2.5 % / `estimates` under the null hypothesis, for `n`
/// values: this many Walsh averages are cut off at each end. `None` if even P(T <= 0) is larger.
fn critical(n: usize, estimates: usize) -> Option<usize> {
    let estimates = estimates.clamp(1, MOST_TOGETHER);
    if n > EXACT {
        let z = Z[estimates - 1];
        let n = n as f64;
        let (mean, variance) = (n * (n + 1.0) / 4.0, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0);
        // The half is the usual continuity correction.
        return Some((mean - z * variance.sqrt() - 0.5).floor() as usize);
    }
    // counts[s] is the number of subsets of {1..n} with the sum s. There are 2^n subsets, at most 2^50.
    let top = n * (n + 1) / 2;
    let mut counts = vec![0u64; top + 1];
    counts[0] = 1;
    for rank in 1..=n {
        for sum in (rank..=top).rev() {
            counts[sum] += counts[sum - rank];
        }
    }
    let tail = (1u64 << n) as f64 * (1.0 - CONFIDENCE) / 2.0 / estimates as f64;
    let mut below = 0;
    let within = counts.iter().take_while(|&&c| {
        below += c;
        below as f64 <= tail
    });
    within.count().checked_sub(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A number of the Laplace distribution: symmetric, with heavier tails than the normal one.
    pub(crate) fn laplace(random: &mut fastrand::Rng) -> f64 {
        // f64() may be 0, which has no logarithm, and is never 1.
        let (size, up) = (-(1.0 - random.f64()).ln(), random.bool());
        if up { size } else { -size }
    }

    #[test]
    fn critical_values_are_those_of_the_tables() {
        // Two-sided 5 % points of Wilcoxon's signed-rank statistic, as printed in textbooks.
        let table =
            [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (25, 89), (30, 137)];
        for (n, t) in table {
            assert_eq!(critical(n, 1), Some(t), "n = {n}");
        }
        assert_eq!(critical(50, 1), Some(434));
        for n in 0..6 {
            assert_eq!(critical(n, 1), None, "n = {n}");
        }
    }

    #[test]
    fn the_normal_approximation_continues_the_exact_distribution() {
        let steps: Vec<usize> = (45..=56).map(|n| critical(n, 1).unwrap()).collect();
        assert!(steps.windows(2).all(|w| (13..=26).contains(&(w[1] - w[0]))), "{steps:?}");
        // Of more estimates each interval is wider.
        for n in [EXACT, EXACT + 1] {
            let cut: Vec<usize> = (1..=MOST_TOGETHER).map(|many| critical(n, many).unwrap()).collect();
            assert!(cut.windows(2).all(|w| w[1] < w[0] && w[0] - w[1] < 80), "{cut:?}");
        }
    }

    #[test]
    fn means_and_deviations() {
        assert_eq!((mean(&[]), deviation(&[3.0])), (None, None));
        assert_eq!(mean(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), Some(5.0));
        // The squares add up to 32.
        let found = deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((found - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12, "{found}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Ok(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Ok(2.5));
        assert_eq!(median(&[]), Err(StatsError::Empty));
        assert!(matches!(median(&[1.0, f64::NAN]), Err(StatsError::Unusable { index: 1, .. })));
    }

    #[test]
    fn the_interval_of_six_values_is_their_range() {
        let e = location(&[6.0, 1.0, 5.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((e.point, e.interval), (3.5, Some(Interval { low: 1.0, high: 6.0 })));
    }

    #[test]
    fn the_interval_of_ten_values_cuts_eight_walsh_averages_off_each_end() {
        let e = location(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]).unwrap();
        // The averages in order: 1, 1.5, 2, 2.5, 3, 4, 4.5, 5, then 6 = (4 + 8) / 2;
        // from the top: 512, 384, 320, 288, 272, 264, 260, 258, then 257 = (2 + 512) / 2.
        assert_eq!(e.interval, Some(Interval { low: 6.0, high: 257.0 }));
    }

    #[test]
    fn five_pairs_give_no_interval() {
        let e = ratio(&[(1.0, 0.5); 5]).unwrap();
        assert_eq!((e.interval, e.verdict(1.0)), (None, Verdict::TooFew));
        assert!(e.to_string().contains("[5 rounds; an interval needs 6]"), "{e}");
    }

    #[test]
    fn verdicts() {
        let of = |low, high| {
            Estimate { point: 1.0, interval: Some(Interval { low, high }), count: 9 }.verdict(1.0)
        };
        assert_eq!(of(0.7, 0.9), Verdict::Less);
        assert_eq!(of(1.1, 1.3), Verdict::More);
        assert_eq!(of(0.9, 1.0), Verdict::Undecided);
    }

    #[test]
    fn a_ratio_is_that_of_second_to_first_and_an_outlier_does_not_move_it() {
        let mut pairs: Vec<(f64, f64)> = (1..=20).map(|i| (f64::from(i), 0.8 * f64::from(i))).collect();
        pairs[7].1 = 1e9;
        let e = ratio(&pairs).unwrap();
        assert!((e.point - 0.8).abs() < 1e-9, "{e}");
        assert_eq!(e.verdict(1.0), Verdict::Less);
        assert!(matches!(ratio(&[(1.0, 0.0)]), Err(StatsError::Unusable { index: 1, .. })));
        assert!(matches!(ratio(&[(1.0, 1.0), (-1.0, 1.0)]), Err(StatsError::Unusable { index: 2, .. })));
        assert_eq!(difference(&[(3.0, 5.0)]).unwrap().point, 2.0);
    }

    /// Returns the share of 2,000 simulated experiments of `n` pairs whose interval contains the ratio.
    fn coverage(n: usize, seed: u64) -> f64 {
        const RUNS: usize = 2000;
        const TRUTH: f64 = 0.8;
        let mut random = fastrand::Rng::with_seed(seed);
        let hits = (0..RUNS).filter(|_| {
            let pairs: Vec<(f64, f64)> = (0..n)
                .map(|_| {
                    // Each pair has a speed of its own, as on a machine that others use too.
                    let pace = 1.0 + random.f64();
                    (
                        pace * (0.05 * laplace(&mut random)).exp(),
                        pace * TRUTH * (0.05 * laplace(&mut random)).exp(),
                    )
                })
                .collect();
            let i = ratio(&pairs).unwrap().interval.unwrap();
            i.low <= TRUTH && TRUTH <= i.high
        });
        hits.count() as f64 / RUNS as f64
    }

    #[test]
    fn intervals_contain_the_ratio_as_often_as_stated() {
        for (n, seed) in [(10, 1), (20, 2), (60, 3)] {
            let share = coverage(n, seed);
            assert!((0.93..=0.97).contains(&share), "{share} of the intervals of {n} pairs");
        }
    }

    /// The interval of two identical variants excludes 1 in about one experiment of twenty.
    #[test]
    fn identical_variants_show_no_difference_in_nineteen_of_twenty() {
        const RUNS: usize = 2000;
        for (n, seed) in [(10, 4), (30, 5)] {
            let mut random = fastrand::Rng::with_seed(seed);
            let alike = (0..RUNS).filter(|_| {
                let mut one = || (0.03 * laplace(&mut random)).exp();
                let pairs: Vec<(f64, f64)> = (0..n).map(|_| (one(), one())).collect();
                ratio(&pairs).unwrap().verdict(1.0) == Verdict::Undecided
            });
            let share = alike.count() as f64 / RUNS as f64;
            assert!((0.94..=0.97).contains(&share), "{share} of the experiments of {n} pairs");
        }
    }

    #[test]
    fn the_half_width_is_a_share_of_the_ratio() {
        let of = |point, low, high| Estimate { point, interval: Some(Interval { low, high }), count: 9 };
        let width = of(0.8, 0.78, 0.84).half_width().unwrap();
        assert!((width - 0.05).abs() < 1e-12, "{width}");
        assert_eq!(Estimate { interval: None, ..of(1.0, 1.0, 1.0) }.half_width(), None);
    }

    /// Recorded times have tails, steps and drifts that simulated ones have not.
    #[test]
    fn identical_variants_as_recorded_show_no_difference_in_nineteen_of_twenty() {
        const RECORDED: &str = include_str!("../tests/fixtures/identical.csv");
        let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
        let lines: Vec<Vec<f64>> =
            lines.map(|line| line.split(',').map(|n| n.parse().unwrap()).collect()).collect();
        assert_eq!(lines.len(), 400);
        for (what, column) in [("wall", 0), ("CPU", 2)] {
            let pairs: Vec<(f64, f64)> = lines.iter().map(|line| (line[column], line[column + 1])).collect();
            let alike =
                pairs.chunks(20).filter(|twenty| ratio(twenty).unwrap().verdict(1.0) == Verdict::Undecided);
            let alike = alike.count();
            assert!(alike >= 19, "{what}: {alike} of 20 repetitions of 20 pairs");
        }
    }
}
