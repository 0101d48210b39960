// SPDX-License-Identifier: Apache-2.0
//! What the census knows of one process.

use super::queue::Turn;
use crate::proc_stat::Identity;
use std::time::Duration;

/// What was read of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its id, and when it was started.
    pub identity: Identity,
    /// The CPU time of all its threads, in clock ticks.
    pub cpu: u64,
    /// How often it is worth reading.
    pub size: Size,
}

/// How often a process is worth reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// It is a candidate.
    Large,
    /// It may map a large library later. A zombie is small, too.
    Small,
    /// It is a thread of the kernel.
    Kernel,
}

/// A process, and the CPU time that it used in some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy {
    /// Which process.
    pub identity: Identity,
    /// Whether it is large.
    pub large: bool,
    /// The CPU time that it used, in clock ticks.
    pub cpu: u64,
    /// The time in which it used that.
    pub time: Duration,
}

/// The CPU time of a process at some time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cpu: u64,
    at: Duration,
}

/// A process that is known.
#[derive(Debug)]
pub(super) struct Process {
    pub turn: Turn,
    /// The number of the last scan that has found it.
    pub scan: u64,
    /// It was started when the census went on: all its CPU time counts.
    pub from_birth: bool,
    /// It was put off once, as it had not worked yet.
    pub is_put_off: bool,
    /// When it became known.
    known: Duration,
    /// Apart, as most new processes end before they are read.
    read: Option<Box<Read>>,
}

/// What was read of a process.
#[derive(Debug)]
struct Read {
    start: u64,
    size: Size,
    first: Reading,
    previous: Reading,
    last: Reading,
    /// Since when it has used no CPU time.
    idle_since: Duration,
}

impl Process {
    pub(super) fn new(now: Duration, turn: Turn, scan: u64, from_birth: bool) -> Process {
        Process { turn, scan, from_birth, is_put_off: false, known: now, read: None }
    }

    /// Returns what distinguishes it from others, once it was read.
    pub(super) fn identity(&self, pid: u32) -> Option<Identity> {
        Some((pid, self.read.as_ref()?.start))
    }

    /// Takes what was read of it. It may be another process than before, with the same id.
    pub(super) fn take(&mut self, now: Duration, seen: &Seen) {
        let last = Reading { cpu: seen.cpu, at: now };
        let (start, size) = (seen.identity.1, seen.size);
        let (first, previous) = match &self.read {
            Some(read) if read.start == start => (read.first, read.last),
            before => {
                let is_new = before.is_some() || self.from_birth;
                let at = if before.is_some() { now } else { self.known };
                let first = Reading { cpu: if is_new { 0 } else { seen.cpu }, at };
                (first, first)
            }
        };
        let before = self.read.as_ref().filter(|read| read.start == start && read.last.cpu == seen.cpu);
        let idle_since = before.map_or(now, |read| read.idle_since);
        self.read = Some(Box::new(Read { start, size, first, previous, last, idle_since }));
    }

    /// Returns for how long it has used no CPU time, as far as readings show.
    pub(super) fn slept(&self, now: Duration) -> Duration {
        self.read.as_ref().map_or(Duration::ZERO, |read| now.saturating_sub(read.idle_since))
    }

    /// Returns the CPU time that it has used since it was known.
    pub(super) fn since_known(&self, pid: u32) -> Option<Busy> {
        let read = self.read.as_ref()?;
        Some(read.busy(pid, read.first))
    }

    /// Returns the CPU time that it has used between the last two readings.
    pub(super) fn lately(&self, pid: u32) -> Option<Busy> {
        let read = self.read.as_ref()?;
        Some(read.busy(pid, read.previous))
    }
}

impl Read {
    fn busy(&self, pid: u32, since: Reading) -> Busy {
        Busy {
            identity: (pid, self.start),
            large: self.size == Size::Large,
            cpu: self.last.cpu.saturating_sub(since.cpu),
            time: self.last.at.saturating_sub(since.at),
        }
    }
}
