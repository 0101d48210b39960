// SPDX-License-Identifier: Apache-2.0
//! Percentiles and the distribution of many short times.

/// Bins for each power of ten.
const BINS: i32 = 10;

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
