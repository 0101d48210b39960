// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own. Nobody waits for it but the end of the service.

use super::child::start_to_the_end;
use super::copies;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::is_whole;
use hugelift_linux::proc::turn::turn_of_change;
use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Between two checks whether an experiment has ended, or a restoring.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_RUNNING: Duration = Duration::from_millis(100);
/// The same at the end of the service, which waits for it.
const CHECK_AT_END: Duration = Duration::from_millis(10);
/// The most that run at a time.
const MOST: usize = 16;
/// One that takes longer than this is not counted: its process answers nothing, and must not hold up the others.
const SILENT: Duration = Duration::from_secs(30);
/// How often a process is tried that could not be restored, and how long one is left alone that failed or is compared.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_secs(10);

/// Those that run, those that are due, and the processes that wait for the end of an experiment.
#[derive(Debug)]
pub struct Restores {
    /// Starts one.
    start: fn(u32) -> io::Result<Child>,
    /// Returns the bytes of copies of a process; `None` if they cannot be read.
    copies: fn(Identity) -> Option<u64>,
    running: Vec<Running>,
    due: Vec<Due>,
    waiting: Vec<Waiting>,
    check_at: Instant,
    /// How many may run at a time.
    most: usize,
    /// Those that have no copies any more, until they are taken.
    done: Vec<Identity>,
    /// How many processes were restored.
    pub count: u64,
}

