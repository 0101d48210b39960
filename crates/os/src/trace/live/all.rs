// SPDX-License-Identifier: Apache-2.0
//! All threads of a process but the lent one, stopped wherever they are, for the moment in which memory is
//! replaced that they write to.
//!
//! ```text
//!   look at each   until each was seen, within a moment, where a stop is not noticed
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
use crate::trace::filter;
use crate::trace::lent::NotLent;
use crate::trace::ptrace::{self, Error, Running, Stop, Stopped, Tid};
use crate::trace::seen::Seen;
use crate::trace::threads;
use crate::trace::timeout::TimedWait;
use crate::trace::waits::{self, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The longest time until all threads must have stopped: what the first one loses if the last one does not.
const GATHER: Duration = Duration::from_millis(10);

/// How long a look counts. A thread may begin to wait with a timeout just after it; the timeout then becomes
/// longer by this time at most.
const FRESH: Duration = Duration::from_millis(1);

/// What looking at one thread may take: where there are many, the looks count longer.
const LOOK: Duration = Duration::from_micros(50);

/// The pause between two rounds of looks.
const PAUSE: Duration = Duration::from_micros(50);

/// The stopped threads.
#[derive(Debug)]
pub(super) struct Others {
    pid: i32,
    halted: Vec<Halted>,
    filters: Filters,
}

/// What is known of the seccomp filters of the threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Filters {
    /// There are none, or they are not asked.
    None,
    /// Some threads may have filters.
    Some,
}

/// One stopped thread.
#[derive(Debug)]
struct Halted {
    stopped: Stopped,
    /// The signal that was about to be delivered; 0 for none.
    signal: i32,
    /// Its registers at the stop, if it makes its call again.
    own: Option<Regs>,
    /// Registers with which it does, and its wait, if that has a timeout.
    wait: Option<(Regs, TimedWait)>,
}

/// When each thread was seen where a stop is not noticed.
///
/// What a thread does afterwards does not matter for a moment: a wait that it begins then, with a timeout, is made
/// again from its beginning. A thread that has just woken up may still be on its way out of a wait whose timeout has
/// run out. If a stop makes of that an EINTR, the call returns what it returns after its timeout.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<Tid, Look>);

/// A look at a thread.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// How often it had slept, if it had just woken up from it is not known what.
    woken: Option<u64>,
    /// The wait with a timeout in which it was.
    wait: Option<TimedWait>,
}

