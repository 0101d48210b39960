// SPDX-License-Identifier: Apache-2.0
//! The threads of a process.
//!
//! ptrace(2) knows a thread by its number alone. When a thread has ended, its number may be given to a thread of another
//! process (`kernel.pid_max`, pid_namespaces(7)). So who wants to trace a thread asks afterwards whether it is one of the
//! process that is meant (`Members::seize`): a traced thread keeps its number until its tracer has waited for it.

use crate::go_on;
use crate::ptrace::{self, Error, Running, Stop, Stopped, Tid};
use hugelift_linux::proc::procfs::Process;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

/// The threads of one process, and of no later one with the same id.
#[derive(Debug)]
pub(crate) struct Members {
    pid: i32,
    /// `/proc/PID/task`, which has no entries any more once the process has ended.
    tasks: File,
}

impl Members {
    /// Returns the threads of the process that has this id now.
    ///
    /// # Errors
    /// There is no such process, or its /proc cannot be read.
    pub(crate) fn of(pid: i32) -> Result<Members, Error> {
        let tasks = File::open(format!("/proc/{pid}/task"));
        let os = |source| Error::Os { what: "read the threads", tid: pid, source };
        tasks.map(|tasks| Members { pid, tasks }).map_err(os)
    }

    /// Returns the id of the process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether a thread is one of the process.
    pub(crate) fn has(&self, tid: Tid) -> bool {
        fstatat(&self.tasks, tid.to_string().as_str(), AtFlags::empty()).is_ok()
    }

    /// Starts to trace a thread of the process without stopping it. The thread of another process that has got its number
    /// goes on.
    ///
    /// # Errors
    /// [`Error::Vanished`] if the process has no such thread; [`Error::Late`] if another one has the number, and did not
    /// stop in time; see also [`ptrace::seize`].
    pub(crate) fn seize(&self, tid: Tid) -> Result<Running, Error> {
        let running = ptrace::seize(tid)?;
        if self.has(tid) {
            return Ok(running);
        }
        // Only a thread that has stopped can be let go.
        running.interrupt()?;
        let came = running.wait()?;
        tracing::debug!(tid, process = self.pid, "a thread of another process has this number");
        go_on::let_go(tid, came, None)?;
        Err(Error::Vanished(tid))
    }
}

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
        let members = Members::of(pid)?;
        let mut threads = Threads::default();
        let mut seen = BTreeSet::from([pid]);
        loop {
            let fresh: Vec<Tid> = list(pid)?.into_iter().filter(|tid| seen.insert(*tid)).collect();
            if fresh.is_empty() {
                return Ok(threads);
            }
            for tid in fresh {
                match stop(&members, tid) {
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
fn stop(members: &Members, tid: Tid) -> Result<(Stopped, i32), Error> {
    let running = members.seize(tid)?;
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
    Process::new(pid.cast_unsigned()).stat_of_thread(tid).map_or(true, |stat| stat.thread_has_ended())
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
