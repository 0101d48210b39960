// SPDX-License-Identifier: Apache-2.0
//! Percentiles and the distribution of many short times.

use hugelift_measure::stats::Interval;

/// Bins for each power of ten.
const BINS: i32 = 10;

/// The most that an interval of a percentile may leave out on each side: it is one of 95 %.
const TAIL: f64 = 0.025;

/// From this many times on both sides of a percentile on, a normal distribution approximates the binomial one.
const MANY: f64 = 500.0;

/// The point of the standard normal distribution that 2.5 % lie above.
const Z: f64 = 1.959_963_984_540_054;

/// Times in nanoseconds, sorted.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Latencies {
    sorted: Vec<u32>,
}

/// A bin of a histogram.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bin {
    /// The shortest time in the bin, in nanoseconds.
    pub low: f64,
    /// The shortest time above the bin.
    pub high: f64,
    /// How many times lie in the bin.
    pub count: u64,
}

impl Latencies {
    /// Takes times in nanoseconds, in any order.
    pub fn new(mut times: Vec<u32>) -> Latencies {
        times.sort_unstable();
        Latencies { sorted: times }
    }

    /// Returns the number of times.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the percentile by the nearest-rank method, in nanoseconds: the least of the times that at
    /// least the share `share` (0 to 1) of them does not exceed. `None` if there are no times.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let n = self.sorted.len();
        // In floating point 0.999 of 1000 is a little more than 999.
        let rank = (share.clamp(0.0, 1.0) * n as f64 - 1e-9).ceil().max(1.0) as usize;
        self.sorted.get(rank.min(n).checked_sub(1)?).map(|t| f64::from(*t))
    }

    /// Returns the 95 % interval of a percentile in nanoseconds: the order statistics between which it lies by
    /// the binomial distribution (Hahn & Meeker, "Statistical Intervals", section 5.2). `None` if there are too
    /// few times: p99 needs 368, p99.9 needs 3688. The interval takes the times for independent.
    pub fn interval(&self, share: f64) -> Option<Interval> {
        let n = self.sorted.len();
        // The number of times below the percentile, and above it, is binomial.
        let (below, above) = (cut(n, share)?, cut(n, 1.0 - share)?);
        let (low, high) = (self.sorted.get(below)?, self.sorted.get(n.checked_sub(above + 1)?)?);
        Some(Interval { low: f64::from(*low), high: f64::from(*high) })
    }

    /// Returns a percentile in nanoseconds if there are enough times for its interval.
    pub fn carried(&self, share: f64) -> Option<f64> {
        self.interval(share).and(self.percentile(share))
    }

    /// Returns the distribution: ten bins for each power of ten, from the bin of the shortest time to that
    /// of the longest, with the empty bins between them. A time of 0 counts as 1 ns.
    pub fn histogram(&self) -> Vec<Bin> {
        let bin = |time: u32| (f64::from(time.max(1)).log10() * f64::from(BINS) + 1e-9).floor() as i32;
        let edge = |bin: i32| 10f64.powf(f64::from(bin) / f64::from(BINS));
        let (Some(&first), Some(&last)) = (self.sorted.first(), self.sorted.last()) else {
            return Vec::new();
        };
        let first = bin(first);
        let mut bins: Vec<Bin> =
            (first..=bin(last)).map(|i| Bin { low: edge(i), high: edge(i + 1), count: 0 }).collect();
        for &time in &self.sorted {
            if let Some(found) = usize::try_from(bin(time) - first).ok().and_then(|i| bins.get_mut(i)) {
                found.count += 1;
            }
        }
        bins
    }
}

