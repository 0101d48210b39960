// SPDX-License-Identifier: Apache-2.0
//! Prepares a stopped thread, so that it may go on whenever the tracer dies.

use super::call::{self, Ended, blocked};
use super::memory::{is_same_program, poke};
use super::not_lent::NotLent;
use super::own::Own;
use super::stub::Stub;
use crate::arch::{self, Interrupted, Regs};
use crate::caves::CAVE_BYTES;
use crate::filter::{self, Forbids, Known};
use crate::ptrace::{Error, Resume, Stop, Stopped, Tid};
use crate::seen::Seen;
use crate::timeout::{TimedWait, shortened};
use crate::waits;
use hugelift_core::addr::Addr;
use hugelift_core::seccomp::Filters;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::rc::Rc;
use std::time::Duration;

/// What was seen of a thread before its stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeforeStop {
    /// What it did.
    pub(crate) seen: Seen,
    /// The wait with a timeout in which it seemed to be.
    pub(crate) wait: Option<TimedWait>,
    /// How often it had slept, if it had just woken up from an unknown call. If it has not slept since, and the stop
    /// ends its call with EINTR, the call returns what it returns after its timeout.
    pub(crate) woken: Option<u64>,
    /// For how long its next stops are asked for before the tracer sleeps.
    pub(crate) asks: Duration,
}

impl BeforeStop {
    /// Returns the result of the call of a stopped thread. The thread had woken up already when it was sampled, and has
    /// not slept since.
    fn timed_out(&self, pid: i32, tid: Tid) -> Option<i64> {
        let woken = self.woken?;
        let sleeps = Process::new(pid.cast_unsigned()).status_of_thread(tid).ok()?.sleeps;
        if sleeps == Some(woken) { waits::timed_out(pid, tid) } else { None }
    }
}

/// A stopped thread that can be lent.
pub(super) struct Prepared {
    pub(super) cave: Addr,
    pub(super) code: Vec<u8>,
    pub(super) own: Own,
    pub(super) filters: Option<Rc<Filters>>,
}

/// Why a stopped thread is let go, and the signal that it gets.
pub(super) struct Refused {
    pub(super) why: NotLent,
    pub(super) signal: i32,
}

impl<E: Into<NotLent>> From<E> for Refused {
    fn from(why: E) -> Refused {
        Refused { why: why.into(), signal: 0 }
    }
}

/// Returns why a thread that has stopped in this way cannot be lent.
pub(super) fn why_not(pid: i32, tid: Tid, stop: Stop) -> Option<Refused> {
    let (why, signal) = match stop {
        Stop::Trap => return None,
        Stop::Signal(signal) => (NotLent::Signal(tid), signal),
        Stop::Group(signal) => (NotLent::Stopped(signal), 0),
        Stop::Exec => (NotLent::Exec(pid), 0),
        Stop::Syscall => (NotLent::Signal(tid), 0),
    };
    Some(Refused { why, signal })
}

