// SPDX-License-Identifier: Apache-2.0
//! The threads of a process.
//!
//! ptrace(2) knows a thread by its number alone. When a thread has ended, its number may be given to a thread of another
//! process (`kernel.pid_max`, pid_namespaces(7)). So who wants to trace a thread asks afterwards whether it is one of the
//! process that is meant (`Members::seize`): a traced thread keeps its number until its tracer has waited for it.

use crate::deadline;
use crate::go_on;
use crate::ptrace::{self, Error, Running, Stop, Stopped, Tid};
use hugelift_linux::proc::procfs::Process;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

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
            let all = list(pid)?;
            let listed = all.len();
            let fresh: Vec<Tid> = all.into_iter().filter(|tid| seen.insert(*tid)).collect();
            // While threads end, a listing may leave out one that lives (fs/proc/base.c, `next_tid`).
            match fresh.is_empty() {
                true if Process::of(pid).count_threads() == Some(listed) => return Ok(threads),
                true if deadline::is_over() => return Err(Error::TooMany(pid)),
                _ => {}
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

#[cfg(test)]
mod tests {
    use super::deadline::Deadline;
    use super::*;
    use std::time::{Duration, Instant};

    /// Makes `work` in a child, and returns the child.
    fn child(work: impl FnOnce()) -> i32 {
        // SAFETY: the child calls `work`, and ends. glibc lets it allocate.
        match unsafe { libc::fork() } {
            0 => {
                // It ends with the test.
                let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // SAFETY: _exit(2) takes a number.
                unsafe { libc::_exit(i32::from(done.is_err())) }
            }
            pid => pid,
        }
    }

    /// Waits until a condition is met.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "waited for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process has two threads. Each waits for a while, and then the first executes another program.
    fn executes_at_once_told(begin: &std::os::fd::OwnedFd) {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        nix::unistd::read(begin, &mut [0]).expect("read(2)");
        let words = [c"/bin/sleep", c"60"];
        nix::unistd::execv(words[0], &words).expect("execv(3)");
    }

    /// A thread of the process is traced when the other calls execve(2): that call cannot return before the tracer has
    /// waited for the first thread's end, and PTRACE_SEIZE of the second thread not before that call has returned.
    fn trace_one_then_the_other() {
        let _deadline = Deadline::within(Duration::from_millis(100)).expect("a timer");
        let (begin, tell) = nix::unistd::pipe().expect("pipe(2)");
        let pid = child(|| executes_at_once_told(&begin));
        until("its threads", || Process::of(pid).count_threads() == Some(2));
        let members = Members::of(pid).expect("its threads");
        let other = list(pid).expect("its threads").into_iter().find(|tid| *tid != pid).expect("a thread");
        let running = members.seize(other).expect("it is traced");
        nix::unistd::write(&tell, b"x").expect("write(2)");
        until("the end of the other thread", || has_ended(pid, other));
        let seized = members.seize(pid);
        // SAFETY: kill(2) takes numbers. The child was not waited for, so that its number is its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        seized.expect("the first thread is traced");
        assert!(matches!(running.wait(), Err(Error::Vanished(_))));
    }

    #[test]
    fn a_thread_that_executes_a_program_does_not_hang_its_tracer() {
        // The timer's signal must come to the tracer: it is a process of one thread.
        let tracer = child(trace_one_then_the_other);
        let mut status = 0;
        let deadline = Instant::now() + Duration::from_secs(30);
        // SAFETY: waitpid(2) writes to a live i32.
        while unsafe { libc::waitpid(tracer, &raw mut status, libc::WNOHANG) } != tracer {
            if Instant::now() > deadline {
                // SAFETY: kill(2) takes numbers. The child was not waited for, so that its number is its own.
                unsafe { libc::kill(tracer, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(status, 0, "the status of the tracer, which ends by signal 9 if it hangs");
    }
}
