// SPDX-License-Identifier: Apache-2.0
//! The CPU time of the processes that the policy takes, and the CPU time of the service itself, for the ledger.
//!
//! Processes are read every few minutes. What one has used between the last reading and its end is in no sum.

use super::taken::Taken;
use crate::kernel::cpu_seconds;
use hugelift_core::proc_stat::Identity;
use hugelift_core::service::verify::Program;
use hugelift_ledger::entry::{Cost, Entry, Use};
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two readings.
const READ: Duration = Duration::from_secs(300);
/// Between two rows of a program in the ledger.
const WRITE: Duration = Duration::from_secs(3600);

/// What was used since the last rows.
#[derive(Debug)]
pub struct Uses {
    /// CPU time of processes at the last reading, in clock ticks.
    last: BTreeMap<Identity, u64>,
    sums: BTreeMap<Program, Use>,
    /// CPU time of the service at the last rows, in seconds.
    own: f64,
    since: Instant,
    read_at: Instant,
}

impl Uses {
    /// Begins to count.
    pub fn start() -> Uses {
        let now = Instant::now();
        Uses { last: BTreeMap::new(), sums: BTreeMap::new(), own: cpu_seconds(&[]), since: now, read_at: now }
    }

    /// Returns when the next reading is due.
    pub fn next(&self) -> Instant {
        self.read_at
    }

    /// Reads processes, if that is due. Returns rows, if these are due.
    pub fn turn<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>, helpers: &[u32]) -> Vec<Entry> {
        if Instant::now() < self.read_at {
            return Vec::new();
        }
        self.read(taken);
        match self.since.elapsed() >= WRITE {
            true => self.rows(helpers),
            false => Vec::new(),
        }
    }

    /// Reads all processes.
    pub fn read<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>) {
        self.read_at = Instant::now() + READ;
        let mut seen = BTreeMap::new();
        self.sums.values_mut().for_each(|sum| sum.copies = 0);
        for one in taken.filter(|one| one.wants.is_some()) {
            let Ok(stat) = Process::new(one.process.0).stat() else { continue };
            if stat.identity() != one.process {
                continue;
            }
            // What it has used before it was seen for the first time is not counted.
            let before = self.last.get(&one.process).copied().unwrap_or(stat.cpu);
            let cpu = micros(stat.cpu.saturating_sub(before));
            let sum = self.sums.entry(one.key.clone()).or_default();
            sum.cpu_us += cpu;
            sum.lifted_us += if one.bytes() > 0 { cpu } else { 0 };
            sum.copies = sum.copies.saturating_add(one.copies());
            seen.insert(one.process, stat.cpu);
        }
        self.last = seen;
    }

    /// Returns the rows for the span since the last ones, with the cost of the service and of these helpers.
    pub fn rows(&mut self, helpers: &[u32]) -> Vec<Entry> {
        let own = cpu_seconds(helpers);
        let cost = Cost {
            span: self.since.elapsed().as_secs(),
            cpu_us: ((own - self.own).max(0.0) * 1e6) as u64,
            copies: self.sums.values().map(|sum| sum.copies).sum(),
        };
        (self.own, self.since) = (own, Instant::now());
        let used = std::mem::take(&mut self.sums).into_iter().filter(|(_, sum)| *sum != Use::default());
        used.map(|(program, sum)| Entry::Use(program, sum)).chain([Entry::Cost(cost)]).collect()
    }
}

fn micros(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000) / ticks_per_second().max(1)
}
