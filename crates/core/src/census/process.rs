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

/// A process that is known.
#[derive(Debug)]
pub(super) struct Process {
    pub turn: Turn,
    /// The number of the last scan that has found it.
    pub scan: u64,
    /// It was started when the census went on.
    pub from_birth: bool,
    /// It was put off once, as it had not worked yet.
    pub is_put_off: bool,
    /// Apart, as most new processes end before they are read.
    read: Option<Box<Read>>,
}

/// What was read of a process.
#[derive(Debug)]
struct Read {
    start: u64,
    /// The CPU time of all its threads, in clock ticks.
    cpu: u64,
    /// Since when it has used no CPU time.
    idle_since: Duration,
}

impl Process {
    pub(super) fn new(turn: Turn, scan: u64, from_birth: bool) -> Process {
        Process { turn, scan, from_birth, is_put_off: false, read: None }
    }

    /// Returns what distinguishes it from others, once it was read.
    pub(super) fn identity(&self, pid: u32) -> Option<Identity> {
        Some((pid, self.read.as_ref()?.start))
    }

    /// Takes what was read of it. It may be another process than before, with the same id.
    pub(super) fn take(&mut self, now: Duration, seen: &Seen) {
        let (start, cpu) = (seen.identity.1, seen.cpu);
        let before = self.read.as_ref().filter(|read| read.start == start && read.cpu == cpu);
        let idle_since = before.map_or(now, |read| read.idle_since);
        self.read = Some(Box::new(Read { start, cpu, idle_since }));
    }

    /// Returns for how long it has used no CPU time, as far as readings show.
    pub(super) fn slept(&self, now: Duration) -> Duration {
        self.read.as_ref().map_or(Duration::ZERO, |read| now.saturating_sub(read.idle_since))
    }
}
