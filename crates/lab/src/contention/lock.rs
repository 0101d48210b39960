// SPDX-License-Identifier: Apache-2.0
//! A lock that many want, access by access to the cache line of its word: the mutex of Rust's standard
//! library on Linux, and one whose waiters never sleep.
//!
//! Who finds it held looks again each time that its line was written to, and tries when it was let go:
//! all who wait do, and each look and each try brings the line to another core. So handing over takes
//! longer the more wait, until they sleep; then it takes a system call and a wake-up. What the lock
//! protects lies on a line of its own.

use super::{Costs, Events, Line, Varying};
use std::collections::VecDeque;

/// Times that each core takes the lock: fewer than operations elsewhere, for each can have hundreds of
/// events.
const TAKES: usize = 100;

/// Rounds of spinning before a waiter sleeps (`spin` in the standard library's futex mutex).
pub const SPINS: u32 = 100;

/// What a core does now, or is about to have done.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Work,
    /// Exchanges the word, to have the lock.
    Try,
    /// Reads the word.
    Look,
    /// Has read that the lock is held, and reads it again and again.
    Spin,
    /// Exchanges the word for one that says that somebody sleeps.
    Sleep,
    Asleep,
    Hold,
    /// Exchanges the word, to let go.
    Release,
}

/// Cores and the lock.
pub struct Lock<'a> {
    costs: &'a Costs,
    sleeps: bool,
    word: Line,
    list: Line,
    held: bool,
    /// The word says that somebody may sleep.
    contended: bool,
    sleepers: VecDeque<usize>,
    steps: Vec<Step>,
    /// Until when each spins.
    until: Vec<f64>,
    /// Has slept for this turn: it cannot know whether others still do.
    slept: Vec<bool>,
    events: Events,
    /// When each core's next event is; others of its are past.
    due: Vec<f64>,
    varying: Varying,
}

impl<'a> Lock<'a> {
    /// So many cores, each with work to do first; whether who waits for long sleeps.
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
            until: vec![0.0; cores],
            slept: vec![false; cores],
            events: Events::default(),
            due: vec![f64::NAN; cores],
            varying: Varying(1),
        }
    }

    /// Operations a second of all cores; each takes the lock twice.
    pub fn run(mut self) -> f64 {
        let cores = self.steps.len();
        for core in 0..cores {
            let work = self.varying.work(self.costs.work / 2.0);
            self.next(core, Step::Work, work);
        }
        let (mut done, mut end) = (0, 0.0);
        while done < cores * TAKES {
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

    /// The core reads or exchanges the word; the step is done when that is.
    fn word(&mut self, now: f64, core: usize, step: Step) {
        let write = step != Step::Look;
        let end = self.word.access(now, core, write, self.costs);
        self.next(core, step, end);
        if write {
            // All who spin lose the line, and fetch it again.
            for other in 0..self.steps.len() {
                if self.steps[other] == Step::Spin {
                    self.word(end, other, Step::Look);
                }
            }
        }
    }

    fn step(&mut self, now: f64, core: usize) {
        match self.steps[core] {
            Step::Work => {
                self.until[core] = now + f64::from(SPINS) * self.costs.pause;
                self.slept[core] = false;
                self.word(now, core, Step::Try);
            }
            Step::Try if self.held => self.word(now, core, Step::Look),
            Step::Sleep if self.held => {
                self.contended = true;
                self.sleepers.push_back(core);
                (self.steps[core], self.due[core]) = (Step::Asleep, f64::NAN);
            }
            Step::Try | Step::Sleep => {
                self.held = true;
                self.contended |= self.steps[core] == Step::Sleep;
                let inside = (self.costs.held - 2.0 * self.costs.atomic).max(0.0);
                let end = self.list.access(now, core, true, self.costs) - self.costs.atomic;
                self.next(core, Step::Hold, end + inside);
            }
            Step::Look if !self.held => {
                let step = if self.slept[core] { Step::Sleep } else { Step::Try };
                self.word(now, core, step);
            }
            Step::Look if !self.sleeps => {
                // Until somebody writes to the word.
                (self.steps[core], self.due[core]) = (Step::Spin, f64::NAN);
            }
            Step::Look if !self.contended && now < self.until[core] => {
                self.next(core, Step::Spin, self.until[core]);
            }
            Step::Look | Step::Spin => self.word(now, core, Step::Sleep),
            Step::Hold => self.word(now, core, Step::Release),
            Step::Release => self.let_go(now, core),
            Step::Asleep => {
                // Awake.
                self.until[core] = now + f64::from(SPINS) * self.costs.pause;
                self.slept[core] = true;
                self.word(now, core, Step::Look);
            }
        }
    }

    fn let_go(&mut self, now: f64, core: usize) {
        self.held = false;
        let mut after = now;
        if std::mem::take(&mut self.contended)
            && let Some(sleeper) = self.sleepers.pop_front()
        {
            after += self.costs.wake;
            self.next(sleeper, Step::Asleep, now + self.costs.awake);
        }
        let work = self.varying.work(self.costs.work / 2.0);
        self.next(core, Step::Work, after + work);
    }
}
