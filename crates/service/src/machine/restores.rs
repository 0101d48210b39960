// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own. Nobody waits for it.

use super::child::start;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::Process;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Between two checks whether an experiment has ended.
const CHECK: Duration = Duration::from_secs(1);

/// Those that run, and the processes that wait for the end of an experiment.
#[derive(Debug)]
pub struct Restores {
    running: Vec<Child>,
    waiting: Vec<(Child, Vec<Identity>)>,
    check_at: Instant,
    /// How many processes were named to `hugelift restore`.
    pub count: u64,
}

impl Restores {
    /// Returns none.
    pub fn new() -> Restores {
        Restores { running: Vec::new(), waiting: Vec::new(), check_at: Instant::now(), count: 0 }
    }

    /// Restores these processes once the experiment on one of them has ended.
    pub fn after(&mut self, experiment: Child, processes: Vec<Identity>) {
        self.waiting.push((experiment, processes));
        self.check_at = Instant::now();
        self.turn();
    }

    /// Begins what is due.
    pub fn turn(&mut self) {
        if Instant::now() < self.check_at {
            return;
        }
        self.check_at = Instant::now() + CHECK;
        self.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let mut still = Vec::new();
        for (mut experiment, processes) in std::mem::take(&mut self.waiting) {
            match experiment.try_wait() {
                Ok(None) => still.push((experiment, processes)),
                _ => self.begin(&processes),
            }
        }
        self.waiting = still;
    }

    /// Returns when there is something to do.
    pub fn next(&self) -> Option<Instant> {
        (!self.waiting.is_empty() || !self.running.is_empty()).then_some(self.check_at)
    }

    fn begin(&mut self, processes: &[Identity]) {
        let is_there =
            |(pid, began): &&Identity| Process::new(*pid).stat().is_ok_and(|stat| stat.start == *began);
        let pids: Vec<String> = processes.iter().filter(is_there).map(|(pid, _)| pid.to_string()).collect();
        if pids.is_empty() {
            return;
        }
        let words: Vec<String> = ["restore".to_string()].into_iter().chain(pids).collect();
        match start(&words, Stdio::null(), Stdio::null()) {
            Ok(child) => {
                self.count += words.len() as u64 - 1;
                self.running.push(child);
            }
            Err(error) => log(Level::Warning, &format!("cannot start hugelift {}: {error}", words.join(" "))),
        }
    }
}
