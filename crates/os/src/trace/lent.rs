// SPDX-License-Identifier: Apache-2.0
//! A thread of a running process that is lent for a few system calls: it is stopped wherever it is, makes
//! the calls, and goes on as if nothing had happened. All other threads run on.
//!
//! Nothing is written to its stack. The stack of a goroutine or a coroutine, or an alternate signal stack,
//! is a few kB of somebody's heap, with no room below the stack pointer. Instead the code that makes the
//! calls holds the thread's own registers as constants ([`arch::lent_stub`]):
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
//! last call of ours ([`arch::CallEnd`]), on its way to the last stop.
//!
//! Some calls end with EINTR after any stop (signal(7)). Such a call is made again, unless a signal is
//! pending, which would have ended it too. Its relative timeout would begin anew. That of epoll_wait(2) is
//! shortened (`TimedWait`); a thread that is found waiting in another such call with a timeout is not stopped at
//! all.

mod prepare;

use crate::arch::{self, CallEnd, Regs};
use crate::proc::procfs::Process;
use crate::trace::caves::{CAVE_BYTES, Caves, DATA_BYTES};
use crate::trace::filter::{self, Forbids, Known, Refusal};
use crate::trace::ptrace::{self, Error, Resume, Stop, Stopped, Tid};
use crate::trace::seen::Seen;
use crate::trace::timeout::TimedWait;
use crate::trace::{deadline, faultpoint};
use hugelift_core::addr::Addr;
use hugelift_core::seccomp::Filters;
use nix::fcntl::Flock;
use prepare::{Prepared, Refused, prepare, why_not};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Arguments with which mmap(2) and mremap(2) do nothing: a length of 0 is EINVAL.
const NOTHING: [u64; 6] = [0; 6];

/// Why a thread cannot be lent now.
#[derive(Debug, thiserror::Error)]
pub enum NotLent {
    /// The thread has ended, or ptrace(2) refuses it.
    #[error(transparent)]
    Trace(#[from] Error),
    /// SIGSTOP or another stop signal has stopped the process.
    #[error("the process is stopped by signal {0}; send it SIGCONT and try again")]
    Stopped(i32),
    /// A signal is just being delivered; the thread has got it.
    #[error("thread {0} receives a signal")]
    Signal(Tid),
    /// The process has called execve(2).
    #[error("process {0} has become another program by execve(2)")]
    Exec(i32),
    /// The thread is in a restartable sequence (rseq(2)), which a stop inside would not abort.
    #[error("thread {0} is in a restartable sequence")]
    Rseq(Tid),
    /// The thread waits in a call that a stop ends, and whose timeout would begin anew.
    #[error("thread {0} waits in system call {1}, whose timeout a stop would extend")]
    Timed(Tid, i64),
    /// The thread runs, and may be about to leave a wait that has ended.
    #[error("thread {0} may have just woken up")]
    Woken(Tid),
    /// Its registers are not those of this architecture.
    #[error("thread {0} runs 32-bit code")]
    OtherBits(Tid),
    /// All threads are stopped, or in a sleep that a stop does not end.
    #[error("no thread of process {0} runs or is in a sleep that can be interrupted (see its STAT in ps)")]
    NoThread(i32),
    /// Another hugelift changes the process now.
    #[error("another hugelift changes process {0} just now; try again when it is done")]
    Busy(i32),
    /// The process has no executable mapping that ends with zeros.
    #[error("no executable mapping of process {0} ends with {CAVE_BYTES} unused bytes")]
    NoCave(i32),
    /// Seccomp forbids the thread calls of a lift, or may do so.
    #[error("thread {0}: {1}")]
    Filtered(Tid, Forbids),
    /// The thread waits in a call that a stop would cut short.
    #[error("thread {0} waits in system call {1}, which a stop may cut short")]
    CutShort(Tid, i64),
    /// A borrowed thread did not come back in time, or has ended.
    #[error("a borrowed thread did not come back ({0}); what was begun is left as it is")]
    Lost(Error),
    /// No cave is near enough to the thread's code.
    #[error("no executable mapping near {1} in process {0} ends with {CAVE_BYTES} unused bytes")]
    OutOfReach(i32, Addr),
    /// The looks at some threads had become too old when the last one was looked at.
    #[error(
        "the threads of process {0} could not all be looked at within a moment; there are many, or it is busy"
    )]
    Aged(i32),
    /// More threads have begun than were prepared for.
    #[error("process {0} makes threads faster than they are stopped")]
    TooMany(i32),
    /// A system call would clear registers that the thread uses.
    #[error("thread {0} computes with vector registers that a system call clears (SVE, SME)")]
    Vectors(Tid),
}

