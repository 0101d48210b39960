// SPDX-License-Identifier: Apache-2.0
//! Processes that are to be seen again at some time, as they are too young for a rule.

use hugelift_core::proc_stat::Identity;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The processes, and when they are to be seen.
#[derive(Debug, Default)]
pub struct Later(BTreeMap<Identity, Instant>);

impl Later {
    /// Has a process seen after this time, or not at all.
    pub fn set(&mut self, process: Identity, after: Option<Duration>) {
        match after {
            Some(time) => drop(self.0.insert(process, Instant::now() + time)),
            None => _ = self.0.remove(&process),
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns those that are due, and forgets them.
    pub fn due(&mut self) -> Vec<u32> {
        let now = Instant::now();
        let due: Vec<Identity> =
            self.0.iter().filter(|(_, at)| **at <= now).map(|(process, _)| *process).collect();
        due.iter().for_each(|process| _ = self.0.remove(process));
        due.into_iter().map(|(pid, _)| pid).collect()
    }

    /// Returns when the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().copied().min()
    }
}
