// SPDX-License-Identifier: Apache-2.0
//! How often samples are taken, and how often what costs time is repeated: reading takes at most one 500th of a CPU, and what
//! is sampled loses at most a given share of its CPU time.

use std::time::{Duration, Instant};

/// Reading samples takes at most one part in so many of a CPU.
const READING: u32 = 1000;
/// The list of threads and the list of mappings take at most one part in so many each.
const LISTING: u32 = 2000;

/// The shortest time between two samples of a thread. It is no multiple of a timer's tick, so that what a program does by
/// the clock is not always seen at the same place.
const SHORTEST: Duration = Duration::from_nanos(997_001);
/// The longest one, where a sample is not dearer still.
const LONGEST: Duration = Duration::from_millis(100);

/// The shortest time between two readings of the ring buffers. They hold the samples of more than 1.5 times that time.
const READ: Duration = Duration::from_millis(250);
/// The longest one.
const READ_LONGEST: Duration = Duration::from_secs(2);

/// CPU time between two samples of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    period: Duration,
    shortest: Duration,
}

impl Rate {
    /// Makes the rate at which samples of this price take at most one part in `share` of a thread's CPU time.
    pub fn new(price: Duration, share: u32) -> Rate {
        let shortest = (price * share).max(SHORTEST);
        Rate { period: shortest, shortest }
    }

    /// Returns the CPU time between two samples.
    pub fn period(self) -> Duration {
        self.period
    }

    /// Returns the time until the next reading. Fewer samples fill the buffers later, and most of a reading's cost is the
    /// number of buffers: it would stay the same with fewer samples.
    pub fn interval(self) -> Duration {
        READ.mul_f64(self.period.as_secs_f64() / self.shortest.as_secs_f64()).min(READ_LONGEST)
    }

    /// Takes account of the CPU time that reading has used in the time that has passed. Returns whether the period is
    /// another one now.
    pub fn adapt(&mut self, used: Duration, passed: Duration) -> bool {
        let before = self.period;
        // 1: all of the budget was used.
        let load = used.as_secs_f64() * f64::from(READING) / passed.as_secs_f64().max(1e-9);
        if load > 1.0 {
            self.period = self.period.mul_f64(load.min(8.0)).min(LONGEST.max(self.shortest));
        } else if load < 0.5 {
            self.period = self.period.mul_f64(0.75).max(self.shortest);
        }
        self.period != before
    }
}

/// Something that is done again when so much time has passed that it takes at most one part in 2000 of it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Due {
    at: Option<Instant>,
}

impl Due {
    /// Does it if it is wanted and due.
    pub fn run_if(&mut self, wanted: bool, work: impl FnOnce()) {
        let began = Instant::now();
        if wanted && self.at.is_none_or(|at| began >= at) {
            work();
            let end = Instant::now();
            self.at = Some(end + (end - began) * LISTING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHEAP: Duration = Duration::from_micros(2);

    #[test]
    fn issue_31_the_rate_follows_the_cost() {
        let second = Duration::from_secs(1);
        let mut rate = Rate::new(CHEAP, 100);
        assert!(!rate.adapt(Duration::from_millis(1), second) && rate.period() == SHORTEST);
        assert!(rate.adapt(Duration::from_millis(2), second) && rate.period() == SHORTEST * 2);
        assert!(!rate.adapt(Duration::from_micros(750), second), "between half of the budget and all of it");
        assert!(rate.adapt(Duration::ZERO, second) && rate.period() < SHORTEST * 2);
    }

    /// Most of what a reading of 256 buffers costs does not depend on the number of samples.
    #[test]
    fn issue_31_the_cost_of_many_buffers_makes_readings_rare_and_not_samples() {
        let mut rate = Rate::new(Duration::from_micros(28), 100);
        let first = rate.period();
        for _ in 0..100 {
            let passed = rate.interval();
            let samples = passed.as_secs_f64() / rate.period().as_secs_f64();
            let used = Duration::from_micros(400) + Duration::from_nanos(500).mul_f64(samples);
            rate.adapt(used, passed);
        }
        assert!(rate.period() <= first * 4, "{rate:?}");
        assert!(rate.interval() > READ && rate.interval() <= READ_LONGEST, "{rate:?}");
    }

    #[test]
    fn issue_31_dear_samples_are_rare() {
        let price = Duration::from_micros(55);
        assert_eq!(Rate::new(price, 100).period(), Duration::from_micros(5500));
        assert_eq!(Rate::new(price, 500).period(), Duration::from_micros(27_500));
        assert_eq!(Rate::new(CHEAP, 100).period(), SHORTEST);
        // In an emulated machine.
        let mut rate = Rate::new(Duration::from_millis(2), 100);
        rate.adapt(Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(rate.period(), Duration::from_millis(200));
    }

    #[test]
    fn issue_31_what_costs_much_waits_long() {
        let (mut due, mut count) = (Due::default(), 0);
        for wanted in [false, true, true] {
            due.run_if(wanted, || {
                count += 1;
                std::thread::sleep(Duration::from_millis(5));
            });
        }
        assert_eq!(count, 1);
        assert!(due.at.expect("a time") > Instant::now() + Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn issue_31_the_rate_stays_in_its_limits(price in 0u64..10_000_000, steps in prop::collection::vec((0u64..u64::MAX, 0u64..u64::MAX), 0..40)) {
            let price = Duration::from_nanos(price);
            let mut rate = Rate::new(price, 100);
            for (used, passed) in steps {
                rate.adapt(Duration::from_nanos(used), Duration::from_nanos(passed));
                prop_assert!(rate.period() >= SHORTEST.max(price * 100) && rate.period() <= LONGEST.max(price * 100));
                prop_assert!((READ..=READ_LONGEST).contains(&rate.interval()));
            }
        }
    }
}
