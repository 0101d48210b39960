// SPDX-License-Identifier: Apache-2.0
//! All processes of the machine: which there are, and which are to be read now.
//!
//! [`Census`] does nothing itself. It is told what happens, and says what is to be done and when:
//!
//! ```text
//! loop {
//!     events of the kernel      -> event()
//!     next()                    -> Work
//!     if work.scan: list /proc  -> scanned()
//!     for pid in work.read: read -> seen() or gone(), or put_off_idle() in place of reading
//!     wait until work.wake_at, with work.listen also for the next event
//! }
//! ```
//!
//! Times are those since any fixed moment.

mod budget;
pub mod mapped_code;
mod process;
mod queue;
mod scans;
mod settings;
#[cfg(test)]
mod tests;

pub use process::{Seen, Size};
pub use settings::Settings;

use crate::proc_events::Event;
use crate::proc_stat::Identity;
use budget::Budget;
use process::Process;
use queue::{Class, Queue, Turn, spread};
use scans::Scans;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// What is to be done now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// All processes are to be listed, and given to [`Census::scanned`].
    pub scan: bool,
    /// These processes are to be read, and given to [`Census::seen`] or [`Census::gone`]. Those that have hardly
    /// worked may be put off ([`Census::put_off_idle`]).
    pub read: Vec<u32>,
    /// When to ask again.
    pub wake_at: Duration,
    /// Nothing happens just now: the next event ends the wait. Otherwise events may wait as long as the caller does, which
    /// saves a turn for each.
    pub listen: bool,
}

/// What is known of all processes.
#[derive(Debug)]
pub struct Census {
    settings: Settings,
    processes: HashMap<u32, Process>,
    queue: Queue,
    budget: Budget,
    scans: Scans,
    /// How many scans there were.
    scan: u64,
    /// Whether events have come since the last turn.
    heard: bool,
}

impl Census {
    /// Begins a census. `has_events` says whether the caller has events of the kernel.
    pub fn new(settings: Settings, has_events: bool) -> Census {
        Census {
            settings,
            processes: HashMap::new(),
            queue: Queue::default(),
            budget: Budget::new(settings.readings),
            scans: Scans::new(has_events),
            scan: 0,
            heard: false,
        }
    }

    /// Takes an event of the kernel.
    pub fn event(&mut self, now: Duration, event: Event) {
        self.heard = true;
        match event {
            Event::Executed(pid) => self.started(now, pid),
            Event::Ended(pid) => self.gone(pid),
            Event::Lost => self.scans.lost(),
        }
    }

    /// Notes that there are no events from now on.
    pub fn without_events(&mut self) {
        self.scans.without_events();
    }

    /// Says what is to be done now. If that is a scan, ask again after it.
    pub fn next(&mut self, now: Duration) -> Work {
        let heard = std::mem::take(&mut self.heard);
        if self.scans.due(&self.settings) <= now {
            self.scans.asked(now);
            self.heard = heard;
            return Work { scan: true, read: Vec::new(), wake_at: now, listen: false };
        }
        let mut read = Vec::new();
        while let Some((pid, _)) = self.queue.first(now) {
            if !self.budget.take(now) {
                break;
            }
            // If the caller says nothing of it, it is read again as a small one.
            self.put_off(now, pid, Size::Small);
            read.push(pid);
        }
        let listen = self.scans.has_events() && !heard;
        Work { scan: false, read, wake_at: self.wake_at(now, listen), listen }
    }

    /// Takes the list of all processes. It was read after the last event that was given, and took `cpu` of CPU time.
    pub fn scanned(&mut self, now: Duration, pids: &[u32], cpu: Duration) {
        self.scans.took(cpu);
        self.scan += 1;
        pids.iter().for_each(|&pid| self.found(now, pid));
        let (scan, queue) = (self.scan, &mut self.queue);
        self.processes.retain(|&pid, process| {
            let is_there = process.scan == scan;
            if !is_there {
                queue.remove(pid, process.turn);
            }
            is_there
        });
    }

