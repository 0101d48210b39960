// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own. Nobody waits for it but the end of the service.

use super::child::start_to_the_end;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::is_whole;
use hugelift_linux::proc::turn::turn_of_change;
use std::io;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Between two checks whether something has ended.
const CHECK: Duration = Duration::from_secs(1);
/// The same at the end of the service, which waits for it.
const CHECK_AT_END: Duration = Duration::from_millis(10);
/// The most that run at a time: a process that answers nothing must not hold up the others.
const MOST: usize = 8;
/// How often a process is tried that could not be restored, and how long it is left alone each time.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_secs(10);

/// Those that run, those that are due, and the processes that wait for the end of an experiment.
#[derive(Debug)]
pub struct Restores {
    /// Starts one.
    start: fn(u32) -> io::Result<Child>,
    running: Vec<(Child, Due)>,
    due: Vec<Due>,
    waiting: Vec<Waiting>,
    check_at: Instant,
    /// How many processes were restored.
    pub count: u64,
}

/// A process that is to be restored.
#[derive(Clone, Copy, Debug)]
struct Due {
    process: Identity,
    /// How often that has failed.
    failures: u32,
    /// Not before this time.
    at: Instant,
}

/// An experiment that has not ended.
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
        Restores {
            start: restore,
            running: Vec::new(),
            due: Vec::new(),
            waiting: Vec::new(),
            check_at: Instant::now(),
            count: 0,
        }
    }

    /// Restores processes once the experiment on `process` has ended.
    pub fn after(&mut self, experiment: Child, process: Identity, restored: Vec<Identity>) {
        self.waiting.push(Waiting { experiment, process, restored });
        self.check_at = Instant::now();
        self.turn();
    }

    /// Takes what has ended, and begins what is due.
    pub fn turn(&mut self) {
        let now = Instant::now();
        if now < self.check_at {
            return;
        }
        self.check_at = now + CHECK;
        for (mut child, due) in std::mem::take(&mut self.running) {
            match child.try_wait() {
                Ok(None) => self.running.push((child, due)),
                Ok(Some(status)) if status.success() => self.count += 1,
                _ => self.failed(due, now),
            }
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.experiment.try_wait() {
                Ok(None) => self.waiting.push(waiting),
                _ => {
                    let due = |process| Due { process, failures: 0, at: now };
                    self.due.extend(waiting.restored.into_iter().map(due));
                }
            }
        }
        for due in std::mem::take(&mut self.due) {
            self.begin(due, now);
        }
    }

    fn begin(&mut self, due: Due, now: Instant) {
        let pid = due.process.0;
        if !is_whole(due.process) {
            return;
        }
        // While a user compares it, nobody else changes it.
        if now < due.at || self.running.len() >= MOST || turn_of_change(pid).is_none() {
            return self.due.push(due);
        }
        match (self.start)(pid) {
            Ok(child) => self.running.push((child, due)),
            Err(error) => {
                log(Level::Warning, &format!("cannot start hugelift restore {pid}: {error}"));
                self.failed(due, now);
            }
        }
    }

    fn failed(&mut self, due: Due, now: Instant) {
        let Due { process, failures, .. } = due;
        if !is_whole(process) {
            return;
        }
        match failures + 1 {
            failures @ ..TRIES => self.due.push(Due { process, failures, at: now + AGAIN }),
            _ => log(
                Level::Warning,
                &format!(
                    "process {0} stays lifted, and does not gain by it; try 'hugelift restore {0}'",
                    process.0
                ),
            ),
        }
    }

    /// Returns whether it is restored, or an experiment that has not ended may change it.
    pub fn is_changed(&self, process: Identity) -> bool {
        let mut restored = self.due.iter().chain(self.running.iter().map(|(_, due)| due));
        self.waiting.iter().any(|waiting| waiting.process == process)
            || restored.any(|due| due.process == process)
    }

    /// Begins what is due, and waits until nothing runs any more, or until this time has come. Nobody waits for what cannot begin.
    pub fn end(&mut self, deadline: Instant) {
        loop {
            self.check_at = Instant::now();
            self.turn();
            if self.waiting.is_empty() && self.running.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(CHECK_AT_END);
        }
    }

    /// Returns when there is something to do.
    pub fn next(&self) -> Option<Instant> {
        let is_idle = self.waiting.is_empty() && self.running.is_empty() && self.due.is_empty();
        (!is_idle).then_some(self.check_at)
    }
}

fn restore(pid: u32) -> io::Result<Child> {
    start_to_the_end(&["restore".to_string(), pid.to_string()], Stdio::null(), Stdio::null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_linux::proc::procfs::Process;
    use hugelift_linux::proc::turn::turn;
    use std::process::Command;

    /// Starts what stands for an experiment.
    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
    }

    fn identity(child: &Child) -> Identity {
        Process::new(child.id()).stat().unwrap().identity()
    }

    /// Makes turns until nothing waits and nothing runs.
    fn calm(restores: &mut Restores) {
        restores.end(Instant::now() + Duration::from_secs(600));
        assert!(restores.waiting.is_empty() && restores.running.is_empty());
    }

    #[test]
    fn the_end_waits_for_an_experiment_that_still_restores() {
        let mut restores = Restores::new();
        let mut experiment = cat();
        let goes_on = experiment.stdin.take();
        let process = (std::process::id(), 1);
        restores.after(experiment, process, vec![process]);
        assert!(restores.is_changed(process) && !restores.is_changed((1, 1)));
        restores.end(Instant::now());
        assert!(restores.is_changed(process), "its time is over at once");
        drop(goes_on);
        calm(&mut restores);
        // The process has not begun then: another one has its number.
        assert!(!restores.is_changed(process) && restores.count == 0);
    }

    #[test]
    fn one_that_is_compared_waits_and_the_others_do_not() {
        let restored = Restores { start: |_| Command::new("true").spawn(), ..Restores::new() };
        let [mut one, mut other] = [cat(), cat()];
        let comparison = turn(one.id()).unwrap();
        let mut restores = restored;
        let [first, second] = [&one, &other].map(identity);
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), vec![first, second]);
        calm(&mut restores);
        assert_eq!(
            (restores.count, restores.is_changed(first), restores.is_changed(second)),
            (1, true, false)
        );
        drop(comparison);
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (2, None));
        for child in [&mut one, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn one_that_fails_is_tried_some_times() {
        let mut restores = Restores { start: |_| Command::new("false").spawn(), ..Restores::new() };
        let mut process = cat();
        let id = identity(&process);
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), vec![id]);
        for failures in 1..TRIES {
            calm(&mut restores);
            assert_eq!(restores.due.iter().map(|due| due.failures).collect::<Vec<_>>(), [failures]);
            restores.due[0].at = Instant::now();
        }
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (0, None));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