impl NotLent {
    /// Returns whether no other thread and no later moment helps.
    pub fn is_final(&self) -> bool {
        match self {
            NotLent::Trace(error) => !matches!(error, Error::Vanished(_) | Error::Late(_)),
            NotLent::Signal(_)
            | NotLent::Rseq(_)
            | NotLent::Timed(..)
            | NotLent::Woken(_)
            | NotLent::Filtered(..)
            | NotLent::CutShort(..)
            | NotLent::OutOfReach(..)
            | NotLent::TooMany(_)
            | NotLent::Aged(_)
            | NotLent::Vectors(_)
            | NotLent::NoThread(_) => false,
            NotLent::Stopped(_)
            | NotLent::Exec(_)
            | NotLent::OtherBits(_)
            | NotLent::Busy(_)
            | NotLent::Lost(_)
            | NotLent::NoCave(_) => true,
        }
    }
}

/// The code of a stopped thread: what it does if the tracer dies, and where it is.
#[derive(Debug)]
pub(crate) enum Stub<'a> {
    /// It ends the call that is loaded, and goes on. In a cave within reach.
    Lent(&'a mut Caves),
    /// It ends the call that is loaded, sets the word, and goes on.
    Leading(Slot),
    /// It waits until the word is set, and goes on.
    Waiting(Slot),
}

/// A place for code in a mapping that was made for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// The place, of [`crate::arch::SLOT_BYTES`].
    pub(crate) at: Addr,
    /// The word that threads wait for, at the beginning of a page that can be written to.
    pub(crate) word: Addr,
}

/// What was seen of a thread before its stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// What it did.
    pub(crate) seen: Seen,
    /// The wait with a timeout in which it seemed to be.
    pub(crate) wait: Option<TimedWait>,
    /// How often it had slept, if it had just woken up from it is not known what. If it has not slept since, and
    /// the stop ends its call with EINTR, the call returns what it returns after its timeout.
    pub(crate) woken: Option<u64>,
    /// For how long its next stops are asked for before the tracer sleeps.
    pub(crate) asks: Duration,
}

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
}

/// What a stopped thread gets back.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// Its registers at the stop.
    regs: Regs,
    /// Registers with which it makes the call again that has ended with EINTR.
    again: Option<Regs>,
    /// The wait of that call, if it has a timeout that is shortened.
    wait: Option<TimedWait>,
    /// What lets the kernel decide once more how its call goes on, if the registers are not enough.
    end: Option<CallEnd>,
    /// The signals that it blocks.
    mask: u64,
}

impl Own {
    /// Returns the registers that a thread gets back at a stop in which the kernel is about to deliver signals, and the
    /// rest of the timeout with which it makes its call again, if it does.
    fn back(&self, pid: i32, tid: Tid) -> (Regs, Option<u64>) {
        let Some(again) = self.again else { return (self.regs, None) };
        let rest = self.wait.map(|wait| wait.rest());
        let made = shortened(again, rest);
        match arch::undecided(&self.regs, &made) {
            Some(regs) => (regs, rest),
            None if is_handled(pid, tid, self.mask) => (self.regs, None),
            None => (made, rest),
        }
    }
}

impl Lent {
    /// Stops thread `tid` of process `pid`, which may be stopped, and prepares it. `memory` is the process's
    /// `/proc/PID/mem`, open for reading and writing: after execve(2) it reads and writes nothing, where a path
    /// would lead to the new program. `known` is what is known of its seccomp filters, `wait` the wait with a
    /// timeout in which it seemed to be, `asks` for how long its stops are asked for before the tracer sleeps.
    ///
    /// # Errors
    /// [`NotLent`]. The thread then goes on as if nothing had happened.
    pub(crate) fn take(
        pid: i32,
        tid: Tid,
        stub: Stub<'_>,
        memory: &Rc<Flock<File>>,
        known: Known,
        wait: Option<TimedWait>,
        asks: Duration,
    ) -> Result<Lent, NotLent> {
        let running = ptrace::seize(tid)?;
        let seen = Seen::of(pid, tid);
        running.interrupt()?;
        let (stopped, stop) = running.wait_asking(asks)?;
        let looked = Looked { seen, wait, woken: None, asks };
        Lent::of_stopped(pid, (stopped, stop), looked, stub, memory, known)
    }

