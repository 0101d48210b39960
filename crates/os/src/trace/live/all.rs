// SPDX-License-Identifier: Apache-2.0
//! All threads of a process but the lent one, stopped wherever they are, for the moment in which memory is
//! replaced that they write to.
//!
//! ```text
//!   look at each   is there one whose stop would be noticed?   then nobody is stopped
//!   seize all      nobody is stopped by that
//!   interrupt all  in one go, so that the first waits for the last no longer than needed
//!   list again     until there is no thread that is not known
//! ```
//!
//! None of them gets other registers, with one exception: a call that has ended with EINTR because of the stop is
//! made again. These registers are loaded as soon as the thread has stopped, so that it does not notice even if
//! the tracer is killed. If a signal has arrived meanwhile that has a handler, the call ends with EINTR by right,
//! and the thread gets its own registers back. Everything else the kernel does, as for a thread that no tracer
//! has stopped: restarted system calls, signals, restartable sequences.

use crate::arch::{self, Interrupted, Regs};
use crate::proc::procfs::Process;
use crate::trace::lent::NotLent;
use crate::trace::ptrace::{self, Error, Running, Stop, Stopped, Tid};
use crate::trace::threads;
use crate::trace::waits::{self, Watch};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The longest time until all threads must have stopped: what the first one loses if the last one does not.
const GATHER: Duration = Duration::from_millis(10);

/// CPU time passes in this pause, after which a running thread has left the call in which it woke up.
const RUNS: Duration = Duration::from_micros(60);

/// The stopped threads.
#[derive(Debug)]
pub(super) struct Others {
    pid: i32,
    halted: Vec<Halted>,
    began: Instant,
}

/// One stopped thread.
#[derive(Debug)]
struct Halted {
    stopped: Stopped,
    /// The signal that was about to be delivered; 0 for none.
    signal: i32,
    /// Its registers at the stop, if it makes its call again.
    own: Option<Regs>,
}

/// Returns nothing if no thread but `lent` would notice a stop now.
///
/// # Errors
/// The first one that would, or may.
pub(super) fn look(pid: i32, lent: Option<Tid>, watch: &mut Watch) -> Result<(), NotLent> {
    for tid in threads::list(pid)?.into_iter().filter(|tid| Some(*tid) != lent) {
        match watch.may_stop(pid, tid) {
            Err(NotLent::Woken(_)) => {
                std::thread::sleep(RUNS);
                watch.may_stop(pid, tid)?;
            }
            other => _ = other?,
        }
    }
    Ok(())
}

impl Others {
    /// Stops all threads but `lent`, also those that appear meanwhile. Those that do not stop in time are added to
    /// `late`.
    ///
    /// # Errors
    /// One cannot be stopped. All go on.
    pub(super) fn stop(pid: i32, lent: Option<Tid>, late: &mut Vec<Tid>) -> Result<Others, NotLent> {
        let began = Instant::now();
        let end = began + crate::trace::faultpoint::patience(GATHER);
        let mut others = Others { pid, halted: Vec::new(), began };
        let mut known: BTreeSet<Tid> = lent.into_iter().collect();
        match others.gather(&mut known, end, late) {
            Ok(()) => Ok(others),
            Err(why) => {
                others.release();
                Err(why)
            }
        }
    }

    /// Stops the threads that are not `known`, until there are none.
    fn gather(
        &mut self,
        known: &mut BTreeSet<Tid>,
        end: Instant,
        late: &mut Vec<Tid>,
    ) -> Result<(), NotLent> {
        loop {
            let all = threads::list(self.pid)?;
            let fresh: Vec<Tid> = all.into_iter().filter(|tid| known.insert(*tid)).collect();
            match fresh.is_empty() {
                true => return Ok(()),
                false => self.halt(&fresh, end, late)?,
            }
        }
    }

