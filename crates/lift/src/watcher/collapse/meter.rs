// SPDX-License-Identifier: Apache-2.0
//! What a collapse takes.

use hugelift_linux::proc::clock::cpu_time_of_thread;
use std::time::{Duration, Instant};

/// Measures what a collapse takes, from when it began.
pub(crate) enum Meter {
    /// The CPU time of the calling thread.
    Cpu(Duration),
    /// The time of the clock.
    Clock(Instant),
}

impl Meter {
    pub(crate) fn cpu() -> Meter {
        Meter::Cpu(cpu_time_of_thread())
    }

    pub(crate) fn spent(&self) -> Duration {
        match self {
            Meter::Cpu(began) => cpu_time_of_thread().saturating_sub(*began),
            Meter::Clock(began) => began.elapsed(),
        }
    }
}
