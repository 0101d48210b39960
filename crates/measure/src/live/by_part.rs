// SPDX-License-Identifier: Apache-2.0
//! Which parts of a process gain by huge pages. In the first period of a pair a random half of the parts is on huge pages, in
//! the second the other half. So the logarithm of the ratio of both is the sum of what each part changes, with a sign that
//! was drawn for it, and noise.
//!
//! Multiplied by the sign of one part, it is what that part changes, and the rest has a sign that has nothing to do with the
//! part: the rest is symmetric about zero, whatever its distribution and whatever drifts. That is all that the estimate
//! and its interval assume ([`stats`]). Effects that are found are then taken off before the others are estimated anew, so
//! that a large one does not hide small ones. Of all others nothing is taken off: their noise would make the intervals too
//! narrow.

use crate::stats::{self, Estimate, StatsError, Verdict};

/// How often the estimates are made anew with what is known of the others. They change less each time.
const PASSES: usize = 3;

/// Two periods that follow each other.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Pair {
    /// Whether each part was on huge pages in the first period, and on small ones in the second, or the other way round.
    pub first_is_huge: Vec<bool>,
    /// The figure in the first period.
    pub first: f64,
    /// The figure in the second period.
    pub second: f64,
}

impl Pair {
    /// Returns 1 if a part was on huge pages first, else -1.
    fn sign(&self, part: usize) -> f64 {
        if self.first_is_huge.get(part) == Some(&true) { 1.0 } else { -1.0 }
    }
}

/// Draws which of `parts` parts are on huge pages first: about half of them.
pub fn draw(random: &mut fastrand::Rng, parts: usize) -> Vec<bool> {
    (0..parts).map(|_| random.bool()).collect()
}

/// Estimates for each of `parts` parts the ratio of the figure on huge pages to that on small ones. The 95 % intervals hold
/// for all parts together.
///
/// # Errors
/// No pairs, or a figure that is not positive and finite.
pub fn effects(pairs: &[Pair], parts: usize) -> Result<Vec<Estimate>, StatsError> {
    let of = |pair: &Pair| stats::ratio(&[(pair.second, pair.first)]).map(|ratio| ratio.point.ln());
    let logs: Vec<f64> = pairs.iter().map(of).collect::<Result<_, _>>()?;
    let estimate = |known: &[f64]| -> Result<Vec<Estimate>, StatsError> {
        let of_part = |part: usize| {
            let values = pairs.iter().zip(&logs).map(|(pair, log)| {
                let others = (0..parts).filter(|other| *other != part);
                let explained: f64 = others.map(|other| pair.sign(other) * known[other]).sum();
                pair.sign(part) * (log - explained)
            });
            stats::location_of(&values.collect::<Vec<f64>>(), parts)
        };
        (0..parts).map(of_part).collect()
    };
    let mut estimates = estimate(&vec![0.0; parts])?;
    for _ in 1..PASSES {
        let is_found = |one: &Estimate| matches!(one.verdict(0.0), Verdict::Less | Verdict::More);
        if !estimates.iter().any(is_found) {
            break;
        }
        let known: Vec<f64> =
            estimates.iter().map(|one| if is_found(one) { one.point } else { 0.0 }).collect();
        estimates = estimate(&known)?;
    }
    Ok(estimates.into_iter().map(Estimate::exp).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::tests::laplace;

    /// Simulates an experiment on a machine that becomes slower, with noise of 5 % a period.
    fn experiment(random: &mut fastrand::Rng, truth: &[f64], pairs: usize) -> Vec<Estimate> {
        let pair = |number: usize, random: &mut fastrand::Rng| {
            let first_is_huge = draw(random, truth.len());
            let mut period = |is_first: bool| {
                let huge = first_is_huge.iter().map(|first| *first == is_first);
                let effect: f64 =
                    huge.zip(truth).filter(|(huge, _)| *huge).map(|(_, ratio)| ratio.ln()).sum();
                let drift = 0.01 * number as f64;
                (effect + drift + 0.05 * laplace(random)).exp()
            };
            let (first, second) = (period(true), period(false));
            Pair { first_is_huge, first, second }
        };
        let pairs: Vec<Pair> = (0..pairs).map(|number| pair(number, random)).collect();
        effects(&pairs, truth.len()).unwrap()
    }

    /// Returns the shares of experiments in which the first part is found, and in which any other is.
    fn found(seed: u64, truth: &[f64], pairs: usize) -> (f64, f64) {
        const RUNS: usize = 200;
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut first, mut others) = (0, 0);
        for _ in 0..RUNS {
            let verdicts: Vec<Verdict> =
                experiment(&mut random, truth, pairs).iter().map(|effect| effect.verdict(1.0)).collect();
            first += usize::from(verdicts[0] == Verdict::Less);
            others += usize::from(verdicts[1..].iter().any(|verdict| *verdict != Verdict::Undecided));
        }
        (first as f64 / RUNS as f64, others as f64 / RUNS as f64)
    }

    /// Of identical parts no more than one experiment in twenty calls one different.
    #[test]
    fn issue_31_7_what_has_no_effect_is_not_found() {
        for (parts, pairs, seed) in [(2, 20, 1), (4, 40, 2), (16, 60, 3)] {
            let (first, others) = found(seed, &vec![1.0; parts], pairs);
            assert!(first + others <= 0.05, "{first} and {others} of {parts} parts in {pairs} pairs");
        }
    }

    /// The part with an effect is found, and no other, also if the effect is many times the noise.
    #[test]
    fn issue_31_7_the_part_with_an_effect_is_found_and_no_other() {
        for (ratio, pairs, seed) in [(0.95, 100, 4), (0.5, 40, 5)] {
            let (first, others) = found(seed, &[ratio, 1.0, 1.0, 1.0, 1.0], pairs);
            assert!(first >= 0.95 && others <= 0.05, "{ratio}: {first} and {others} in {pairs} pairs");
        }
    }

    #[test]
    fn the_effects_of_several_parts_are_told_apart() {
        let truth = [0.90, 1.05, 1.0];
        let effects = experiment(&mut fastrand::Rng::with_seed(6), &truth, 400);
        for (effect, truth) in effects.iter().zip(truth) {
            let interval = effect.interval.unwrap();
            assert!(interval.low < truth && truth < interval.high, "{effect} of {truth}");
            assert!(effect.half_width().unwrap() < 0.02, "{effect}");
        }
    }

    #[test]
    fn a_figure_without_a_ratio_is_refused() {
        let pair = Pair { first_is_huge: vec![true], first: 0.0, second: 1.0 };
        assert!(effects(&[pair], 1).is_err());
        assert_eq!(effects(&[], 1), Err(StatsError::Empty));
    }
}
