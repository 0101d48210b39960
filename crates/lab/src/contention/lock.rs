// SPDX-License-Identifier: Apache-2.0
//! The model of a contended lock, access by access to the cache line of its word: the mutex of Rust's
//! standard library on Linux, and a lock whose waiters never sleep.
//!
//! A waiter reads the word again after each write to its line, and tries to take the lock when it was
//! released. All waiters do so, and each read and each try moves the line to another core. So handing the
//! lock over takes longer with more waiters, until they sleep. Then it takes a system call and a wake-up.
//! The system call reads the word once more. If it has changed, the waiter does not sleep (futex(2), EAGAIN).
//! If a core holds the lock for a shorter time than a system call takes, waiters seldom sleep.
//! The data that the lock protects has a line of its own.

use super::costs::Costs;
use super::line::Line;
use super::simulation::{Events, VaryingWork};
use std::collections::VecDeque;

/// How often each core takes the lock: less often than other models have operations, since each can have
/// hundreds of events.
const TAKES: usize = 100;

/// The least time that is modelled, as a multiple of the time in which a sleeper wakes up: long enough for
/// many waiters to sleep and to be woken.
const SLEEPS: f64 = 100.0;

/// Rounds of spinning before a waiter sleeps (`spin` in the standard library's futex mutex).
pub const SPINS: u32 = 100;

/// What a core does, up to its next event.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Work,
    /// Exchanges the word to take the lock.
    Try,
    /// Reads the word.
    Read,
    /// Has read that the lock is held, and reads the word repeatedly.
    Spin,
    /// Exchanges the word to take the lock, after spinning.
    Retry,
    /// Exchanges the word for one that says that there are sleepers.
    Sleep,
    /// Is in the system call that reads the word and then sleeps.
    Wait,
    /// Leaves this system call, since the word has changed.
    Refused,
    /// Sleeps until its event, the wake-up.
    Asleep,
    Hold,
    /// Exchanges the word to release the lock.
    Release,
}

/// The cores and the lock.
pub struct Lock<'a> {
    costs: &'a Costs,
    sleeps: bool,
    word: Line,
    list: Line,
    held: bool,
    /// The word says that there may be sleepers.
    contended: bool,
    sleepers: VecDeque<usize>,
    steps: Vec<Step>,
    /// How many rounds each core still spins. A round whose read fetches the line is one round, too.
    left: Vec<f64>,
    /// Since when each core spins without fetching the line.
    since: Vec<f64>,
    /// Whether each core has wanted to sleep for the present turn. It cannot know whether others sleep.
    slept: Vec<bool>,
    events: Events,
    /// When the next event of each core is. Its other events are void.
    due: Vec<f64>,
    varying: VaryingWork,
}

