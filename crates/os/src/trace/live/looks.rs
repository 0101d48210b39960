// SPDX-License-Identifier: Apache-2.0
//! Looks at all threads of a process, before all are stopped.

use crate::trace::lent::{Looked, NotLent};
use crate::trace::ptrace::Tid;
use crate::trace::seen::Seen;
use crate::trace::threads;
use crate::trace::timeout::TimedWait;
use crate::trace::waits::Watch;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a look counts. A thread may begin to wait with a timeout just after it; the timeout then becomes
/// longer by this time at most.
const FRESH: Duration = Duration::from_millis(1);

/// What looking at one thread may take: where there are many, the looks count longer.
const LOOK: Duration = Duration::from_micros(50);

/// The pause between two rounds of looks.
const PAUSE: Duration = Duration::from_micros(50);

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
                Ok(()) if began.elapsed() >= patience => return Err(NotLent::Aged(pid)),
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

    /// Returns what was seen of a thread.
    pub(super) fn looked(&self, tid: Tid, seen: Seen) -> Looked {
        let look = self.0.get(&tid);
        let (wait, woken) = (look.and_then(|look| look.wait), look.and_then(|look| look.woken));
        // The one that is waited for is not the only one that must stop.
        Looked { seen, wait, woken, asks: Duration::ZERO }
    }
}
