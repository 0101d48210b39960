// SPDX-License-Identifier: Apache-2.0
//! Watches the threads of a process, to find those that would not notice a stop.
//!
//! A stop must neither begin a timeout anew nor come just after its end. In the second case the thread is about to
//! return from its wait, and the stop turns the result into EINTR. Such a thread is in state running, as a thread that
//! computes, but it uses less CPU time. A thread that was seen in its last wait is known too: its count of sleeps is
//! still the same.

use crate::arch::Call;
use crate::lent::NotLent;
use crate::ptrace::{Error, Tid};
use crate::threads;
use crate::timeout::TimedWait;
use crate::waits::{Wait, call_of, has_timeout, is_ended_by_stops, wait};
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;

/// CPU time in nanoseconds after which a thread has surely left the system call in which it woke up.
const LEAVES_WITHIN: u64 = 50_000;

/// What was seen of the threads of a process, to find those whose stop would not be noticed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The threads as they were at the last check.
    seen: BTreeMap<Tid, Seen>,
    /// The last waits with a timeout that were found, or interrupted and made again.
    timed: BTreeMap<Tid, TimedWait>,
}

/// A thread that ran, or waited in a call that a stop does not harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    ran: Ran,
    /// What a stop does, until the thread sleeps again; `None` if it is not known where it has slept last.
    stop: Option<Stop>,
}

/// How long a thread has run, and how often it went to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ran {
    nanos: u64,
    sleeps: u64,
}

impl Watch {
    /// Returns what a stop of thread `tid` does, if the thread does not notice it
    /// (`/proc/PID/task/TID/syscall`, proc_pid_syscall(5)).
    ///
    /// # Errors
    /// [`NotLent::Timed`], [`NotLent::CutShort`], [`NotLent::Woken`]; or the thread has ended
    pub fn may_stop(&mut self, pid: i32, tid: Tid) -> Result<Stop, NotLent> {
        // Read first: if the count is the same later, the thread was in its last sleep when it was seen waiting.
        let now = ran(pid, tid);
        // A kernel that does not show the call of a thread (CONFIG_HAVE_ARCH_TRACEHOOK) may have it in any.
        let call = call_of(pid, tid);
        if now.is_none() && call.is_none() && threads::has_ended(pid, tid) {
            return Err(Error::Vanished(tid).into());
        }
        let Some(call @ Call { number, args, .. }) = call else { return self.may_stop_running(tid, now) };
        self.seen.remove(&tid);
        let stop = match wait(number, &args) {
            Wait::Unnoticed if is_ended_by_stops(number) => Stop::Repeated,
            Wait::Unnoticed => Stop::Continued,
            Wait::WrittenBack(rest) if rest.can_be_written(pid, tid, &call) => Stop::Continued,
            Wait::OnSocket if !has_timeout(pid, args[0] as i32) => Stop::Continued,
            Wait::InRegister(timeout) => {
                let known = self.timed.get(&tid).copied();
                let found = TimedWait::find(pid, tid, timeout, known).ok_or(NotLent::Timed(tid, number))?;
                self.timed.insert(tid, found);
                // When it has woken up, it may soon begin another wait.
                return Ok(Stop::Shortened(found));
            }
            Wait::Timed | Wait::OnSocket => return Err(NotLent::Timed(tid, number)),
            Wait::CutShort | Wait::WrittenBack(_) => return Err(NotLent::CutShort(tid, number)),
        };
        self.seen.extend(now.map(|ran| (tid, Seen { ran, stop: Some(stop) })));
        Ok(stop)
    }

    /// Returns the last wait with a timeout in which a thread was seen.
    pub fn timed(&self, tid: Tid) -> Option<TimedWait> {
        self.timed.get(&tid).copied()
    }

    /// Records the wait that a thread has begun again, whose timeout has been rounded up.
    pub fn began_again(&mut self, tid: Tid, wait: TimedWait) {
        self.timed.insert(tid, wait);
    }

    /// Returns how often a thread had slept at its last check, if it ran then.
    pub fn sleeps(&self, tid: Tid) -> Option<u64> {
        self.seen.get(&tid).map(|seen| seen.ran.sleeps)
    }

    /// Returns what a stop does to a thread that runs, if it was seen in its last sleep, or has run for some time
    /// since an earlier check, without a sleep.
    fn may_stop_running(&mut self, tid: Tid, now: Option<Ran>) -> Result<Stop, NotLent> {
        // A kernel that does not count (CONFIG_SCHED_INFO) leaves no way to find out.
        let Some(now) = now else { return Ok(Stop::Continued) };
        match self.seen.get(&tid).filter(|seen| seen.ran.sleeps == now.sleeps) {
            Some(seen) if seen.ran.has_left_its_call(now) => Ok(Stop::Continued),
            Some(Seen { stop, .. }) => stop.ok_or(NotLent::Woken(tid)),
            None => {
                self.seen.insert(tid, Seen { ran: now, stop: None });
                Err(NotLent::Woken(tid))
            }
        }
    }
}

/// What a stop does to a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It goes on as if there had been none, even if the tracer dies.
    Continued,
    /// It ends the call of the thread with EINTR, and the tracer has the call made again.
    Repeated,
    /// The same; the tracer has the call made again with the rest of its timeout.
    Shortened(TimedWait),
}

impl Stop {
    /// Returns the wait whose timeout is to be shortened.
    pub fn timed(self) -> Option<TimedWait> {
        match self {
            Stop::Shortened(wait) => Some(wait),
            Stop::Continued | Stop::Repeated => None,
        }
    }
}

impl Ran {
    /// Returns whether a thread that was seen running, and is now, has left the call in which it woke up.
    fn has_left_its_call(self, now: Ran) -> bool {
        now.sleeps == self.sleeps && now.nanos.saturating_sub(self.nanos) >= LEAVES_WITHIN
    }
}

/// Reads how long a thread has run (`/proc/PID/task/TID/schedstat`) and how often it went to sleep.
fn ran(pid: i32, tid: Tid) -> Option<Ran> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    let sleeps = Process::new(pid.cast_unsigned()).status_of_thread(tid).ok()?.sleeps?;
    Some(Ran { nanos, sleeps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_thread_must_have_run_since() {
        let then = Ran { nanos: 1_000_000, sleeps: 7 };
        for (nanos, sleeps, left) in [
            (1_050_000, 7, true),
            (1_049_999, 7, false),
            (1_000_000, 7, false),
            (900_000, 7, false),
            (2_000_000, 8, false),
        ] {
            assert_eq!(then.has_left_its_call(Ran { nanos, sleeps }), left, "{nanos} {sleeps}");
        }
        let mut watch = Watch::default();
        let now = |sleeps| Some(Ran { nanos: 1_000_000, sleeps });
        for stop in [None, Some(Stop::Repeated)] {
            watch.seen.insert(1, Seen { ran: then, stop });
            assert_eq!(watch.may_stop_running(1, now(7)).ok(), stop, "it is known where it slept, or not");
        }
        assert!(watch.may_stop_running(1, now(8)).is_err(), "it has slept since");

        let own = std::process::id().cast_signed();
        let thread = nix::unistd::gettid().as_raw();
        let first = Watch::default().may_stop_running(thread, ran(own, thread));
        match ran(own, own) {
            Some(_) => assert!(matches!(first, Err(NotLent::Woken(_))), "the first check"),
            None => println!("SKIP: this kernel has no /proc/PID/schedstat"),
        }
    }
}
