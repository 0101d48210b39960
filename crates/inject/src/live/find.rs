// SPDX-License-Identifier: Apache-2.0
//! Finds the thread of a process that is lent.

use super::{Live, PAUSE, RETURN, STOP, late, urgent};
use crate::filter::{self, Forbids, Known};
use crate::lent::{Lent, NotLent, Slot, Stub, candidates};
use crate::ptrace::{Error, Tid};
use crate::threads;
use crate::watch::Stop;
use hugelift_linux::faultpoint;
use hugelift_linux::proc::procfs::Process;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long to search for a thread that can be lent.
const PATIENCE: Duration = Duration::from_secs(2);

impl Live {
    /// Takes the first thread that can be lent; with a slot it is to lead the others.
    pub(super) fn find(&mut self, slot: Option<Slot>) -> Result<Lent, NotLent> {
        if self.is_lost {
            return Err(NotLent::Lost(Error::Late(self.pid)));
        }
        let began = Instant::now();
        loop {
            let pid = self.pid;
            self.late.retain(|tid| late::release(pid, *tid, self.watch.timed(*tid)));
            // A thread that stops late is let go at once, and not after the next long step.
            let mut why = match self.late.first() {
                Some(tid) => NotLent::Trace(Error::Late(*tid)),
                None => NotLent::NoThread(self.pid),
            };
            // The thread that was lent last is tried alone before all others.
            let last = self.last.filter(|_| self.late.is_empty());
            let all: Vec<Tid> = match last {
                Some(tid) => vec![tid],
                None if self.late.is_empty() => candidates(self.pid)?,
                None => Vec::new(),
            };
            let each = |pass| all.iter().map(move |tid| (*tid, pass));
            let (mut forbidden, mut others) = (false, false);
            // Threads without a filter come first. A call that must be made again would end with EINTR if this
            // tracer died.
            let passes = [(false, false), (true, false), (false, true), (true, true)];
            let passes = if last.is_some() { &passes[..1] } else { &passes[..] };
            for (tid, &(takes_filtered, may_repeat)) in passes.iter().flat_map(each) {
                let known = match self.known_filters(tid) {
                    Ok(known) => known,
                    Err(forbids) => {
                        why = NotLent::Filtered(tid, forbids);
                        forbidden = true;
                        continue;
                    }
                };
                let is_filtered = !matches!(known, Known::None | Known::NotAsked);
                if is_filtered != takes_filtered && Some(tid) != self.last {
                    continue;
                }
                // Without a timer the waits have no limit, as those of other tracers.
                let _ = self.deadline.renew(faultpoint::patience(STOP));
                let taken = match self.watch.may_stop(self.pid, tid) {
                    Ok(Stop::Repeated | Stop::Shortened(_)) if !may_repeat => {
                        others = true;
                        continue;
                    }
                    stop => stop.and_then(|stop| {
                        let stub = slot.map_or(Stub::Lent(&mut self.caves), Stub::Leading);
                        let asks = urgent::asks(self.pid, tid);
                        Lent::take(&self.members, tid, stub, &self.memory, known, stop.timed(), asks)
                    }),
                };
                match taken {
                    Ok(lent) => {
                        if let Some(filters) = lent.filters() {
                            self.filters.insert(tid, Ok(Rc::clone(filters)));
                        }
                        self.last = Some(tid);
                        let _ = self.deadline.renew(faultpoint::patience(RETURN));
                        return Ok(lent);
                    }
                    Err(NotLent::Filtered(_, forbids)) => {
                        // Filters that forbid the leader's calls may still allow others.
                        if slot.is_none() {
                            self.filters.insert(tid, Err(forbids));
                        }
                        why = NotLent::Filtered(tid, forbids);
                        forbidden = true;
                    }
                    // A thread that dispatches its calls goes on doing so.
                    Err(NotLent::Dispatches(tid)) => {
                        why = NotLent::Dispatches(tid);
                        forbidden = true;
                    }
                    Err(NotLent::Trace(Error::Vanished(_))) => {}
                    Err(NotLent::Trace(Error::Late(_))) => {
                        self.late.push(tid);
                        why = NotLent::Trace(Error::Late(tid));
                        others = true;
                        break;
                    }
                    // The kernel refuses a thread that has just ended.
                    Err(NotLent::Trace(_)) if threads::has_ended(self.pid, tid) => {}
                    // What was begun can be undone once the process is continued.
                    Err(error @ NotLent::Stopped(_)) if self.stops.count > 0 => {
                        why = error;
                        others = true;
                        break;
                    }
                    Err(error) if error.is_final() => return Err(error),
                    Err(error) => {
                        why = error;
                        others = true;
                    }
                }
            }
            // Nobody has waited for its end yet: its directory in /proc is still there.
            let has_ended =
                || Process::new(self.pid.cast_unsigned()).stat().is_ok_and(|stat| stat.has_ended());
            if matches!(why, NotLent::NoThread(_)) && has_ended() {
                self.is_lost = true;
                return Err(NotLent::Lost(Error::Vanished(self.pid)));
            }
            self.last = None;
            if last.is_some() && self.late.is_empty() {
                continue;
            }
            // What a filter forbids it forbids later too.
            if forbidden && !others || began.elapsed() > PATIENCE {
                let is_still = matches!(why, NotLent::NoThread(_) | NotLent::Trace(Error::Late(_)));
                let frozen = is_still.then(|| self.frozen()).flatten();
                return Err(frozen.map_or(why, NotLent::Frozen));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns what is known of the seccomp filters of a thread, which runs.
    pub(super) fn known_filters(&self, tid: Tid) -> Result<Known, Forbids> {
        const STRICT: u32 = 1; // linux/seccomp.h
        let status = Process::new(self.pid.cast_unsigned()).status_of_thread(tid);
        match status.ok().and_then(|status| status.seccomp) {
            Some(STRICT) => Err(Forbids::Strict),
            _ if self.takes_filtered => Ok(Known::NotAsked),
            None | Some(0) => Ok(Known::None),
            Some(_) => match self.filters.get(&tid) {
                Some(Ok(filters)) => Ok(Known::Read(Rc::clone(filters))),
                Some(Err(forbids)) => Err(*forbids),
                None => filter::may_read().map(|()| Known::Unread).map_err(Forbids::Unread),
            },
        }
    }
}