    /// Prepares a thread that has stopped in this way.
    ///
    /// # Errors
    /// See [`Lent::take`].
    pub(crate) fn of_stopped(
        pid: i32,
        (mut stopped, stop): (Stopped, Stop),
        looked: Looked,
        mut stub: Stub<'_>,
        memory: &Rc<Flock<File>>,
        known: Known,
    ) -> Result<Lent, NotLent> {
        let (since, asks) = (looked.seen.at(), looked.asks);
        let prepared = match why_not(pid, stopped.tid(), stop) {
            Some(refused) => Err(refused),
            None => prepare(pid, &mut stopped, looked, &mut stub, memory, known),
        };
        match prepared {
            Ok(Prepared { cave, own, filters }) => Ok(Lent {
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
    /// The thread has ended, or did not stop in time.
    pub fn call(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        self.call_unless(number, args, &mut || None)
    }

    /// Makes one system call, unless `refuse` finds a reason against it: that is asked when the thread is in the kernel
    /// and about to make the call. Returns what the call returned, or the negative errno of the reason.
    ///
    /// # Errors
    /// The thread has ended, or did not stop in time.
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
        let stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        let tid = stopped.tid();
        stopped.set_regs(&self.own.regs.at(self.cave, self.own.regs.sp()).with_syscall(number, args))?;
        let mut running = stopped.resume(Resume::Syscall, 0)?;
        let mut in_call = false;
        let mut refused: Option<i32> = None;
        loop {
            let (stopped, stop) = running.wait_asking(self.asks)?;
            let signal = match stop {
                Stop::Syscall if in_call => {
                    if let Some(errno) = refused {
                        self.stopped = Some(stopped);
                        return Ok(i64::from(-errno));
                    }
                    let result = stopped.regs()?.map_or(i64::from(-libc::EIO), |regs| regs.result());
                    self.stopped = Some(stopped);
                    return Ok(result);
                }
                Stop::Syscall => {
                    in_call = true;
                    refused = if asks_late { refuse() } else { None };
                    if refused.is_some()
                        && let Some(regs) = stopped.regs()?
                    {
                        stopped.set_regs(&regs.with_syscall(number, NOTHING))?;
                    }
                    0
                }
                // Only SIGSTOP can arrive here. It takes effect when the thread has been given back.
                Stop::Signal(signal) => signal,
                Stop::Group(_) | Stop::Trap => 0,
                Stop::Exec => return Err(Error::Unexpected { tid, status: 0 }),
            };
            if deadline::is_over() {
                return Err(Error::Late(tid));
            }
            running = stopped.resume(Resume::Syscall, signal)?;
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
        let decided = self.decide_again()?;
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
                // A thread that was in no system call can go on from the end of ours.
                if regs.is_in_call() {
                    stopped = to_trap(stopped, self.asks)?;
                }
                stopped.set_signal_mask(mask)?;
                let own;
                (own, rest) = self.own.back(self.pid, tid);
                stopped.set_regs(&own)?;
            }
        }
        if self.is_cave {
            poke(&stopped, &self.memory, self.cave, &[0; CAVE_BYTES])?;
        }
        if self.has_data {
            poke(&stopped, &self.memory, self.data, &[0; DATA_BYTES])?;
        }
        let wait = wait.zip(rest).and_then(|(wait, rest)| wait.again(self.pid, tid, rest));
        stopped.detach(0).map(|()| wait)
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

    /// Returns whether the process is still the program that was prepared: after execve(2) in another thread the id of
    /// the first thread is that of a new program. The open file reads nothing of it.
    fn is_same_program(&self) -> bool {
        self.memory.read_at(&mut [0], self.data.0).ok() == Some(1)
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
        self.call(libc::SYS_getpid, args)?;
        Ok(Some(end))
    }
}

/// Returns registers that make a call again with the rest of its timeout, in milliseconds. They stay changed after
/// the call: a C function that makes it need not keep them for its caller.
pub(crate) fn shortened(again: Regs, rest: Option<u64>) -> Regs {
    rest.map_or(again, |rest| again.with_fourth_argument(rest))
}

/// Brings a thread from the end of a system call to the stop at which the kernel is about to deliver signals,
/// and to restart a call that was interrupted.
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

/// Writes to the process, whatever the protection there (see [`Stopped::poke`]).
fn poke(stopped: &Stopped, memory: &File, at: Addr, bytes: &[u8]) -> Result<(), Error> {
    faultpoint::pass(stopped.tid());
    match memory.write_all_at(bytes, at.0) {
        Ok(()) => Ok(()),
        Err(_) => stopped.poke_words(at, bytes),
    }
}

/// Returns whether a signal is pending for which a handler will run, in a thread that blocks `mask`. A signal
/// that is ignored is also kept while it is blocked, and ends no system call.
fn is_handled(pid: i32, tid: Tid, mask: u64) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    status.is_ok_and(|status| status.pending & status.caught & !mask != 0)
}

/// Returns the threads of a process in the order in which they should be lent: first those that sleep, the one before
/// the others that has used the least CPU time, as the program will not miss it; then those that compute.
///
/// # Errors
/// /proc cannot be read.
pub fn candidates(pid: i32) -> Result<Vec<Tid>, Error> {
    let all = crate::trace::threads::list(pid)?;
    let rank = |tid: Tid| {
        let stat = Process::new(pid.cast_unsigned()).stat_of_thread(tid).ok()?;
        match stat.state {
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