    /// Takes what was read of a process.
    pub fn seen(&mut self, now: Duration, seen: &Seen) {
        let pid = seen.identity.0;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.take(now, seen);
            self.put_off(now, pid, seen.size);
        }
    }

    /// Puts a process off that has hardly worked since it was started: many such end soon. Returns false if it was put off
    /// before, or was there before the census: it is to be read now.
    pub fn put_off_idle(&mut self, now: Duration, pid: u32) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return true };
        if !process.from_birth || std::mem::replace(&mut process.is_put_off, true) {
            return false;
        }
        self.set_turn(pid, Turn { class: Class::Started, due: now + self.settings.idle });
        true
    }

    /// Notes that there is no such process.
    pub fn gone(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            self.queue.remove(pid, process.turn);
        }
    }

    /// Returns how many processes are known.
    pub fn known(&self) -> usize {
        self.processes.len()
    }

    /// Returns whether a process is known.
    pub fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Returns what distinguishes a process from others that had or will have its id, if it is known and was read.
    pub fn identity(&self, pid: u32) -> Option<Identity> {
        self.processes.get(&pid)?.identity(pid)
    }

    /// Takes in a process that was started or executes another program now.
    fn started(&mut self, now: Duration, pid: u32) {
        let turn = Turn { class: Class::Started, due: now + self.settings.settle };
        if let Some(process) = self.processes.get_mut(&pid) {
            process.is_put_off = false;
            self.set_turn(pid, turn);
        } else {
            self.insert(pid, Process::new(turn, self.scan, true));
        }
    }

    /// Takes in a process that a scan lists.
    fn found(&mut self, now: Duration, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.scan = self.scan;
            return;
        }
        let is_first = self.scan == 1;
        // The scan alone tells of new programs where there are no events.
        let class = if is_first || self.scans.has_events() { Class::Found } else { Class::Started };
        self.insert(pid, Process::new(Turn { class, due: now }, self.scan, !is_first));
    }

    fn insert(&mut self, pid: u32, process: Process) {
        if self.processes.len() >= self.settings.most {
            return;
        }
        self.queue.insert(pid, process.turn);
        self.processes.insert(pid, process);
    }

    /// Gives a process its next turn by its size.
    fn put_off(&mut self, now: Duration, pid: u32, size: Size) {
        let small = |period| Turn { class: Class::Small, due: spread(pid, period, now) };
        let turn = match size {
            Size::Large => Turn { class: Class::Large, due: now + self.settings.large_every },
            Size::Small => small(self.small_every(now, pid)),
            Size::Kernel => small(self.settings.kernel_every),
        };
        self.set_turn(pid, turn);
    }

    /// Returns when a small process is read again: after as long as it has slept, ten minutes at most. Thousands of processes
    /// of a machine sleep for days, and what they execute is told by events, where there are any.
    fn small_every(&self, now: Duration, pid: u32) -> Duration {
        let slept = self.processes.get(&pid).map_or(Duration::ZERO, |process| process.slept(now));
        slept.min(self.settings.kernel_every).max(self.settings.small_every)
    }

    fn set_turn(&mut self, pid: u32, turn: Turn) {
        if let Entry::Occupied(mut process) = self.processes.entry(pid) {
            self.queue.remove(pid, std::mem::replace(&mut process.get_mut().turn, turn));
            self.queue.insert(pid, turn);
        }
    }

    /// Returns when there is something to do again.
    fn wake_at(&self, now: Duration, listen: bool) -> Duration {
        let soonest = now + self.settings.turn;
        if self.scans.has_events() && !listen {
            return soonest;
        }
        let reading = self.queue.earliest().map_or(Duration::MAX, |due| due.max(self.budget.next()));
        reading.min(self.scans.due(&self.settings)).max(soonest)
    }
}
