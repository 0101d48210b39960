// SPDX-License-Identifier: Apache-2.0
//! Stops all threads of a program but the first.

use crate::proc::procfs::Process;
use crate::trace::ptrace::{self, Error, Stop, Stopped, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;

/// The other threads of a process, stopped.
#[derive(Debug, Default)]
pub struct Threads {
    /// Each with the signal that was about to be delivered (0 for none).
    stopped: BTreeMap<Tid, (Stopped, i32)>,
}

impl Threads {
    /// Stops every thread of `pid` but the first, and lists the threads again until no new one appears.
    ///
    /// # Errors
    /// /proc cannot be read, or tracing a thread is not permitted.
    pub fn stop(pid: i32) -> Result<Threads, Error> {
        let mut threads = Threads::default();
        let mut seen = BTreeSet::from([pid]);
        loop {
            let fresh: Vec<Tid> = list(pid)?.into_iter().filter(|tid| seen.insert(*tid)).collect();
            if fresh.is_empty() {
                return Ok(threads);
            }
            for tid in fresh {
                match stop(tid) {
                    Ok((stopped, signal)) => {
                        threads.stopped.insert(tid, (stopped, signal));
                    }
                    Err(Error::Vanished(_)) => {}
                    Err(_) if has_ended(pid, tid) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Detaches from the threads, which go on.
    pub fn release(self) {
        for (stopped, signal) in self.stopped.into_values() {
            // A thread that has ended needs nothing.
            let _ = stopped.detach(signal);
        }
    }
}

/// Seizes and stops a thread; returns also the signal that was about to be delivered to it.
fn stop(tid: Tid) -> Result<(Stopped, i32), Error> {
    let running = ptrace::seize(tid)?;
    running.interrupt()?;
    let (stopped, stop) = running.wait()?;
    let signal = match stop {
        Stop::Signal(signal) => signal,
        Stop::Trap | Stop::Group(_) | Stop::Syscall | Stop::Exec => 0,
    };
    Ok((stopped, signal))
}

/// Returns whether a thread has ended: the kernel lists it for a while, and refuses to trace it.
pub(crate) fn has_ended(pid: i32, tid: Tid) -> bool {
    Process::new(pid.cast_unsigned()).stat_of_thread(tid).map_or(true, |stat| stat.has_ended())
}

/// Returns how many threads a process has, by the links of their directory.
pub(crate) fn count(pid: i32) -> Option<usize> {
    let links = std::fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink();
    // Two are those of any directory.
    usize::try_from(links.checked_sub(2)?).ok()
}

/// Lists the threads of a process.
pub(crate) fn list(pid: i32) -> Result<Vec<Tid>, Error> {
    let os = |source| Error::Os { what: "read the threads", tid: pid, source };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(os)? {
        if let Some(tid) = entry.map_err(os)?.file_name().to_str().and_then(|s| s.parse().ok()) {
            all.push(tid);
        }
    }
    Ok(all)
}
