// SPDX-License-Identifier: Apache-2.0
//! Stops the threads that a program has beside its first one.

use crate::proc::procfs::Process;
use crate::trace::ptrace::{self, Error, Stop, Stopped, Tid};
use std::collections::{BTreeMap, BTreeSet};

/// The other threads of a process, stopped.
#[derive(Debug, Default)]
pub struct Threads {
    /// With the signal that each was about to get (0 for none).
    stopped: BTreeMap<Tid, (Stopped, i32)>,
}

impl Threads {
    /// Stops every thread of `pid` but the first, and looks again until no new one appears.
    ///
    /// # Errors
    /// /proc cannot be read, or a thread may not be traced.
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

    /// Lets them go on.
    pub fn release(self) {
        for (stopped, signal) in self.stopped.into_values() {
            // One that is gone needs nothing.
            let _ = stopped.detach(signal);
        }
    }
}

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

/// The kernel lists a thread for a while after its end, and refuses to trace it.
fn has_ended(pid: i32, tid: Tid) -> bool {
    Process::new(pid.cast_unsigned()).stat_of_thread(tid).map_or(true, |stat| stat.has_ended())
}

fn list(pid: i32) -> Result<Vec<Tid>, Error> {
    let os = |source| Error::Os { what: "read the threads", tid: pid, source };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(os)? {
        if let Some(tid) = entry.map_err(os)?.file_name().to_str().and_then(|s| s.parse().ok()) {
            all.push(tid);
        }
    }
    Ok(all)
}
