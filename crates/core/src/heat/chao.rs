// SPDX-License-Identifier: Apache-2.0
//! Estimates how many pages are in use, also those that no sample hit: Chao's estimator of the number of species (Chao1), in
//! its bias-corrected form, with the log-normal interval of Chao 1987. The formulas are those of EstimateS
//! (R. K. Colwell), appendix B.
//!
//! What was seen once tells what was never seen. The estimate is of the time that was sampled: it knows nothing of
//! what the process does later.

use crate::printable::thousands;
use serde::Serialize;
use std::fmt;

/// The quantile of the normal distribution for an interval of 95 %.
const Z: f64 = 1.96;

/// A number of pages. `seen <= low <= estimate <= high`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct PagesInUse {
    /// Pages with at least one sample.
    pub seen: u64,
    /// Estimate of the pages in use.
    pub estimate: u64,
    /// Lower end of its 95 % interval.
    pub low: u64,
    /// Upper end of its 95 % interval.
    pub high: u64,
}

impl PagesInUse {
    /// Estimates the pages in use from the samples in each page that was seen.
    pub fn new(samples: impl IntoIterator<Item = u64>) -> PagesInUse {
        let (mut seen, mut once, mut twice, mut all) = (0_u64, 0_u64, 0_u64, 0_u64);
        for count in samples.into_iter().filter(|count| *count > 0) {
            seen += 1;
            all = all.saturating_add(count);
            once += u64::from(count == 1);
            twice += u64::from(count == 2);
        }
        if seen == 0 {
            return PagesInUse::default();
        }
        let (s, f1, f2) = (seen as f64, once as f64, twice as f64);
        let unseen = f1 * (f1 - 1.0) / (2.0 * (f2 + 1.0));
        let (low, high) = if unseen > 0.0 {
            let variance = if twice > 0 {
                unseen
                    + f1 * (2.0 * f1 - 1.0).powi(2) / (4.0 * (f2 + 1.0).powi(2))
                    + f1.powi(2) * f2 * (f1 - 1.0).powi(2) / (4.0 * (f2 + 1.0).powi(4))
            } else {
                unseen + f1 * (2.0 * f1 - 1.0).powi(2) / 4.0 - f1.powi(4) / (4.0 * (s + unseen))
            };
            let k = (Z * (1.0 + variance.max(0.0) / unseen.powi(2)).ln().sqrt()).exp();
            (s + unseen / k, s + unseen * k)
        } else {
            // Nothing tells of pages that were not seen, but the few samples of each.
            let p = (-(all as f64) / s).exp();
            (s / (1.0 - p) - Z * (s * p).sqrt() / (1.0 - p), s / (1.0 - p) + Z * (s * p).sqrt() / (1.0 - p))
        };
        let estimate = (s + unseen).round() as u64;
        // The ends are rounded away from the estimate.
        let (low, high) = ((low.floor() as u64).clamp(seen, estimate), (high.ceil() as u64).max(estimate));
        PagesInUse { seen, estimate, low, high }
    }
}

impl fmt::Display for PagesInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [seen, estimate, low, high] = [self.seen, self.estimate, self.low, self.high].map(thousands);
        write!(f, "{seen} seen, {estimate} [{low}, {high}] estimated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns counts of which `frequencies[k]` are `k + 1`.
    fn counts(frequencies: &[usize]) -> Vec<u64> {
        (1..).zip(frequencies).flat_map(|(count, n)| vec![count; *n]).collect()
    }

    #[test]
    fn issue_31_the_estimate_of_known_counts() {
        // 10 pages seen once, 4 twice, 6 ten times: 10·9/(2·5) = 9 were not seen.
        let all = [counts(&[10, 4]), vec![10; 6]].concat();
        // var = 9 + 10·361/100 + 100·4·81/2500 = 58.06; K = exp(1.96 √ln(1 + 58.06/81)) = 4.229
        assert_eq!(PagesInUse::new(all), PagesInUse { seen: 20, estimate: 29, low: 22, high: 59 });
        // None was seen twice: 3·2/2 = 3 were not seen.
        let none_twice = PagesInUse::new([1, 1, 1, 9, 9]);
        assert_eq!((none_twice.seen, none_twice.estimate), (5, 8));
        assert!(none_twice.low >= 5 && none_twice.high > 8, "{none_twice:?}");
    }

    #[test]
    fn issue_31_pages_that_were_all_seen_often_are_all() {
        assert_eq!(PagesInUse::new(vec![50; 49]), PagesInUse { seen: 49, estimate: 49, low: 49, high: 50 });
        assert_eq!(PagesInUse::new([]), PagesInUse::default());
        // A single sample says next to nothing: its interval is wide.
        assert_eq!(PagesInUse::new([1]), PagesInUse { seen: 1, estimate: 1, low: 1, high: 4 });
    }

    /// Pages in use with equal shares: the interval holds the truth in about 95 of 100 trials.
    #[test]
    fn issue_31_the_interval_holds_the_truth() {
        for (pages, samples) in [(100, 150), (500, 800), (1000, 4000)] {
            let mut random = 7_u64;
            let mut held = 0;
            for _ in 0..200 {
                let mut counts = vec![0_u64; pages];
                for _ in 0..samples {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    counts[(random >> 33) as usize % pages] += 1;
                }
                let found = PagesInUse::new(counts);
                held += u32::from((found.low..=found.high).contains(&(pages as u64)));
            }
            assert!(held >= 180, "{pages} pages, {samples} samples: {held} of 200");
        }
    }

    proptest! {
        #[test]
        fn issue_31_the_ends_are_in_order(samples in prop::collection::vec(0..u64::MAX, 0..60), few in prop::collection::vec(0u64..4, 0..300)) {
            for all in [samples, few] {
                let found = PagesInUse::new(all.iter().copied());
                prop_assert_eq!(found.seen, all.iter().filter(|n| **n > 0).count() as u64);
                prop_assert!(found.seen <= found.low && found.low <= found.estimate && found.estimate <= found.high);
            }
        }
    }
}
