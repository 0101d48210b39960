// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own. Nobody waits for it but the end of the service.

use super::child::start_to_the_end;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::turn::turn_of_change;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Between two checks whether an experiment has ended.
const CHECK: Duration = Duration::from_secs(1);
/// The same at the end of the service, which waits for it.
const CHECK_AT_END: Duration = Duration::from_millis(10);

/// Those that run, and the processes that wait for the end of an experiment.
#[derive(Debug)]
pub struct Restores {
    running: Vec<Child>,
    waiting: Vec<Waiting>,
    check_at: Instant,
    /// How many processes were named to `hugelift restore`.
    pub count: u64,
}

/// An experiment that has not ended, or whose processes a user compares.
#[derive(Debug)]
struct Waiting {
    experiment: Child,
    /// The process that it is about.
    process: Identity,
    /// What is restored after it.
    restored: Vec<Identity>,
}

impl Restores {
    /// Returns none.
    pub fn new() -> Restores {
        Restores { running: Vec::new(), waiting: Vec::new(), check_at: Instant::now(), count: 0 }
    }

    /// Restores processes once the experiment on `process` has ended.
    pub fn after(&mut self, experiment: Child, process: Identity, restored: Vec<Identity>) {
        self.waiting.push(Waiting { experiment, process, restored });
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
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.experiment.try_wait() {
                Ok(None) => still.push(waiting),
                // A user compares one of them.
                _ if waiting.restored.iter().any(|(pid, _)| turn_of_change(*pid).is_none()) => {
                    still.push(waiting)
                }
                _ => self.begin(&waiting.restored),
            }
        }
        self.waiting = still;
    }

    /// Returns whether an experiment that has not ended may change a process.
    pub fn is_changed(&self, process: Identity) -> bool {
        self.waiting.iter().any(|waiting| waiting.process == process)
    }

    /// Begins what is due, and waits until nothing is to be done any more, or until this time has come.
    pub fn end(&mut self, deadline: Instant) {
        loop {
            self.check_at = Instant::now();
            self.turn();
            if self.next().is_none() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(CHECK_AT_END);
        }
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
        match start_to_the_end(&words, Stdio::null(), Stdio::null()) {
            Ok(child) => {
                self.count += words.len() as u64 - 1;
                self.running.push(child);
            }
            Err(error) => log(Level::Warning, &format!("cannot start hugelift {}: {error}", words.join(" "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_end_waits_for_an_experiment_that_still_restores() {
        let mut restores = Restores::new();
        let mut experiment = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let goes_on = experiment.stdin.take();
        let process = (std::process::id(), 1);
        restores.after(experiment, process, vec![process]);
        assert!(restores.is_changed(process) && !restores.is_changed((1, 1)));
        restores.end(Instant::now());
        assert!(restores.is_changed(process), "its time is over at once");
        drop(goes_on);
        restores.end(Instant::now() + Duration::from_secs(600));
        // The process has not begun then: another one has its number.
        assert!(!restores.is_changed(process) && restores.count == 0);
    }
}
