// SPDX-License-Identifier: Apache-2.0
//! A thread of a running process that is lent for a few system calls: it is stopped wherever it is, makes
//! the calls, and goes on as if nothing had happened. All other threads run on.
//!
//! Nothing is written to its stack. The stack of a goroutine or a coroutine, or an alternate signal stack,
//! is a few kB of somebody's heap, with no room below the stack pointer. Instead the code that makes the
//! calls holds the thread's own registers as constants ([`crate::arch::lent_stub`]):
//!
//! ```text
//!   code cave:  | syscall | rt_sigprocmask(old mask) | load registers | jump to old pc | constants |
//!                 ^ pc, with the call's number and arguments loaded by the tracer
//! ```
//!
//! The tracer stops the thread after `syscall`, and either loads the next call or gives the thread its
//! registers and its signal mask back. If the tracer is killed, the kernel lets the thread go on: it ends its
//! call, sets its own mask, loads its registers, and jumps to where it was.
//!
//! The stop must not be seen by the program. Its last stop is of the same kind as its first: inside the
//! kernel, before signals are delivered. There the thread gets its registers back as they were, also the
//! codes that make the kernel restart an interrupted system call, and the kernel does the rest, with the
//! signals that have arrived meanwhile. Only the code in the cave, which runs if the tracer dies, has these
//! codes applied already.
//!
//! Where the kernel has applied these codes before the stop, the registers alone do not bring the thread back:
//! a signal that arrives now must end some calls with EINTR. There the thread gets the codes at the end of a
//! last call of ours ([`CallEnd`]), on its way to the last stop.
//!
//! Some calls end with EINTR after any stop (signal(7)). Such a call is made again, unless a signal is
//! pending, which would have ended it too. Its relative timeout would begin anew. The timeout of
//! epoll_wait(2) is shortened (`TimedWait`); a thread that is found waiting in another such call with a timeout is not
//! stopped at all.

mod call;
mod memory;
mod not_lent;
mod own;
mod prepare;
mod stub;

pub use not_lent::NotLent;
pub(crate) use prepare::BeforeStop;
pub(crate) use stub::{Slot, Stub};

use crate::arch::CallEnd;
use crate::caves::{CAVE_BYTES, DATA_BYTES};
use crate::deadline;
use crate::filter::{self, Known, Refusal};
use crate::ptrace::{Error, Resume, Stop, Stopped, Tid};
use crate::seen::Seen;
use crate::threads::Members;
use crate::timeout::{TimedWait, shortened};
use call::Ended;
use hugelift_core::addr::Addr;
use hugelift_core::seccomp::Filters;
use hugelift_linux::proc::procfs::Process;
use memory::{is_same_program, poke};
use nix::fcntl::Flock;
use own::Own;
use prepare::{Prepared, Refused, prepare, why_not};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Arguments with which mmap(2) and mremap(2) do nothing: a length of 0 is EINVAL.
const NOTHING: [u64; 6] = [0; 6];

/// A stopped thread with the code that gives it back.
#[derive(Debug)]
pub struct Lent {
    pid: i32,
    /// See [`Lent::take`].
    memory: Rc<Flock<File>>,
    /// `None` once control of it is lost.
    stopped: Option<Stopped>,
    /// Where its code is.
    cave: Addr,
    /// The code is in a cave, which is cleared afterwards.
    is_cave: bool,
    /// Where the bytes are that arguments point to.
    data: Addr,
    /// Such bytes have been written outside of the cave.
    has_data: bool,
    own: Own,
    /// Just before its stop.
    since: Instant,
    /// For how long its next stop is asked for before the tracer sleeps.
    asks: Duration,
    /// Its seccomp filters, if they are asked before each call.
    filters: Option<Rc<Filters>>,
    /// The last call that they forbade.
    refused: Option<Refusal>,
    /// What the last call has raised instead. The thread is stopped where this signal would be delivered.
    raised: Option<i32>,
    /// The code that was written to the cave.
    code: Vec<u8>,
}

