// SPDX-License-Identifier: Apache-2.0
//! A budget of readings a second.

use std::time::Duration;

/// Half a second of readings may be saved for later.
const SAVED: f64 = 0.5;

/// What is left of a budget that grows with time.
#[derive(Debug)]
pub(super) struct Budget {
    each_second: f64,
    left: f64,
    at: Duration,
}

impl Budget {
    /// Makes a budget of so many readings a second, at least one.
    pub(super) fn new(each_second: u32) -> Budget {
        Budget { each_second: f64::from(each_second.max(1)), left: 1.0, at: Duration::ZERO }
    }

    /// Takes one reading; returns false if none is left.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.left = (self.left + passed * self.each_second).min(self.most());
        self.at = self.at.max(now);
        let is_left = self.left >= 1.0;
        self.left -= if is_left { 1.0 } else { 0.0 };
        is_left
    }

    /// Returns when a reading is left again.
    pub(super) fn next(&self) -> Duration {
        let lacks = (1.0 - self.left).max(0.0) / self.each_second;
        self.at + Duration::from_secs_f64(lacks)
    }

    /// Returns the most readings that can be left.
    pub(super) fn most(&self) -> f64 {
        (self.each_second * SAVED).max(1.0)
    }
}
