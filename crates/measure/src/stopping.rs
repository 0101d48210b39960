// SPDX-License-Identifier: Apache-2.0
//! When enough pairs have been measured.
//!
//! A measurement that checks its result again and again, and stops when the result is welcome, has
//! intervals that contain the true value less often than stated. So the rule never checks *where*
//! the interval lies, only how wide it is (Chow & Robbins 1965), and it checks seldom: at 12 pairs,
//! and then each time there is a quarter more. The test below simulates what is left of the effect.

use std::time::Duration;

/// Pairs at the first check of the width.
const FIRST_CHECK: usize = 12;

/// What ends a measurement by default: the least and the most pairs, and the time.
const PAIRS: (usize, usize) = (10, 200);
const TIME: Duration = Duration::from_secs(5);

/// The fewest pairs that have an interval.
pub const LEAST_PAIRS: usize = 6;

/// What ends a measurement: the first of the given conditions that is met.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Rule {
    /// This number of pairs.
    pub pairs: Option<usize>,
    /// The interval's half-width is at most this share of the ratio (0.01 is 1 %).
    pub until: Option<f64>,
    /// This time has passed, and there are at least [`LEAST_PAIRS`].
    pub time: Option<Duration>,
}

/// The condition that was met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reached {
    /// The number of pairs.
    Pairs,
    /// The width of the interval.
    Width,
    /// The time.
    Time,
    /// The process has ended.
    Ended,
    /// The process had no more work.
    NoWork,
    /// A signal, such as ctrl-C.
    Interrupted,
    /// A further run failed.
    Failed,
    /// There was nothing to lift, so nothing was measured.
    NothingToLift,
}

impl Rule {
    /// Returns the condition that is met after `count` pairs and `elapsed`. `width` computes the
    /// half-width of the widest interval that the verdict rests on; it is called only at a check.
    pub fn reached(
        &self,
        count: usize,
        elapsed: Duration,
        width: impl FnOnce() -> Option<f64>,
    ) -> Option<Reached> {
        if *self == Rule::default() {
            let (least, most) = PAIRS;
            return match count {
                n if n >= most => Some(Reached::Pairs),
                n if n >= least && elapsed >= TIME => Some(Reached::Time),
                _ => None,
            };
        }
        if self.pairs.is_some_and(|pairs| count >= pairs) {
            return Some(Reached::Pairs);
        }
        if let Some(goal) = self.until
            && is_check(count)
            && width().is_some_and(|width| width <= goal)
        {
            return Some(Reached::Width);
        }
        let late = self.time.is_some_and(|time| elapsed >= time) && count >= LEAST_PAIRS;
        late.then_some(Reached::Time)
    }

    /// Estimates the progress, from 0 to 1.
    pub fn progress(&self, count: usize, elapsed: Duration, width: Option<f64>) -> f64 {
        let of_time = |time: Duration| elapsed.as_secs_f64() / time.as_secs_f64().max(1e-9);
        let of_pairs = |pairs: usize| count as f64 / pairs.max(1) as f64;
        let part = if *self == Rule::default() {
            of_pairs(PAIRS.1).max(of_time(TIME).min(of_pairs(PAIRS.0)))
        } else {
            // The width shrinks with the square root of the number.
            let of_width = |goal: f64| width.map_or(0.0, |width| (goal / width.max(1e-12)).powi(2));
            let parts = [self.pairs.map(of_pairs), self.until.map(of_width), self.time.map(of_time)];
            parts.into_iter().flatten().fold(0.0, f64::max)
        };
        part.clamp(0.0, 1.0)
    }
}

/// Whether the width is checked at this number of pairs: 12, 15, 18, 22, 27...
fn is_check(count: usize) -> bool {
    let mut check = FIRST_CHECK;
    while check < count {
        check += (check / 4).max(1);
    }
    check == count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ratio;
    use crate::stats::tests::laplace;

    const NO_TIME: Duration = Duration::ZERO;

    #[test]
    fn checks_grow_apart() {
        let checks: Vec<usize> = (0..40).filter(|&n| is_check(n)).collect();
        assert_eq!(checks, [12, 15, 18, 22, 27, 33]);
    }

    #[test]
    fn the_first_condition_that_is_met_ends_it() {
        let rule = Rule { pairs: Some(30), until: Some(0.01), time: Some(Duration::from_secs(60)) };
        assert_eq!(rule.reached(12, NO_TIME, || Some(0.02)), None);
        assert_eq!(rule.reached(13, NO_TIME, || Some(0.005)), None, "no check at 13");
        assert_eq!(rule.reached(15, NO_TIME, || Some(0.005)), Some(Reached::Width));
        assert_eq!(rule.reached(30, NO_TIME, || None), Some(Reached::Pairs));
        let late = Duration::from_secs(61);
        assert_eq!(rule.reached(5, late, || None), None, "no interval yet");
        assert_eq!(rule.reached(6, late, || None), Some(Reached::Time));
    }

    #[test]
    fn by_default_ten_pairs_and_five_seconds_or_200_pairs() {
        let rule = Rule::default();
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(6));
        assert_eq!(rule.reached(10, short, || None), None);
        assert_eq!(rule.reached(9, long, || None), None);
        assert_eq!(rule.reached(10, long, || None), Some(Reached::Time));
        assert_eq!(rule.reached(200, short, || None), Some(Reached::Pairs));
        assert!(rule.progress(5, long, None) <= 0.5 && rule.progress(10, long, None) == 1.0);
    }

    /// Intervals of measurements that stopped at a width contain the true ratio as often as stated,
    /// within two percentage points.
    #[test]
    fn stopping_at_a_width_keeps_the_confidence() {
        const RUNS: usize = 2000;
        let rule = Rule { until: Some(0.02), ..Rule::default() };
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = 0;
        let hits = (0..RUNS).filter(|_| {
            let mut pairs: Vec<(f64, f64)> = Vec::new();
            loop {
                let mut noise = || (0.03 * laplace(&mut random)).exp();
                pairs.push((noise(), 0.9 * noise()));
                let width = || ratio(&pairs).ok()?.half_width();
                if rule.reached(pairs.len(), NO_TIME, width).is_some() {
                    break;
                }
            }
            counts += pairs.len();
            let interval = ratio(&pairs).unwrap().interval.unwrap();
            (interval.low..=interval.high).contains(&0.9)
        });
        let share = hits.count() as f64 / RUNS as f64;
        let mean = counts as f64 / RUNS as f64;
        assert!((0.93..=0.97).contains(&share), "{share} of the intervals, {mean} pairs each");
        assert!(mean > 14.0, "stopped so early that nothing was tested: {mean} pairs");
    }
}