/// A restoring that has begun.
#[derive(Debug)]
struct Running {
    child: Child,
    due: Due,
    began: Instant,
    /// The process had copies.
    had_copies: bool,
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
            copies: copies::of,
            running: Vec::new(),
            due: Vec::new(),
            waiting: Vec::new(),
            check_at: Instant::now(),
            most: MOST,
            done: Vec::new(),
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
        for mut running in std::mem::take(&mut self.running) {
            match running.child.try_wait() {
                Ok(None) => self.running.push(running),
                Ok(Some(status)) if status.success() => self.ended(running.due, running.had_copies, now),
                _ => self.failed(running.due, now),
            }
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.experiment.try_wait() {
                Ok(None) => self.waiting.push(waiting),
                _ => {
                    let new: BTreeSet<Identity> = waiting.restored.into_iter().collect();
                    let new = new.into_iter().filter(|process| !self.has(*process));
                    let new: Vec<Due> = new.map(|process| Due { process, failures: 0, at: now }).collect();
                    self.due.extend(new);
                }
            }
        }
        for due in std::mem::take(&mut self.due) {
            self.begin(due, now);
        }
        self.check_at = now + if self.answering() > 0 { CHECK_RUNNING } else { CHECK };
    }

    /// Returns how many run that may soon end.
    fn answering(&self) -> usize {
        self.running.iter().filter(|running| running.began.elapsed() < SILENT).count()
    }

    fn begin(&mut self, due: Due, now: Instant) {
        let pid = due.process.0;
        if !is_whole(due.process) {
            return;
        }
        if now < due.at || self.answering() >= self.most {
            return self.due.push(due);
        }
        // While a user compares it, nobody else changes it.
        if turn_of_change(pid).is_none() {
            return self.due.push(Due { at: now + AGAIN, ..due });
        }
        let had_copies = (self.copies)(due.process) != Some(0);
        match (self.start)(pid) {
            Ok(child) => self.running.push(Running { child, due, began: now, had_copies }),
            Err(error) => {
                log(Level::Warning, &format!("cannot start hugelift restore {pid}: {error}"));
                self.failed(due, now);
            }
        }
    }

    /// Takes note of the end of a restoring. It says that it has succeeded also if a part of the copies stays.
    fn ended(&mut self, due: Due, had_copies: bool, now: Instant) {
        match (self.copies)(due.process) {
            Some(0) => {
                self.count += u64::from(had_copies);
                self.done.push(due.process);
            }
            Some(_) => self.failed(due, now),
            None => {}
        }
    }

    /// Returns the processes that have no copies any more since the last call.
    pub fn take_done(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.done)
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
        let changes = |waiting: &Waiting| waiting.process == process || waiting.restored.contains(&process);
        self.has(process) || self.waiting.iter().any(changes)
    }

    /// Returns whether it is restored, or is to be.
    fn has(&self, process: Identity) -> bool {
        let running = self.running.iter().map(|running| &running.due);
        self.due.iter().chain(running).any(|due| due.process == process)
    }

    /// Begins all that is due, and waits until nothing runs any more, or until this time has come. What has begun goes on by itself
    /// then. Nobody waits for what cannot begin.
    pub fn end(&mut self, deadline: Instant) {
        self.most = usize::MAX;
        loop {
            self.check_at = Instant::now();
            self.turn();
            if self.waiting.is_empty() && self.answering() == 0 || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(CHECK_AT_END);
        }
        for Due { process, .. } in &self.due {
            log(
                Level::Warning,
                &format!(
                    "process {0} stays lifted, and does not gain by it; try 'hugelift restore {0}'",
                    process.0
                ),
            );
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

    /// Returns none, which would start this program.
    fn of(program: fn(u32) -> io::Result<Child>) -> Restores {
        Restores { start: program, copies: |_| Some(0), ..Restores::new() }
    }

    /// Makes turns until nothing waits and nothing runs. What was left alone for a time is due now.
    fn calm(restores: &mut Restores) {
        restores.due.iter_mut().for_each(|due| due.at = Instant::now());
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
        let mut restores = of(|_| Command::new("true").spawn());
        restores.copies = |_| None;
        let [mut one, mut other] = [cat(), cat()];
        let comparison = turn(one.id()).unwrap();
        let [first, second] = [&one, &other].map(identity);
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), vec![first, second]);
        calm(&mut restores);
        assert_eq!((restores.is_changed(first), restores.is_changed(second)), (true, false));
        drop(comparison);
        restores.copies = |_| Some(0);
        calm(&mut restores);
        assert_eq!((restores.count, restores.next(), restores.take_done()), (0, None, vec![first]));
        for child in [&mut one, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// `hugelift restore` succeeds also if copies stay, as they differ from their file.
    #[test]
    fn what_stays_a_copy_was_not_restored() {
        let mut restores = of(|_| Command::new("true").spawn());
        restores.copies = |_| Some(1);
        let mut process = cat();
        let id = identity(&process);
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), vec![id, id]);
        calm(&mut restores);
        assert_eq!((restores.count, restores.due.len(), restores.due[0].failures), (0, 1, 1));
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn those_that_answer_nothing_hold_up_nobody() {
        let mut restores = of(|_| cat_that_stays());
        restores.most = 1;
        let mut all: Vec<Child> = (0..2).map(|_| cat()).collect();
        let ids: Vec<Identity> = all.iter().map(identity).collect();
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), ids);
        while restores.running.is_empty() {
            restores.check_at = Instant::now();
            restores.turn();
        }
        assert_eq!((restores.running.len(), restores.due.len()), (1, 1));
        restores.running[0].began -= SILENT;
        restores.check_at = Instant::now();
        restores.turn();
        assert_eq!((restores.running.len(), restores.due.len()), (2, 0));
        all.extend(restores.running.into_iter().map(|running| running.child));
        for mut child in all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn cat_that_stays() -> io::Result<Child> {
        Command::new("sleep").arg("600").spawn()
    }

    #[test]
    fn one_that_fails_is_tried_some_times() {
        let mut restores = of(|_| Command::new("false").spawn());
        let mut process = cat();
        let id = identity(&process);
        restores.after(Command::new("true").spawn().unwrap(), (1, 1), vec![id]);
        for failures in 1..TRIES {
            calm(&mut restores);
            assert_eq!(restores.due.iter().map(|due| due.failures).collect::<Vec<_>>(), [failures]);
        }
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (0, None));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