impl<'a> Lock<'a> {
    /// Makes a model with `cores` cores. Each begins with work. `sleeps`: a long wait ends in sleep.
    pub fn new(cores: usize, costs: &'a Costs, sleeps: bool) -> Lock<'a> {
        Lock {
            costs,
            sleeps,
            word: Line::new(cores),
            list: Line::new(cores),
            held: false,
            contended: false,
            sleepers: VecDeque::new(),
            steps: vec![Step::Work; cores],
            left: vec![0.0; cores],
            since: vec![0.0; cores],
            slept: vec![false; cores],
            events: Events::default(),
            due: vec![f64::NAN; cores],
            varying: VaryingWork::new(),
        }
    }

    /// Runs the model. Returns the operations per second of all cores; an operation takes the lock twice.
    pub fn run(mut self) -> f64 {
        let cores = self.steps.len();
        for core in 0..cores {
            let work = self.varying.next(self.costs.work / 2.0);
            self.next(core, Step::Work, work);
        }
        // A core alone never waits.
        let least = if self.sleeps && cores > 1 { SLEEPS * self.costs.awake } else { 0.0 };
        let (mut done, mut end) = (0, 0.0);
        while done < cores * TAKES || end < least {
            let Some((now, core)) = self.events.next() else { break };
            if now != self.due[core] {
                continue;
            }
            end = now;
            done += usize::from(self.steps[core] == Step::Release);
            self.step(now, core);
        }
        done as f64 / 2.0 / end.max(1e-9) * 1e9
    }

    fn next(&mut self, core: usize, step: Step, time: f64) {
        self.steps[core] = step;
        self.due[core] = self.events.add(time, core);
    }

    /// Makes the core read or exchange the word. `step` is the step that ends with it.
    fn word(&mut self, now: f64, core: usize, step: Step) {
        let write = step != Step::Read;
        let end = self.word.access(now, core, write, self.costs);
        self.next(core, step, end);
        if write {
            // All spinning cores lose the line and fetch it again.
            for other in 0..self.steps.len() {
                if self.steps[other] == Step::Spin {
                    self.left[other] -= (end - self.since[other]).max(0.0) / self.costs.pause;
                    self.word(end, other, Step::Read);
                }
            }
        }
    }

    fn step(&mut self, now: f64, core: usize) {
        match self.steps[core] {
            Step::Work => {
                self.slept[core] = false;
                self.word(now, core, Step::Try);
            }
            Step::Try if self.held => self.spin(now, core),
            Step::Retry if self.held && self.contended => self.wait(now, core),
            Step::Retry if self.held => self.word(now, core, Step::Sleep),
            Step::Sleep if self.held => {
                self.contended = true;
                self.wait(now, core);
            }
            Step::Wait if self.held && self.contended => {
                self.sleepers.push_back(core);
                (self.steps[core], self.due[core]) = (Step::Asleep, f64::NAN);
            }
            Step::Wait => {
                let back = self.varying.next(self.costs.refused / 2.0);
                self.next(core, Step::Refused, now + back)
            }
            Step::Try | Step::Retry | Step::Sleep => {
                self.held = true;
                self.contended = self.steps[core] == Step::Sleep;
                let inside = (self.costs.held - 2.0 * self.costs.atomic).max(0.0);
                let end = self.list.access(now, core, true, self.costs) - self.costs.atomic;
                self.next(core, Step::Hold, end + inside);
            }
            Step::Read if !self.sleeps => {
                if self.held {
                    // The core spins until another one writes to the word.
                    (self.steps[core], self.due[core]) = (Step::Spin, f64::NAN);
                } else {
                    self.word(now, core, Step::Try);
                }
            }
            Step::Read if !self.held => {
                let step = if self.slept[core] { Step::Sleep } else { Step::Retry };
                self.word(now, core, step);
            }
            Step::Read if self.contended => self.wait(now, core),
            Step::Read if self.left[core] >= 1.0 => {
                self.left[core] -= 1.0;
                self.since[core] = now;
                self.next(core, Step::Spin, now + self.left[core] * self.costs.pause);
            }
            Step::Read | Step::Spin => self.word(now, core, Step::Sleep),
            Step::Hold => self.word(now, core, Step::Release),
            Step::Release => self.released(now, core),
            Step::Asleep | Step::Refused => self.spin(now, core),
        }
    }

    /// Makes the core read the word until the lock is free, or for [`SPINS`] rounds.
    fn spin(&mut self, now: f64, core: usize) {
        self.left[core] = f64::from(SPINS);
        self.word(now, core, Step::Read);
    }

    /// Makes the core call futex(2), which reads the word half-way.
    fn wait(&mut self, now: f64, core: usize) {
        self.slept[core] = true;
        let reads = self.varying.next(self.costs.refused / 2.0);
        self.next(core, Step::Wait, now + reads);
    }

    fn released(&mut self, now: f64, core: usize) {
        self.held = false;
        let mut after = now;
        if std::mem::take(&mut self.contended) {
            match self.sleepers.pop_front() {
                Some(sleeper) => {
                    after += self.varying.next(self.costs.wake);
                    let awake = self.varying.next(self.costs.awake);
                    self.next(sleeper, Step::Asleep, now + awake);
                }
                None => after += self.varying.next(self.costs.wake_nobody),
            }
        }
        let work = self.varying.next(self.costs.work / 2.0);
        self.next(core, Step::Work, after + work);
    }
}
