// SPDX-License-Identifier: Apache-2.0
//! The share of cycles that a few processes spend in page walks, from one reading to the next.

use crate::perf::counters::{Counters, Later, Start};
use crate::perf::hardware::{Hardware, NoHardware, cpus};
use crate::pmu::metric::metrics;
use crate::pmu::tables::Formulas;
use crate::pmu::{Count, Sample};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::proc::procfs::Process;
use std::collections::{HashMap, HashSet};

/// The most threads that are counted: each needs a file for every event.
const MOST_THREADS: usize = 256;

/// Counters of a few processes.
#[derive(Debug)]
pub struct Walks {
    hardware: Hardware,
    watched: HashMap<Identity, Watched>,
}

#[derive(Debug)]
struct Watched {
    counters: Counters,
    threads: usize,
    last: Vec<Vec<Option<Count>>>,
    share: Option<f64>,
}

impl Walks {
    /// Finds the PMU; no process is counted yet.
    ///
    /// # Errors
    /// Why walk cycles cannot be counted on this machine, in a few words.
    pub fn new() -> Result<Walks, String> {
        let hardware = Hardware::find(&cpus()).map_err(|error| match error {
            NoHardware::NoPmu => "no PMU".to_string(),
            NoHardware::NoTable(why) => why,
        })?;
        if hardware.model.formulas == Formulas::Misses {
            return Err(format!("{} has no event for walk cycles", hardware.model.name));
        }
        let own = nix::unistd::gettid().as_raw();
        hardware.open(&[own], Start::Asked, Later::Processes).map_err(|e| e.to_string())?;
        raise_file_limit();
        Ok(Walks { hardware, watched: HashMap::new() })
    }

    /// Counts these processes, and no others. The shares of those that were counted already are then
    /// those since the last reading. A thread is missed if a thread that is not counted yet starts
    /// it while the counters are opened.
    pub fn read(&mut self, wanted: &[Identity]) {
        let set: HashSet<&Identity> = wanted.iter().collect();
        self.watched.retain(|id, _| set.contains(id));
        for watched in self.watched.values_mut() {
            let groups = watched.counters.read();
            let now = Sample { model: self.hardware.model, groups };
            watched.share = metrics(&now.since(&watched.last)).1;
            watched.last = now.groups;
        }
        let mut threads: usize = self.watched.values().map(|w| w.threads).sum();
        for id in wanted {
            if self.watched.contains_key(id) {
                continue;
            }
            let tasks = Process::new(id.0).threads();
            threads += tasks.len();
            if threads > MOST_THREADS {
                break;
            }
            // Opening fails if the process has ended or is another user's.
            let Ok(counters) = self.hardware.open(&tasks, Start::Asked, Later::Processes) else { continue };
            counters.enable();
            let last = counters.read();
            self.watched.insert(*id, Watched { counters, threads: tasks.len(), last, share: None });
        }
    }

    /// Returns the share between the last two readings, where there is one.
    pub fn share(&self, id: Identity) -> Option<f64> {
        self.watched.get(&id)?.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let mut walks = match Walks::new() {
            Ok(walks) => walks,
            Err(why) => return println!("SKIP: {why}"),
        };
        let own = (std::process::id(), 1);
        walks.read(&[own]);
        assert_eq!(walks.share(own), None, "nothing is counted yet");
        std::hint::black_box((0..10_000_000u64).fold(0, |a, b| a ^ std::hint::black_box(b)));
        walks.read(&[own]);
        assert!(walks.share(own).is_some_and(|share| (0.0..1.0).contains(&share)), "{walks:?}");
        walks.read(&[]);
        assert_eq!(walks.share(own), None);
    }
}
