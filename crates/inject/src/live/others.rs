// SPDX-License-Identifier: Apache-2.0
//! Stops all threads of a process but the lent one, wherever they are, while memory that they write to is replaced.
//!
//! ```text
//!   sample each    until no thread would notice a stop, within a moment (`samples`)
//!   seize all      nobody is stopped by that
//!   interrupt all  in one go, so that the first waits for the last no longer than needed
//!   each           gets registers with which it waits for the word, if the tracer dies
//!   list again     until there is no thread that is not known
//! ```
//!
//! None of them runs before it is let go. A signal that is just being delivered is delivered first: the thread stops
//! at the first instruction of its handler.

use super::Live;
use super::region::Region;
use super::samples::Samples;
use crate::filter::Known;
use crate::lent::{Lent, NotLent, Stub};
use crate::ptrace::{self, Error, Running, Stop, Stopped, Tid};
use crate::seen::Seen;
use crate::{deadline, go_on, threads};
use hugelift_linux::faultpoint;
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The longest time until all threads must have stopped: what the first one loses if the last one does not.
const GATHER: Duration = Duration::from_millis(10);

/// The stopped threads, and what is needed to stop them.
pub(super) struct Others<'a> {
    pub(super) samples: &'a Samples,
    /// What is known of their seccomp filters.
    pub(super) filters: BTreeMap<Tid, Known>,
    pub(super) region: Region,
    pub(super) stopped: Vec<Lent>,
}

impl Live {
    /// Stops all threads but `leader`, also threads that appear meanwhile. Threads that do not stop in time are added to
    /// the late ones.
    ///
    /// # Errors
    /// One cannot be stopped. The others may be stopped already.
    pub(super) fn stop_others(&mut self, leader: Tid, others: &mut Others<'_>) -> Result<(), NotLent> {
        let _ = self.deadline.renew(faultpoint::patience(GATHER));
        let mut known = BTreeSet::from([leader]);
        loop {
            let all = threads::list(self.pid)?;
            let count = all.len();
            let fresh: Vec<Tid> = all.into_iter().filter(|tid| known.insert(*tid)).collect();
            match fresh.is_empty() {
                // While threads end, a listing may leave out one that lives (fs/proc/base.c, `next_tid`).
                true if Process::of(self.pid).count_threads() == Some(count) => return Ok(()),
                true if deadline::is_over() => return Err(NotLent::TooMany(self.pid)),
                true => {}
                false => self.stop_each(&fresh, others)?,
            }
        }
    }

    /// Stops these threads. What was seized must stop before it can be let go, so the first error counts when all
    /// have been waited for.
    fn stop_each(&mut self, fresh: &[Tid], others: &mut Others<'_>) -> Result<(), NotLent> {
        let mut first = Ok(());
        let mut running: Vec<(Running, Seen)> = Vec::with_capacity(fresh.len());
        for tid in fresh {
            match self.members.seize(*tid) {
                Ok(one) => running.push((one, Seen::of(self.pid, *tid))),
                Err(Error::Vanished(_)) => {}
                Err(Error::Late(tid)) => {
                    self.late.push(tid);
                    first = first.and(Err(Error::Late(tid).into()));
                }
                Err(_) if threads::has_ended(self.pid, *tid) => {}
                Err(error) => first = first.and(Err(error.into())),
            }
        }
        // One that has ended meanwhile is found by the wait.
        running.iter().for_each(|(one, _)| _ = one.interrupt());
        for (one, seen) in running {
            match self.stop_one(one, seen, others) {
                Ok(lent) => others.stopped.push(lent),
                Err(NotLent::Trace(Error::Vanished(_))) => {}
                Err(NotLent::Trace(Error::Late(tid))) => {
                    self.late.push(tid);
                    first = first.and(Err(Error::Late(tid).into()));
                }
                Err(why) => first = first.and(Err(why)),
            }
        }
        first
    }

    /// Waits for the stop of a thread, and prepares it.
    fn stop_one(&mut self, one: Running, seen: Seen, others: &Others<'_>) -> Result<Lent, NotLent> {
        let tid = one.tid();
        let came = deliver_signals(wait(one)?)?;
        // The first slot is the leader's.
        let slot = others.region.slot(others.stopped.len() + 1);
        let known = match others.filters.get(&tid) {
            Some(known) => Ok(known.clone()),
            None => self.known_filters(tid),
        };
        let known = known.map_err(|forbids| NotLent::Filtered(tid, forbids));
        let (known, slot) = match (known, slot) {
            (Ok(known), Some(slot)) => (known, slot),
            (known, _) => {
                go_on::let_go(self.pid, came, self.watch.timed(tid))?;
                return Err(known.err().unwrap_or(NotLent::TooMany(self.pid)));
            }
        };
        let before = others.samples.before_stop(tid, seen);
        let lent = Lent::of_stopped(self.pid, came, before, Stub::Waiting(slot), &self.memory, known);
        // Filters that forbid this may still allow what other borrowed threads do.
        if let Ok(lent) = &lent
            && let Some(filters) = lent.filters()
        {
            self.filters.insert(tid, Ok(Rc::clone(filters)));
        }
        lent
    }

    /// Lets the stopped threads go on.
    pub(super) fn let_go(&mut self, stopped: Vec<Lent>) {
        for lent in stopped {
            let tid = lent.tid();
            // One that has ended needs nothing.
            if let Ok(wait) = lent.let_go() {
                tid.zip(wait).into_iter().for_each(|(tid, wait)| self.watch.began_again(tid, wait));
            }
        }
    }
}

/// Waits for the stop of a thread; not at all once the time is over.
fn wait(one: Running) -> Result<(Stopped, Stop), Error> {
    match deadline::is_over() {
        true => ptrace::poll(one.tid()).unwrap_or(Err(Error::Late(one.tid()))),
        false => one.wait(),
    }
}

/// Delivers the signals at whose delivery a thread has stopped, until it stops elsewhere.
fn deliver_signals((mut stopped, mut stop): (Stopped, Stop)) -> Result<(Stopped, Stop), Error> {
    while let Stop::Signal(signal) = stop
        && !deadline::is_over()
    {
        (stopped, stop) = wait(stopped.resume_to_trap(signal)?)?;
    }
    Ok((stopped, stop))
}