impl Lent {
    /// Stops thread `tid` of a process, which may be stopped, and prepares it. `memory` is the process's
    /// `/proc/PID/mem`, open for reading and writing: after execve(2) it reads and writes nothing, where a path
    /// would lead to the new program. `known` is what is known of its seccomp filters, `wait` the wait with a
    /// timeout in which it seemed to be, `asks` for how long its stops are asked for before the tracer sleeps.
    ///
    /// # Errors
    /// [`NotLent`]. The thread then goes on as if nothing had happened.
    pub(crate) fn take(
        members: &Members,
        tid: Tid,
        stub: Stub<'_>,
        memory: &Rc<Flock<File>>,
        known: Known,
        wait: Option<TimedWait>,
        asks: Duration,
    ) -> Result<Lent, NotLent> {
        let pid = members.pid();
        let running = members.seize(tid)?;
        let seen = Seen::of(pid, tid);
        running.interrupt()?;
        let (stopped, stop) = running.wait_asking(asks)?;
        let before = BeforeStop { seen, wait, woken: None, asks };
        Lent::of_stopped(pid, (stopped, stop), before, stub, memory, known)
    }

    /// Prepares a thread that has stopped in this way.
    ///
    /// # Errors
    /// See [`Lent::take`].
    pub(crate) fn of_stopped(
        pid: i32,
        (mut stopped, stop): (Stopped, Stop),
        before: BeforeStop,
        mut stub: Stub<'_>,
        memory: &Rc<Flock<File>>,
        known: Known,
    ) -> Result<Lent, NotLent> {
        let (since, asks) = (before.seen.at(), before.asks);
        let prepared = match why_not(pid, stopped.tid(), stop) {
            Some(refused) => Err(refused),
            None => prepare(pid, &mut stopped, before, &mut stub, memory, known),
        };
        match prepared {
            Ok(Prepared { cave, code, own, filters }) => Ok(Lent {
                pid,
                memory: Rc::clone(memory),
                stopped: Some(stopped),
                cave,
                data: stub.data(),
                is_cave: matches!(stub, Stub::Lent(_)),
                has_data: false,
                own,
                since,
                asks,
                filters,
                refused: None,
                raised: None,
                code,
            }),
            // It has not stopped again.
            Err(Refused { why: why @ NotLent::Trace(Error::Late(_)), .. }) => Err(why),
            Err(Refused { why, signal }) => {
                stopped.detach(signal)?;
                Err(why)
            }
        }
    }

    /// Returns the thread; `None` once control of it is lost.
    pub fn tid(&self) -> Option<Tid> {
        self.stopped.as_ref().map(Stopped::tid)
    }

    /// Returns the moment just before its stop.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns its seccomp filters, if they are asked before each call.
    pub fn filters(&self) -> Option<&Rc<Filters>> {
        self.filters.as_ref()
    }

    /// Returns the last call that its filters forbade, which was not made.
    pub fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    /// Makes one system call in the thread. Returns what it returned: a value, or a negative errno. A call that
    /// a seccomp filter would answer is not made, and has failed.
    ///
    /// # Errors
    /// The thread has ended, or did not stop in time; or ([`Error::Raised`]) it cannot make calls for us, now and later,
    /// and can be given back.
    pub fn call(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        self.call_unless(number, args, &mut || None)
    }

    /// Makes one system call, unless `refuse` finds a reason against it: that is asked when the thread is in the kernel
    /// and about to make the call. Returns what the call returned, or the negative errno of the reason.
    ///
    /// # Errors
    /// See [`Lent::call`].
    pub(crate) fn call_unless(
        &mut self,
        number: i64,
        args: [u64; 6],
        refuse: &mut dyn FnMut() -> Option<i32>,
    ) -> Result<i64, Error> {
        if let Some(filters) = &self.filters
            && let Err(refusal) = filter::check(filters, self.cave, number, &args)
        {
            self.refused = Some(refusal);
            return Ok(refusal.result());
        }
        // A call that is refused is made with arguments that do nothing. Filters may not allow it so: then this is asked now.
        let allows = |filters: &Rc<Filters>| filter::check(filters, self.cave, number, &NOTHING).is_ok();
        let asks_late = self.filters.as_ref().is_none_or(allows);
        if !asks_late && let Some(errno) = refuse() {
            return Ok(i64::from(-errno));
        }
        let mut stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        let tid = stopped.tid();
        let regs = self.own.regs.at(self.cave, self.own.regs.sp()).with_syscall(number, args);
        let mut refused: Option<i32> = None;
        let mut at_entry = |stopped: &Stopped| {
            if asks_late
                && let Some(regs) = stopped.regs()?
                && let Some(errno) = refuse()
            {
                refused = Some(errno);
                stopped.set_regs(&regs.with_syscall(number, NOTHING))?;
            }
            Ok(())
        };
        let ended = match self.raised {
            Some(signal) => Ended::Raised(signal),
            None => call::run(&mut stopped, &regs, self.asks, &mut at_entry)?,
        };
        self.stopped = Some(stopped);
        match ended {
            Ended::With(result) => Ok(refused.map_or(result, |errno| i64::from(-errno))),
            Ended::Raised(signal) => {
                self.raised = Some(signal);
                Err(Error::Raised { tid, signal })
            }
            Ended::Exec => Err(Error::Vanished(tid)),
        }
    }