/// Blocks the thread's signals and writes the code.
pub(super) fn prepare(
    pid: i32,
    stopped: &mut Stopped,
    before: BeforeStop,
    stub: &mut Stub<'_>,
    memory: &File,
    known: Known,
) -> Result<Prepared, Refused> {
    let tid = stopped.tid();
    // A file that was opened before execve(2) reads nothing afterwards.
    let BeforeStop { seen, wait, .. } = before;
    if !is_same_program(memory, stub.data()) {
        return Err(NotLent::Exec(pid).into());
    }
    let mut regs = stopped.regs()?.ok_or(NotLent::OtherBits(tid))?;
    let mut interrupted = arch::interrupted(&regs, &seen.and_stopped(stopped));
    // If it has begun another wait since it was sampled, next to nothing of that timeout has passed.
    let wait = wait.filter(|wait| wait.was_stopped(pid, tid) && is_in(wait, &interrupted));
    let near = stub.within_reach(regs.pc());
    let filters = match filter::read(stopped, known, near.unwrap_or(regs.pc()))? {
        Ok(filters) => filters,
        Err(forbids) => {
            match interrupted {
                Interrupted::Eintr(number, again, _)
                    if waits::can_be_made_again(number) && !is_signalled(pid, tid) =>
                {
                    stopped.set_regs(&shortened(again, wait.map(|wait| wait.rest())))?;
                }
                _ if !filter::may_continue(&forbids) => make_anew(stopped, &regs, before, stub, memory)?,
                _ => {}
            }
            return Err(NotLent::Filtered(tid, forbids).into());
        }
    };
    if interrupted == Interrupted::Enters {
        enter(pid, stopped)?;
        regs = stopped.regs()?.ok_or(NotLent::OtherBits(tid))?;
        interrupted = arch::entered(&regs, &seen.and_stopped(stopped));
    }
    let (later, again, end) = match interrupted {
        Interrupted::No(later) => (later, None, None),
        Interrupted::Restarts(later, end) => (later, None, end),
        Interrupted::Eintr(number, again, end) if waits::can_be_made_again(number) => {
            let again =
                before.timed_out(pid, tid).and_then(|result| arch::returning(&regs, result)).unwrap_or(again);
            (shortened(again, wait.map(|wait| wait.rest())), Some(again), end)
        }
        Interrupted::Eintr(..) | Interrupted::Enters => (regs, None, None),
    };
    let mask = stopped.signal_mask()?;
    let dispatches = stopped.dispatches_calls()?;
    let checked = is_lendable(pid, stopped, &regs, stub).and_then(|()| {
        if dispatches == Some(true) {
            return Err(NotLent::Dispatches(tid));
        }
        let checked = filters.as_deref().map_or(Ok(()), |filters| stub.check(filters));
        checked.map_err(|refusal| NotLent::Filtered(tid, Forbids::Call(refusal)))?;
        let far = || NotLent::OutOfReach(pid, later.pc());
        let cave = stub.within_reach(later.pc()).ok_or_else(far)?;
        let code = stub.code(cave, &later, mask).ok_or_else(far)?;
        let first = match dispatches {
            Some(_) => None,
            None => Some(stub.calling_code(cave, &later, mask).ok_or_else(far)?),
        };
        match poke(stopped, memory, cave, first.as_ref().unwrap_or(&code)) {
            Ok(()) => Ok((cave, code)),
            Err(error @ Error::Vanished(_)) => Err(error.into()),
            // Another thread has unmapped the cave.
            Err(_) => {
                stub.lose(cave);
                Err(far())
            }
        }
    });
    let (cave, code) = match checked {
        Ok(checked) => checked,
        Err(why) => {
            // A pending signal ends the call by right.
            if let Some(again) = again
                && !matches!(why, NotLent::Signal(_))
            {
                stopped.set_regs(&shortened(again, wait.map(|wait| wait.rest())))?;
            }
            return Err(why.into());
        }
    };
    let own = Own { regs, again, wait, mask, end };
    let blocked = blocked(pending(pid, tid));
    let entered = stub.entered(cave, &regs);
    if dispatches.is_none() {
        let called = regs.at(cave, regs.sp()).with_syscall(libc::SYS_getpid, [0; 6]);
        stopped.set_regs(&called)?;
        stopped.set_signal_mask(blocked)?;
        arrives(pid, stopped, &called, (stub, memory, before.asks), &own)?;
        if matches!(stub, Stub::Waiting(_)) {
            // It must not be in code that is replaced, should the tracer die now.
            stopped.set_signal_mask(mask)?;
            stopped.set_regs(&regs)?;
            poke(stopped, memory, cave, &code)?;
        }
    }
    stopped.set_regs(&entered)?;
    stopped.set_signal_mask(match stub {
        // It runs only if the tracer dies.
        Stub::Waiting(_) => u64::MAX,
        Stub::Lent(_) | Stub::Leading(_) => blocked,
    })?;
    Ok(Prepared { cave, code, own, filters })
}