    /// Stops these threads. What was seized must stop before it can be let go, so the first error counts when all
    /// have been waited for.
    fn halt(&mut self, fresh: &[Tid], end: Instant, late: &mut Vec<Tid>) -> Result<(), NotLent> {
        let mut first = Ok(());
        let mut running: Vec<Running> = Vec::with_capacity(fresh.len());
        for tid in fresh {
            match ptrace::seize(*tid) {
                Ok(one) => running.push(one),
                Err(Error::Vanished(_)) => {}
                Err(_) if threads::has_ended(self.pid, *tid) => {}
                Err(error) => first = first.and(Err(error.into())),
            }
        }
        // One that has ended meanwhile is found by the wait.
        running.iter().for_each(|one| _ = one.interrupt());
        for one in running {
            let held = one.wait_until(end).map_err(NotLent::from).and_then(|(stopped, stop)| {
                let why = unfit(self.pid, &stopped, stop);
                self.halted.push(Halted::new(self.pid, stopped, stop)?);
                why
            });
            match held {
                Err(NotLent::Trace(Error::Vanished(_))) => {}
                Err(NotLent::Trace(Error::Late(tid))) => {
                    late.push(tid);
                    first = first.and(Err(Error::Late(tid).into()));
                }
                other => first = first.and(other),
            }
        }
        first
    }

    /// Lets all go on. Returns how long they were stopped.
    pub(super) fn release(self) -> Duration {
        for one in self.halted {
            one.release(self.pid);
        }
        self.began.elapsed()
    }
}

/// Returns an error if a stopped process, or another program, is no time for this.
fn unfit(pid: i32, stopped: &Stopped, stop: Stop) -> Result<(), NotLent> {
    match stop {
        Stop::Trap | Stop::Signal(_) => Ok(()),
        Stop::Group(signal) => Err(NotLent::Stopped(signal)),
        Stop::Exec => Err(NotLent::Exec(pid)),
        Stop::Syscall => Err(NotLent::Signal(stopped.tid())),
    }
}

impl Halted {
    /// Prepares a stopped thread, so that it may go on whenever the tracer dies.
    fn new(pid: i32, stopped: Stopped, stop: Stop) -> Result<Halted, Error> {
        let signal = match stop {
            Stop::Signal(signal) => signal,
            Stop::Trap | Stop::Group(_) | Stop::Exec | Stop::Syscall => 0,
        };
        let mut own = None;
        if let Some(regs) = stopped.regs()?
            && let Interrupted::Eintr(number, again) = arch::interrupted(&regs)
            && waits::can_be_made_again(number)
            && !has_handler(pid, stopped.tid(), signal)
        {
            stopped.set_regs(&again)?;
            own = Some(regs);
        }
        Ok(Halted { stopped, signal, own })
    }

    /// Lets it go on. A thread that has ended needs nothing.
    fn release(self, pid: i32) {
        if let Some(own) = self.own
            && is_handled(pid, self.stopped.tid())
        {
            let _ = self.stopped.set_regs(&own);
        }
        let _ = self.stopped.detach(self.signal);
    }
}

/// Lets a thread go on that has not stopped in time, if it has stopped since. Returns whether it is still traced.
pub(super) fn release_late(pid: i32, tid: Tid) -> bool {
    match ptrace::poll(tid) {
        None => true,
        Some(came) => {
            if let Ok(halted) = came.and_then(|(stopped, stop)| Halted::new(pid, stopped, stop)) {
                halted.release(pid);
            }
            false
        }
    }
}

/// Returns whether a signal has a handler.
fn has_handler(pid: i32, tid: Tid, signal: i32) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    signal != 0 && status.is_ok_and(|status| status.caught >> (signal - 1) & 1 != 0)
}

/// Returns whether a signal is pending for which a handler runs when the thread goes on. What it blocks counts
/// as it is now: epoll_pwait(2) has a mask of its own.
fn is_handled(pid: i32, tid: Tid) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    status.is_ok_and(|status| status.pending & status.caught & !status.blocked != 0)
}
