// SPDX-License-Identifier: Apache-2.0
//! The events of the threads of a process.

use crate::event::Event;
use crate::records::Batch;
use crate::refusal::PerfError;
use crate::ring::Ring;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The most threads of a process that are sampled: each needs a file and 12 kB of locked memory.
pub const MOST: usize = 256;
/// Samples that fit into the ring of a thread, with some room.
pub const ROOM: u32 = 400;

/// The threads that are sampled.
#[derive(Debug)]
pub struct Threads {
    process: Process,
    rings: HashMap<i32, Ring>,
    /// In a box, as it is as large as all the rest.
    event: Box<Event>,
    /// The most threads that are sampled.
    most: usize,
    /// No more events can be opened: of files or of memory that may be locked there are no more.
    full: bool,
    buffer: Vec<u8>,
    /// The most threads that the process had.
    pub all: usize,
    /// The most threads that were sampled at a time.
    pub sampled: usize,
    /// Samples in the kernel are seen.
    pub sees_kernel: bool,
}

impl Threads {
    /// Samples the CPU clock of each thread; of more than `most`, of those that have used the most CPU time.
    ///
    /// # Errors
    /// There is no event for any thread.
    pub fn open(process: Process, period: Duration, most: usize) -> Result<Threads, PerfError> {
        Threads::open_event(process, Event::cpu_clock(period), most)
    }

    /// Opens any event for each thread; of more than `most`, for those that have used the most CPU time.
    ///
    /// # Errors
    /// There is no event for any thread.
    pub fn open_event(process: Process, event: Event, most: usize) -> Result<Threads, PerfError> {
        let mut threads = Threads {
            process,
            rings: HashMap::new(),
            event: Box::new(event),
            most,
            full: false,
            buffer: Vec::new(),
            all: 0,
            sampled: 0,
            sees_kernel: true,
        };
        let refused = match threads.try_follow() {
            Err(Errno::EACCES | Errno::EPERM) => {
                threads.sees_kernel = false;
                threads.try_follow()
            }
            other => other,
        };
        match refused {
            _ if !threads.rings.is_empty() => Ok(threads),
            Err(errno) => Err(PerfError::of(errno, threads.all)),
            Ok(()) => Err(PerfError::Vanished),
        }
    }

    /// Opens events for `most` threads of the process that was started then, and of no later one with its id.
    ///
    /// # Errors
    /// There is no event for any thread.
    pub fn open_of((pid, start): Identity, period: Duration, most: usize) -> Result<Threads, PerfError> {
        let process = Process::new(pid);
        let threads = Threads::open(process, period, most)?;
        match process.stat() {
            Ok(stat) if stat.start == start => Ok(threads),
            _ => Err(PerfError::Vanished),
        }
    }

    /// Opens events for new threads, and closes those of threads that have ended.
    pub fn follow(&mut self) {
        // A refusal means that there are no more events: `sampled` tells how many there were.
        let _ = self.try_follow();
    }

    fn try_follow(&mut self) -> Result<(), Errno> {
        let list = self.process.threads();
        let there: HashSet<i32> = list.iter().copied().collect();
        // Their last samples were read before.
        self.rings.retain(|thread, _| there.contains(thread));
        let mut all = list.len();
        let mut new: Vec<i32> = list.into_iter().filter(|thread| !self.rings.contains_key(thread)).collect();
        if self.rings.len() + new.len() > self.most && !self.full {
            let process = self.process;
            new.sort_by_cached_key(|thread| Reverse(cpu_time(process, *thread)));
            new.truncate(self.most - self.rings.len());
            // Later ones are left out: the CPU times of all would have to be read each time.
            self.full = true;
        } else if self.full {
            new.clear();
        }
        let mut result = Ok(());
        for thread in new {
            match Ring::open(thread, &self.event, !self.sees_kernel) {
                Ok(ring) => _ = self.rings.insert(thread, ring),
                Err(Errno::ESRCH) => all -= 1,
                Err(errno) => {
                    result = Err(errno);
                    self.full = !self.rings.is_empty();
                    break;
                }
            }
        }
        self.all = self.all.max(all);
        self.sampled = self.sampled.max(self.rings.len());
        result
    }

    /// Returns how many threads are sampled now.
    pub fn count(&self) -> usize {
        self.rings.len()
    }

    /// Adds the new samples of all threads.
    pub fn read(&mut self, batch: &mut Batch) {
        self.rings.values_mut().for_each(|ring| ring.read(batch, &mut self.buffer));
    }

    /// Ends the sampling, so that the PMU hands out what it still holds. Reading is still possible.
    pub fn stop(&mut self) {
        self.rings.values_mut().for_each(Ring::stop);
    }

    /// Sets the CPU time between two samples of a thread.
    pub fn set_period(&mut self, period: Duration) {
        self.event.set_period(period);
        self.rings.values().for_each(|ring| ring.set_period(period));
    }
}

/// Returns the CPU time of a thread in nanoseconds, 0 if it is unknown (Documentation/scheduler/sched-stats.rst in
/// Linux).
fn cpu_time(process: Process, thread: i32) -> u64 {
    let text = process.read(&format!("task/{thread}/schedstat")).unwrap_or_default();
    let first = text.split(|byte| *byte == b' ').next().and_then(|word| std::str::from_utf8(word).ok());
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}