/// Finds out by a call that does nothing whether calls of the thread reach the kernel, where that does not tell. If they
/// do not, the thread gets its registers back.
fn arrives(
    pid: i32,
    stopped: &mut Stopped,
    called: &Regs,
    (stub, memory, asks): (&mut Stub<'_>, &File, Duration),
    own: &Own,
) -> Result<(), Refused> {
    let tid = stopped.tid();
    let is_there = match call::run(stopped, called, asks, &mut |_| Ok(()))? {
        // A thread that waits goes on as one that has not run: from where the kernel restarts its call.
        Ended::With(_) if matches!(stub, Stub::Waiting(_)) => call::to_trap(stopped, asks)?,
        Ended::With(_) => true,
        Ended::Raised(signal) => {
            stopped.set_signal_mask(own.mask)?;
            stopped.set_regs(&own.back(pid, tid).0)?;
            if signal != libc::SIGSYS {
                stub.lose(called.pc());
                return Err(Error::Raised { tid, signal }.into());
            }
            if matches!(stub, Stub::Lent(_)) {
                poke(stopped, memory, called.pc(), &[0; CAVE_BYTES])?;
            }
            return Err(NotLent::Dispatches(tid).into());
        }
        Ended::Exec => false,
    };
    if is_there { Ok(()) } else { Err(NotLent::Exec(pid).into()) }
}

/// Checks that a stopped thread would not notice system calls.
fn is_lendable(pid: i32, stopped: &Stopped, regs: &Regs, stub: &Stub<'_>) -> Result<(), NotLent> {
    let tid = stopped.tid();
    if is_in_sequence(stopped, regs)? {
        return Err(NotLent::Rseq(tid));
    }
    if stopped.would_lose_registers() {
        return Err(NotLent::Vectors(tid));
    }
    // One that waits does not run before it is let go, and gets its signals then.
    if !matches!(stub, Stub::Waiting(_)) && is_signalled(pid, tid) {
        return Err(NotLent::Signal(tid));
    }
    Ok(())
}

/// Lets a thread that is about to make or to continue its system call enter it, and stops it there again.
fn enter(pid: i32, stopped: &mut Stopped) -> Result<(), Refused> {
    let mut stop = stopped.run(Resume::Syscall, 0)?;
    if stop == Stop::Syscall {
        stop = stopped.run_to_trap()?;
    }
    why_not(pid, stopped.tid(), stop).map_or(Ok(()), Err)
}

/// Has a thread make its call anew. The kernel would continue it by another call, which may end the process.
/// The call itself was allowed; made anew, it may wait longer.
fn make_anew(
    stopped: &Stopped,
    regs: &Regs,
    before: BeforeStop,
    stub: &mut Stub<'_>,
    memory: &File,
) -> Result<(), Error> {
    let near = stub.within_reach(regs.pc());
    let Some(anew) = arch::made_anew(regs, &before.seen.and_stopped(stopped), near) else { return Ok(()) };
    if let Some(cave) = near.filter(|_| !anew.code.is_empty()) {
        // When the thread leaves the code is not known.
        if let Stub::Lent(caves) = stub {
            caves.give_up(cave);
        }
        let mut code = anew.code;
        code.resize(code.len().next_multiple_of(8), 0);
        poke(stopped, memory, cave, &code)?;
    }
    stopped.set_regs(&anew.regs)
}

/// Returns whether the call that the stop has interrupted is this wait.
fn is_in(wait: &TimedWait, interrupted: &Interrupted) -> bool {
    matches!(interrupted, Interrupted::Eintr(number, again, _) if wait.is_in(*number, again.fourth_argument()))
}

/// Returns the signals that are pending for a thread or its process, also those that it blocks.
fn pending(pid: i32, tid: Tid) -> u64 {
    Process::new(pid.cast_unsigned()).status_of_thread(tid).map_or(0, |status| status.pending)
}

/// Returns whether a signal is pending that the thread does not block.
fn is_signalled(pid: i32, tid: Tid) -> bool {
    let status = Process::new(pid.cast_unsigned()).status_of_thread(tid);
    status.is_ok_and(|status| status.pending & !status.blocked != 0)
}

/// Returns whether the thread is in a critical section of rseq(2). The kernel aborts such a section when it
/// takes the CPU from it; it would not after the tracer has moved the program counter away.
fn is_in_sequence(stopped: &Stopped, regs: &Regs) -> Result<bool, Error> {
    /// Offset of `rseq_cs` in `struct rseq` (linux/rseq.h).
    const SECTION: u64 = 8;
    let Some(rseq) = stopped.rseq_area() else { return Ok(false) };
    let word = |at: u64| memory::read_array(stopped.tid(), Addr(at)).map(u64::from_ne_bytes);
    let Ok(section @ 1..) = word(rseq.0.wrapping_add(SECTION)) else { return Ok(false) };
    // `struct rseq_cs`: version and flags, start, length, address of the abort handler.
    let (Ok(start), Ok(len)) = (word(section.wrapping_add(8)), word(section.wrapping_add(16))) else {
        return Ok(true);
    };
    Ok(regs.pc().0.wrapping_sub(start) < len)
}
