// SPDX-License-Identifier: Apache-2.0
//! When enough pairs have been measured.
//!
//! Looking at a result again and again, and stopping when it pleases, makes intervals that
//! hold the truth less often than they say. So the rule never looks at *where* the interval
//! lies, only at how wide it is (Chow & Robbins 1965), and it looks seldom: at 12 pairs, and
//! then each time there is a quarter more. What is left of the effect was simulated: see the
//! test below.

use std::time::Duration;

/// The first look at the width.
const FIRST_LOOK: usize = 12;

/// Without any wish of the user: so many pairs at least, so many at most, and this long.
const PAIRS: (usize, usize) = (10, 200);
const TIME: Duration = Duration::from_secs(5);

/// No interval exists with fewer pairs.
pub const LEAST_PAIRS: usize = 6;

/// What ends a measurement. With several wishes the first that comes true does.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Rule {
    /// So many pairs.
    pub pairs: Option<usize>,
    /// The interval's half-width is at most this share of the ratio (0.01 is 1 %).
    pub until: Option<f64>,
    /// So much time has passed; there are at least [`LEAST_PAIRS`] then.
    pub time: Option<Duration>,
}

/// What has been reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reached {
    /// The number of pairs.
    Pairs,
    /// The width of the interval.
    Width,
    /// The time.
    Time,
    /// There was nothing to lift, so nothing was measured.
    NothingToLift,
}

impl Rule {
    /// Whether it is enough after `count` pairs and `elapsed`; `width` is the half-width of
    /// the widest interval that the verdict rests on, asked for only where it is looked at.
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
            && is_look(count)
            && width().is_some_and(|width| width <= goal)
        {
            return Some(Reached::Width);
        }
        let late = self.time.is_some_and(|time| elapsed >= time) && count >= LEAST_PAIRS;
        late.then_some(Reached::Time)
    }

    /// How far it is, from 0 to 1, as far as can be told.
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

/// 12, 15, 18, 22, 27...
fn is_look(count: usize) -> bool {
    let mut look = FIRST_LOOK;
    while look < count {
        look += (look / 4).max(1);
    }
    look == count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ratio;
    use crate::stats::tests::laplace;

    const NO_TIME: Duration = Duration::ZERO;

    #[test]
    fn looks_grow_apart() {
        let looks: Vec<usize> = (0..40).filter(|&n| is_look(n)).collect();
        assert_eq!(looks, [12, 15, 18, 22, 27, 33]);
    }

    #[test]
    fn the_first_wish_that_comes_true_ends_it() {
        let rule = Rule { pairs: Some(30), until: Some(0.01), time: Some(Duration::from_secs(60)) };
        assert_eq!(rule.reached(12, NO_TIME, || Some(0.02)), None);
        assert_eq!(rule.reached(13, NO_TIME, || Some(0.005)), None, "no look at 13");
        assert_eq!(rule.reached(15, NO_TIME, || Some(0.005)), Some(Reached::Width));
        assert_eq!(rule.reached(30, NO_TIME, || None), Some(Reached::Pairs));
        let late = Duration::from_secs(61);
        assert_eq!(rule.reached(5, late, || None), None, "no interval yet");
        assert_eq!(rule.reached(6, late, || None), Some(Reached::Time));
    }

    #[test]
    fn without_a_wish_ten_pairs_or_five_seconds_and_not_for_ever() {
        let rule = Rule::default();
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(6));
        assert_eq!(rule.reached(10, short, || None), None);
        assert_eq!(rule.reached(9, long, || None), None);
        assert_eq!(rule.reached(10, long, || None), Some(Reached::Time));
        assert_eq!(rule.reached(200, short, || None), Some(Reached::Pairs));
        assert!(rule.progress(5, long, None) <= 0.5 && rule.progress(10, long, None) == 1.0);
    }

    /// Intervals of measurements that stopped at a width hold the truth as often as they say,
    /// within a point or two.
    #[test]
    fn stopping_at_a_width_keeps_the_interval_honest() {
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
        assert!(mean > 14.0, "so early that nothing was tested: {mean} pairs");
    }
}
