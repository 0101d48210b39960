// SPDX-License-Identifier: Apache-2.0
//! How often the census reads processes, and what it may cost.

use std::time::Duration;

/// How often processes are read, and how much of that there may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// How long after its exec a process is read. Most short ones have ended by then.
    pub settle: Duration,
    /// How much later one is read that has hardly worked until then.
    pub idle: Duration,
    /// How often a large process is read.
    pub large_every: Duration,
    /// How often each other process is read that works. One that sleeps is read more rarely.
    pub small_every: Duration,
    /// How often a process is read that has slept for long. The id of a kernel thread is read as often: a process may have
    /// this id by now.
    pub kernel_every: Duration,
    /// How often /proc is listed at most where events are missing.
    pub scan_every: Duration,
    /// How often it is listed although there are events. It finds processes that were forked and execute no program.
    pub scan_beside_events: Duration,
    /// The share of one CPU that listing /proc takes at most.
    pub scan_share: f64,
    /// The readings of a second at most.
    pub readings: u32,
    /// The time between two turns of the loop at least.
    pub turn: Duration,
    /// The most processes that are kept.
    pub most: usize,
}

impl Default for Settings {
    /// Returns what finds a heavy program within a second, and costs at most 0.2 % of a CPU with 5,000 processes.
    fn default() -> Settings {
        Settings {
            settle: Duration::from_millis(300),
            idle: Duration::from_secs(1),
            large_every: Duration::from_secs(1),
            small_every: Duration::from_secs(60),
            kernel_every: Duration::from_secs(600),
            scan_every: Duration::from_secs(1),
            scan_beside_events: Duration::from_secs(30),
            scan_share: 0.001,
            readings: 100,
            // A program is heard of within a turn, settles, and is read within another one: 980 ms at most.
            turn: Duration::from_millis(340),
            most: 32_768,
        }
    }
}
