// SPDX-License-Identifier: Apache-2.0
//! What sampling many processes may take: all together at most one 500th of a CPU, at most 64 processes and 256 threads.

use hugelift_linux::proc::clock::cpu_time_of_thread;
use std::time::{Duration, Instant};

/// All takes at most one part in so many of a CPU, and of the CPU time of what is sampled.
pub const SHARE: u32 = 500;
/// What may be used at once, after a time in which little was: a first screen has figures soon.
pub const SAVED: Duration = Duration::from_millis(40);
/// The most processes that are sampled: each thread needs a file and locked memory.
pub const PROCESSES: usize = 64;
/// The most threads of one process.
pub const THREADS_OF_ONE: usize = 32;
/// The most threads of all.
pub const THREADS: usize = 256;

/// CPU time that may be used: it grows as time passes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: Duration,
    /// What was used beyond it.
    owed: Duration,
    at: Instant,
}

impl Budget {
    /// Returns what may be used from `now` on.
    pub fn new(now: Instant) -> Budget {
        Budget { left: SAVED, owed: Duration::ZERO, at: now }
    }

    /// Adds what the time has brought.
    pub fn earn(&mut self, now: Instant) {
        let earned = now.saturating_duration_since(self.at) / SHARE;
        self.at = now;
        let paid = earned.min(self.owed);
        self.owed -= paid;
        self.left = (self.left + (earned - paid)).min(SAVED);
    }

    /// Does the work if something is left, and pays for it. Returns the CPU time that it took.
    pub fn spend(&mut self, work: impl FnOnce()) -> Duration {
        if self.left.is_zero() {
            return Duration::ZERO;
        }
        let before = cpu_time_of_thread();
        work();
        let used = cpu_time_of_thread().saturating_sub(before);
        self.pay(used);
        used
    }

    fn pay(&mut self, used: Duration) {
        self.owed += used.saturating_sub(self.left);
        self.left = self.left.saturating_sub(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_31_3_what_is_used_up_waits() {
        let began = Instant::now();
        let mut budget = Budget::new(began);
        budget.pay(SAVED + Duration::from_millis(10));
        let mut done = 0;
        budget.spend(|| done += 1);
        // Ten milliseconds are owed: five seconds.
        budget.earn(began + Duration::from_secs(5));
        budget.spend(|| done += 1);
        assert_eq!(done, 0);
        budget.earn(began + Duration::from_secs(6));
        budget.spend(|| done += 1);
        assert_eq!(done, 1);
    }

    proptest! {
        /// Whatever the work costs, it is paid for before more is done.
        #[test]
        fn issue_31_3_all_takes_at_most_its_share(steps in prop::collection::vec((0u64..5000, 0u64..100), 1..60)) {
            let began = Instant::now();
            let (mut budget, mut now, mut used, mut last) = (Budget::new(began), began, Duration::ZERO, Duration::ZERO);
            for (passed, cost) in steps {
                now += Duration::from_millis(passed);
                budget.earn(now);
                if !budget.left.is_zero() {
                    last = Duration::from_millis(cost);
                    used += last;
                    budget.pay(last);
                }
                prop_assert!(used <= SAVED + (now - began) / SHARE + last);
            }
        }
    }
}