impl Looks {
    /// Looks at all threads but `lent`, again and again, until each was seen well within one moment, or until
    /// `patience` is over.
    ///
    /// # Errors
    /// One that would notice a stop, or may.
    pub(super) fn look(
        &mut self,
        pid: i32,
        lent: Option<Tid>,
        watch: &mut Watch,
        patience: Duration,
    ) -> Result<(), NotLent> {
        let began = Instant::now();
        loop {
            let all: Vec<Tid> = threads::list(pid)?.into_iter().filter(|tid| Some(*tid) != lent).collect();
            let fresh = FRESH + LOOK * all.len() as u32;
            let mut why = Ok(());
            for tid in &all {
                why = why.and(self.look_at(pid, *tid, watch, fresh));
            }
            let is_fresh = |tid: &Tid| self.0.get(tid).is_some_and(|seen| seen.at.elapsed() < fresh);
            match why {
                Ok(()) if all.iter().all(is_fresh) => return Ok(()),
                Err(why) if began.elapsed() >= patience => return Err(why),
                Ok(()) if began.elapsed() >= patience => return Err(NotLent::NoThread(pid)),
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Looks at one thread, unless it was looked at just now.
    fn look_at(&mut self, pid: i32, tid: Tid, watch: &mut Watch, fresh: Duration) -> Result<(), NotLent> {
        let age = self.0.get(&tid).map(|seen| seen.at.elapsed());
        if age.is_some_and(|age| age < fresh / 4) {
            return Ok(());
        }
        let at = Instant::now();
        let (woken, wait) = match watch.may_stop(pid, tid) {
            Ok(stop) => (None, stop.timed()),
            Err(NotLent::Woken(_)) => (watch.sleeps(tid), None),
            // It waits since it was seen.
            Err(NotLent::Timed(..)) if age.is_some_and(|age| age < fresh) => return Ok(()),
            Err(why) => {
                self.0.remove(&tid);
                return Err(why);
            }
        };
        self.0.insert(tid, Look { at, woken, wait });
        Ok(())
    }

    /// Returns what the call of a stopped thread returns that had woken up already when it was looked at, and has
    /// not slept since.
    fn timed_out(&self, pid: i32, tid: Tid) -> Option<i64> {
        let woken = self.0.get(&tid)?.woken;
        let sleeps = Process::new(pid.cast_unsigned()).status_of_thread(tid).ok()?.sleeps;
        if woken.is_some() && woken == sleeps { waits::timed_out(pid, tid) } else { None }
    }

    /// Returns the wait with a timeout in which a thread was stopped.
    fn wait(&self, pid: i32, tid: Tid) -> Option<TimedWait> {
        self.0.get(&tid)?.wait.filter(|wait| wait.was_stopped(pid, tid))
    }
}

impl Others {
    /// Stops all threads but `lent`, also those that appear meanwhile. Those that do not stop in time are added to
    /// `late`.
    ///
    /// # Errors
    /// One cannot be stopped. All go on.
    pub(super) fn stop(
        pid: i32,
        lent: Option<Tid>,
        looks: &Looks,
        filters: Filters,
        late: &mut Vec<Tid>,
    ) -> Result<Others, NotLent> {
        let end = Instant::now() + crate::trace::faultpoint::patience(GATHER);
        let mut others = Others { pid, halted: Vec::new(), filters };
        let mut known: BTreeSet<Tid> = lent.into_iter().collect();
        match others.gather(&mut known, looks, end, late) {
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
        looks: &Looks,
        end: Instant,
        late: &mut Vec<Tid>,
    ) -> Result<(), NotLent> {
        loop {
            let all = threads::list(self.pid)?;
            let fresh: Vec<Tid> = all.into_iter().filter(|tid| known.insert(*tid)).collect();
            match fresh.is_empty() {
                true => return Ok(()),
                false => self.halt(&fresh, looks, end, late)?,
            }
        }
    }

    /// Stops these threads. What was seized must stop before it can be let go, so the first error counts when all
    /// have been waited for.
    fn halt(
        &mut self,
        fresh: &[Tid],
        looks: &Looks,
        end: Instant,
        late: &mut Vec<Tid>,
    ) -> Result<(), NotLent> {
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
                let why = unfit(self.pid, &stopped, stop).and(self.filters.check(&stopped));
                self.halted.push(Halted::new(self.pid, stopped, stop, looks)?);
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

    /// Lets all go on.
    pub(super) fn release(self) {
        for one in self.halted {
            one.release(self.pid);
        }
    }
}

impl Filters {
    /// Returns an error if the kernel may not continue the call of a stopped thread: its filter would answer
    /// restart_syscall(2), and may kill the process. It then makes the call itself again, which may wait longer.
    fn check(self, stopped: &Stopped) -> Result<(), NotLent> {
        if self == Filters::None {
            return Ok(());
        }
        let Some(regs) = stopped.regs()? else { return Ok(()) };
        let seen = Seen::of(stopped.tid(), stopped.tid());
        let Some(anew) = arch::made_anew(&regs, &seen.and_stopped(stopped), None) else { return Ok(()) };
        match filter::forbids_restart(stopped, regs.pc())? {
            Some(forbids) => {
                stopped.set_regs(&anew.regs)?;
                Err(NotLent::Filtered(stopped.tid(), forbids))
            }
            None => Ok(()),
        }
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
    fn new(pid: i32, stopped: Stopped, stop: Stop, looks: &Looks) -> Result<Halted, Error> {
        let signal = match stop {
            Stop::Signal(signal) => signal,
            Stop::Trap | Stop::Group(_) | Stop::Exec | Stop::Syscall => 0,
        };
        let (mut own, mut wait) = (None, None);
        if let Some(regs) = stopped.regs()?
            && let seen = Seen::of(pid, stopped.tid())
            && let Interrupted::Eintr(number, again, _) =
                arch::interrupted(&regs, &seen.and_stopped(&stopped))
            && waits::can_be_made_again(number)
            && !has_handler(pid, stopped.tid(), signal)
        {
            let timed_out = looks.timed_out(pid, stopped.tid());
            let returns = timed_out.and_then(|result| arch::returning(&regs, result));
            wait = looks.wait(pid, stopped.tid()).map(|wait| (again, wait));
            let again = wait.map_or(again, |(again, wait)| again.with_fourth_argument(wait.rest()));
            stopped.set_regs(&returns.unwrap_or(again))?;
            own = Some(regs);
        }
        Ok(Halted { stopped, signal, own, wait })
    }

    /// Lets it go on. A thread that has ended needs nothing.
    fn release(self, pid: i32) {
        if let Some(own) = self.own
            && is_handled(pid, self.stopped.tid())
        {
            let _ = self.stopped.set_regs(&own);
        } else if let Some((again, wait)) = self.wait {
            // The stop has taken some of the time.
            let _ = self.stopped.set_regs(&again.with_fourth_argument(wait.rest()));
        }
        let _ = self.stopped.detach(self.signal);
    }
}

/// Lets a thread go on that has not stopped in time, if it has stopped since. Returns whether it is still traced.
pub(super) fn release_late(pid: i32, tid: Tid) -> bool {
    match ptrace::poll(tid) {
        None => true,
        Some(came) => {
            if let Ok(halted) =
                came.and_then(|(stopped, stop)| Halted::new(pid, stopped, stop, &Looks::default()))
            {
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