    /// Writes what arguments of the next calls point to: at most [`DATA_BYTES`], a multiple of 8.
    ///
    /// # Errors
    /// The thread's process is gone.
    pub fn write_data(&mut self, bytes: &[u8]) -> Result<Addr, Error> {
        let stopped = self.stopped.as_ref().ok_or(Error::Vanished(self.pid))?;
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(8), 0);
        self.has_data = true;
        poke(stopped, &self.memory, self.data, &padded)?;
        Ok(self.data)
    }

    /// Writes to memory of the process that it may write to itself.
    ///
    /// # Errors
    /// errno(3)
    pub fn write(&self, at: Addr, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, at.0)
    }

    /// Gives the thread its registers and its signal mask back, clears the cave, and lets the thread go on.
    /// Returns the wait with a timeout that it begins again, if there is one.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) fn give_back(mut self) -> Result<Option<TimedWait>, Error> {
        if !self.is_same_program() {
            return self.abandon();
        }
        let decided = if self.raised.is_none() { self.decide_again()? } else { None };
        let mut stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        let tid = stopped.tid();
        let Own { regs, wait, mask, .. } = self.own;
        let rest;
        // In this order the thread has its own mask whenever it has its own registers.
        match decided {
            Some(end) => {
                stopped.set_signal_mask(mask)?;
                rest = wait.map(|wait| wait.rest());
                stopped.set_regs(&shortened(end.regs, rest))?;
                stopped = to_trap(stopped, self.asks)?;
            }
            None => {
                // A thread that was in no system call can go on from the end of ours. Where a signal would be delivered,
                // the kernel is about to do the same as at the trap.
                if regs.is_in_call() && self.raised.is_none() && !call::to_trap(&mut stopped, self.asks)? {
                    return stopped.detach(0).map(|()| None);
                }
                stopped.set_signal_mask(mask)?;
                let own;
                (own, rest) = self.own.back(self.pid, tid);
                stopped.set_regs(&own)?;
            }
        }
        self.clear(&stopped);
        let wait = wait.zip(rest).and_then(|(wait, rest)| wait.again(self.pid, tid, rest));
        stopped.detach(0).map(|()| wait)
    }

    /// Clears the cave and what arguments pointed to, if our code is still there: another thread may have unmapped it, and
    /// mapped something else. What cannot be cleared stays, as the code of a tracer that was killed does.
    fn clear(&self, stopped: &Stopped) {
        if !self.is_cave || !self.has_its_code() {
            return;
        }
        let _ = poke(stopped, &self.memory, self.cave, &[0; CAVE_BYTES]);
        if self.has_data {
            let _ = poke(stopped, &self.memory, self.data, &[0; DATA_BYTES]);
        }
    }

    /// Returns whether our code is where it was written to.
    fn has_its_code(&self) -> bool {
        let mut now = vec![0; self.code.len()];
        self.memory.read_exact_at(&mut now, self.cave.0).is_ok() && now == self.code
    }

    /// Returns the cave that no thread may use any more, if there is one: what runs there is not our code.
    pub(crate) fn lost_cave(&self) -> Option<Addr> {
        (self.is_cave && self.raised.is_some() && !self.has_its_code()).then_some(self.cave)
    }

    /// Lets a thread go on that has not run since it was stopped. The kernel then does what it would have done
    /// after that stop: it restarts a system call, or delivers a signal. Returns the wait with a timeout that it
    /// begins again, if there is one.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) fn let_go(mut self) -> Result<Option<TimedWait>, Error> {
        if !self.is_same_program() {
            return self.abandon();
        }
        let stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        let tid = stopped.tid();
        let Own { wait, mask, .. } = self.own;
        // In this order the thread has its own mask whenever it has its own registers.
        stopped.set_signal_mask(mask)?;
        let (regs, rest) = self.own.back(self.pid, tid);
        stopped.set_regs(&regs)?;
        let wait = wait.zip(rest).and_then(|(wait, rest)| wait.again(self.pid, tid, rest));
        stopped.detach(0).map(|()| wait)
    }

    /// Returns whether the process is still the program that was prepared: after execve(2) in another thread the first
    /// thread's id belongs to a new program. The open file reads nothing of the new program.
    fn is_same_program(&self) -> bool {
        is_same_program(&self.memory, self.data)
    }

    /// Lets a thread go on as it is: it ends its code by itself, if it is not another program by now.
    fn abandon(mut self) -> Result<Option<TimedWait>, Error> {
        let stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        stopped.detach(0).map(|()| None)
    }

    /// Lets a thread go on with its code, which gives it back by itself.
    pub(crate) fn leave(mut self) {
        // One that has ended needs nothing.
        let _ = self.stopped.take().map(|stopped| stopped.detach(0));
    }

    /// Makes a call that does nothing, at whose end the kernel can decide once more how the thread's own call goes
    /// on, if that is needed. Returns how.
    fn decide_again(&mut self) -> Result<Option<CallEnd>, Error> {
        let Some(end) = self.own.end else { return Ok(None) };
        let args = [end.argument, 0, 0, 0, 0, 0];
        let allows =
            |filters: &Rc<Filters>| filter::check(filters, self.cave, libc::SYS_getpid, &args).is_ok();
        if !self.filters.as_ref().is_none_or(allows) {
            return Ok(None);
        }
        match self.call(libc::SYS_getpid, args) {
            Ok(_) => Ok(Some(end)),
            Err(Error::Raised { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Brings a thread, which has its own mask again, from the end of a system call to the stop at which the kernel is about
/// to deliver signals, and to restart a call that was interrupted.
fn to_trap(stopped: Stopped, asks: Duration) -> Result<Stopped, Error> {
    let tid = stopped.tid();
    let mut running = stopped.resume_to_trap(0)?;
    loop {
        let (stopped, stop) = running.wait_asking(asks)?;
        match stop {
            // Where the process is being stopped by a signal, it is this stop that reports it.
            Stop::Trap | Stop::Group(_) => return Ok(stopped),
            Stop::Signal(signal) => running = stopped.resume(Resume::Cont, signal)?,
            Stop::Syscall => running = stopped.resume(Resume::Cont, 0)?,
            Stop::Exec => return Err(Error::Unexpected { tid, status: 0 }),
        }
        if deadline::is_over() {
            return Err(Error::Late(tid));
        }
    }
}

/// Returns the threads of a process in the order in which they should be lent: first the threads that sleep, in the order of
/// their CPU time, since the program will not miss a thread that has used little; then the threads that compute. Workers of the
/// kernel are left out.
///
/// # Errors
/// /proc cannot be read.
pub fn candidates(pid: i32) -> Result<Vec<Tid>, Error> {
    let all = crate::threads::list(pid)?;
    let rank = |tid: Tid| {
        let stat = Process::new(pid.cast_unsigned()).stat_of_thread(tid).ok()?;
        match stat.state {
            // It never comes back from the kernel to make our calls.
            _ if stat.is_kernel_worker => None,
            'S' => Some((0, stat.cpu, tid)),
            'R' => Some((1, 0, tid)),
            // An uninterruptible sleep, as in vfork(2), does not end by a stop.
            _ => None,
        }
    };
    let mut ranked: Vec<(u8, u64, Tid)> = all.into_iter().filter_map(rank).collect();
    ranked.sort_unstable();
    Ok(ranked.into_iter().map(|(_, _, tid)| tid).collect())
}