/// Returns the largest number with P(B <= number) <= 2.5 % for a binomial B of `n` trials with the chance
/// `share`: this many values can be cut off at one end. `None` if even P(B = 0) is larger.
fn cut(n: usize, share: f64) -> Option<usize> {
    let (n, share) = (n as f64, share.clamp(0.0, 1.0));
    let (mean, other) = (n * share, n * (1.0 - share));
    if mean.min(other) >= MANY {
        // The half is the usual continuity correction.
        return Some((mean - Z * (mean * (1.0 - share)).sqrt() - 0.5).floor().max(0.0) as usize);
    }
    if mean > other {
        // The first terms would be too small for floating point, so the other tail is added up.
        let (mut term, mut sum, mut k) = ((n * share.ln()).exp(), 0.0, 0.0);
        while sum + term < 1.0 - TAIL {
            sum += term;
            term *= (n - k) / (k + 1.0) * (1.0 - share) / share;
            k += 1.0;
            if k > n {
                return None;
            }
        }
        // P(B <= n - k - 1) = 1 - P(at most k failures).
        let number = n - k - 1.0;
        return (number >= 0.0).then_some(number as usize);
    }
    let (mut term, mut sum, mut k) = ((n * (1.0 - share).ln()).exp(), 0.0, 0.0);
    while sum + term <= TAIL && k <= n {
        sum += term;
        term *= (n - k) / (k + 1.0) * share / (1.0 - share);
        k += 1.0;
    }
    (k > 0.0).then_some((k - 1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        // The example of most textbooks: 15, 20, 35, 40, 50.
        let five = Latencies::new(vec![40, 15, 50, 35, 20]);
        let at = |share| five.percentile(share).unwrap();
        assert_eq!([0.05, 0.30, 0.40, 0.50, 1.00].map(at), [15.0, 20.0, 20.0, 35.0, 50.0]);
        let thousand = Latencies::new((1..=1000).collect());
        let at = |share| thousand.percentile(share).unwrap();
        assert_eq!([0.0, 0.5, 0.99, 0.999, 1.0].map(at), [1.0, 500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(Latencies::default().percentile(0.5), None);
    }

    #[test]
    fn an_interval_needs_enough_times() {
        let of = |n: u32, share| Latencies::new((1..=n).collect()).interval(share).map(|i| (i.low, i.high));
        // Ranks from tables of the binomial distribution: 2 and 9 of 10, 40 and 61 of 100 for the median.
        assert_eq!((of(5, 0.5), of(6, 0.5)), (None, Some((1.0, 6.0))));
        assert_eq!((of(10, 0.5), of(100, 0.5)), (Some((2.0, 9.0)), Some((40.0, 61.0))));
        // 0.99^367 is more than 2.5 %, 0.99^368 is not; 0.999^3687 and 0.999^3688 likewise.
        assert_eq!((of(367, 0.99), of(368, 0.99).map(|i| i.1)), (None, Some(368.0)));
        assert_eq!((of(3687, 0.999), of(3688, 0.999).map(|i| i.1)), (None, Some(3688.0)));
        assert_eq!(Latencies::new((1..=3687).collect()).carried(0.999), None);
        assert_eq!(of(0, 0.5), None);
        // The normal approximation continues the exact distribution.
        for n in [990, 999, 1001, 1010] {
            let (low, high) = of(n, 0.5).unwrap();
            let half = f64::from(n) / 2.0;
            assert!((29.0..=33.0).contains(&(half - low)) && (29.0..=33.0).contains(&(high - half)), "{n}");
        }
    }

    #[test]
    fn an_interval_contains_the_percentile_as_often_as_stated() {
        let mut random = fastrand::Rng::with_seed(1);
        for (share, n) in [(0.5, 60), (0.99, 1000), (0.999, 6000)] {
            let truth = share * 1e6;
            let hits = (0..500).filter(|_| {
                let times = Latencies::new((0..n).map(|_| random.u32(..1_000_000)).collect());
                times.interval(share).is_some_and(|i| i.low <= truth && truth <= i.high)
            });
            let hits = hits.count();
            assert!((465..=498).contains(&hits), "{hits} of 500 for {share} of {n}");
        }
    }

    #[test]
    fn bins_are_tenths_of_a_power_of_ten() {
        let bins = Latencies::new(vec![0, 1, 10, 99, 100, 100]).histogram();
        assert_eq!(bins.len(), 21);
        assert_eq!((bins[0].low, bins[0].count), (1.0, 2));
        assert_eq!((bins[10].low.round(), bins[10].count), (10.0, 1));
        assert_eq!((bins[19].count, bins[20].low.round(), bins[20].count), (1, 100.0, 2));
        assert!((bins[0].high - 1.2589).abs() < 1e-3);
        assert_eq!(Latencies::default().histogram(), []);
    }

    proptest! {
        #[test]
        fn every_time_is_in_the_bin_that_holds_it(times in prop::collection::vec(any::<u32>(), 1..200)) {
            let all = Latencies::new(times.clone());
            let bins = all.histogram();
            prop_assert_eq!(bins.iter().map(|b| b.count).sum::<u64>(), times.len() as u64);
            prop_assert!(bins.windows(2).all(|w| w[0].high == w[1].low));
            for bin in &bins {
                let held = times.iter().map(|t| f64::from((*t).max(1)));
                let held = held.filter(|t| *t * (1.0 + 1e-9) >= bin.low && *t * (1.0 + 1e-9) < bin.high);
                prop_assert_eq!(held.count() as u64, bin.count);
            }
        }

        #[test]
        fn a_percentile_is_one_of_them_and_splits_them(
            times in prop::collection::vec(any::<u32>(), 1..200),
            share in 0.0..=1.0,
        ) {
            let at = Latencies::new(times.clone()).percentile(share).unwrap();
            let (below, up_to): (usize, usize) = times.iter().map(|t| f64::from(*t)).fold((0, 0), |(b, u), t| {
                (b + usize::from(t < at), u + usize::from(t <= at))
            });
            prop_assert!(up_to > below);
            let n = times.len() as f64;
            prop_assert!(up_to as f64 >= share * n - 1e-6 && (below as f64) < (share * n).max(1e-9));
        }
    }
}
