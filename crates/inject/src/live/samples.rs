// SPDX-License-Identifier: Apache-2.0
//! Samples the state of all threads of a process, before all are stopped.

use crate::lent::{BeforeStop, NotLent};
use crate::ptrace::Tid;
use crate::seen::Seen;
use crate::threads;
use crate::timeout::TimedWait;
use crate::watch::Watch;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a sample counts. A thread may begin to wait with a timeout just after it; the timeout then becomes
/// longer by this time at most.
const FRESH: Duration = Duration::from_millis(1);

/// What one sample may take: where there are many threads, the samples count longer.
const SAMPLE_TAKES: Duration = Duration::from_micros(50);

/// The pause between two rounds of samples.
const PAUSE: Duration = Duration::from_micros(50);

/// The last sample of each thread at which a stop would not have been noticed.
///
/// A sample stays valid for a moment, whatever the thread does next. If the thread begins a wait with a timeout, that
/// wait is made again from its beginning. If the thread has just woken up, it may still be leaving a wait, and the
/// timeout of that wait may be over. A stop can then turn the result of the call into EINTR. In this case the call
/// returns what it returns after its timeout.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<Tid, Sample>);

/// A sample of a thread.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    /// The number of its sleeps, if it had just woken up from an unknown one.
    woken: Option<u64>,
    /// The wait with a timeout in which it was.
    wait: Option<TimedWait>,
}

impl Samples {
    /// Samples all threads but `lent`, again and again, until all samples are fresh, or until `patience` is over.
    ///
    /// # Errors
    /// A thread would notice a stop, or may.
    pub(super) fn take(
        &mut self,
        pid: i32,
        lent: Option<Tid>,
        watch: &mut Watch,
        patience: Duration,
    ) -> Result<(), NotLent> {
        let began = Instant::now();
        loop {
            let all: Vec<Tid> = threads::list(pid)?.into_iter().filter(|tid| Some(*tid) != lent).collect();
            let fresh = FRESH + SAMPLE_TAKES * all.len() as u32;
            let mut why = Ok(());
            for tid in &all {
                why = why.and(self.take_one(pid, *tid, watch, fresh));
            }
            let is_fresh = |tid: &Tid| self.0.get(tid).is_some_and(|sample| sample.at.elapsed() < fresh);
            match why {
                Ok(()) if all.iter().all(is_fresh) => return Ok(()),
                Err(why) if began.elapsed() >= patience => return Err(why),
                Ok(()) if began.elapsed() >= patience => return Err(NotLent::Aged(pid)),
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Samples one thread, unless its last sample is new.
    fn take_one(&mut self, pid: i32, tid: Tid, watch: &mut Watch, fresh: Duration) -> Result<(), NotLent> {
        let age = self.0.get(&tid).map(|sample| sample.at.elapsed());
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
        self.0.insert(tid, Sample { at, woken, wait });
        Ok(())
    }

    /// Returns what was seen of a thread.
    pub(super) fn before_stop(&self, tid: Tid, seen: Seen) -> BeforeStop {
        let sample = self.0.get(&tid);
        let (wait, woken) = (sample.and_then(|s| s.wait), sample.and_then(|s| s.woken));
        // The one that is waited for is not the only one that must stop.
        BeforeStop { seen, wait, woken, asks: Duration::ZERO }
    }
}
