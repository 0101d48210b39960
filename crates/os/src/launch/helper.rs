// SPDX-License-Identifier: Apache-2.0
//! The helper: the process that stops the program at its start, has it lifted, and ends.
//!
//! ```text
//!   launcher ----------- execve ==> loader ==> constructors ==> entry stub ==> program
//!      ^ seize              |                                        |
//!   helper ............. stop: static? lift                 stop: lift the dynamic one
//!                        PIE? move; align the heap
//!                        nothing left to do? end
//! ```

use crate::arch;
use crate::launch::bypass::Bypass;
use crate::machine::base_page;
use crate::proc::memory;
use crate::proc::procfs::{Auxv, Process, Status};
use crate::trace::at_exec;
use crate::trace::auxv_slots::AuxvSlots;
use crate::trace::deadline::Deadline;
use crate::trace::frame::{CodeCave, RestoreFrame};
use crate::trace::ptrace::{Error, Resume, Running, Stop, Stopped};
use crate::trace::remote::Remote;
use crate::trace::threads::Threads;
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::heap;
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::{self, Image, Layout, Move};
use hugelift_core::target::Fault;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What is done with a program on its way to its first own instruction: the steps, in the order of time.
///
/// The helper calls them. It is a process of its own, which traces the program. From
/// [`place`](Self::place) and [`ends_at_exec`](Self::ends_at_exec) the program stands at its exec stop: the
/// kernel has mapped it, and nothing of it has run.
///
/// A static program has no loader, and is lifted at its exec stop. A child that has asked to be lifted
/// ([`attend_waiting`]) is loaded already: for it only `lift`, `after_start` and `bypass` are called.
pub trait LiftHooks {
    /// The launcher is about to call execve(2). What is found out now costs the program no time.
    fn before_exec(&mut self);

    /// The program stands at its exec stop. Returns where its executable should be instead; `None` leaves
    /// it where it is. `mappings` are all that it has.
    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move>;

    /// The program stands at its exec stop. Returns the page size of which its heap is to begin with a
    /// whole page; `None` leaves the heap where it is.
    fn heap_page(&self) -> Option<PageSize>;

    /// The program stands at its exec stop, and the move that `place` returned has been tried.
    fn placed(&mut self, result: Result<(), &Fault>);

    /// The loader is about to run. Returns whether the helper may end now, because nothing is left to do.
    /// A program that is its helper's parent is not asked: it waits for the helper at its entry point.
    fn ends_at_exec(&self) -> bool;

    /// The loader of the process `pid` runs, and then the constructors. What is found out now costs the
    /// program no time.
    fn while_loading(&mut self, pid: u32);

    /// The program stands before its first own instruction; or, if it is a child, in the constructor of
    /// hugelift's library. Changes `target`, which is the process `pid`; says whether the program may start.
    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict;

    /// The program runs, and nobody waits for the helper. Not called if the helper is the program's child.
    fn after_start(&mut self);

    /// At any of these steps, the program has turned out to be one that cannot be lifted, for this reason.
    /// Says whether it may start all the same. At most `after_start` follows.
    fn bypass(&mut self, why: &Bypass) -> Verdict;
}

/// Whether the program starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does.
    Start,
    /// It does not: it exits with this status.
    Refuse(i32),
}

/// Sees `running` through its execve(2) to its first own instruction. `reap` is the
/// helper's own pid if the program is its parent and must wait for it.
///
/// When this returns the program may run on, and does so when the calling process ends, if not
/// before.
///
/// # Errors
/// [`Error::Vanished`] if the program ended before, anything else if it was lost.
pub fn attend(running: Running, reap: Option<i32>, hooks: &mut impl LiftHooks) -> Result<(), Error> {
    let Some(deadline) = limit(crate::trace::faultpoint::patience(START), hooks) else { return Ok(()) };
    let mut running = running;
    hooks.before_exec();
    let mut waiting: Option<Entry> = None;
    loop {
        let (stopped, stop) = running.wait()?;
        if stop == Stop::Exec {
            // A static program is lifted now.
            let _ = deadline.renew(LIFT);
        }
        running = match stop {
            Stop::Exec => match at_exec(stopped, reap, hooks)? {
                Next::Done => return Ok(()),
                Next::Entry(stopped, mut entry) => {
                    let _ = deadline.renew(crate::trace::faultpoint::patience(START));
                    let running = stopped.resume(Resume::Cont, 0)?;
                    entry.own = Process::OWN.status().ok().map(filters);
                    hooks.while_loading(entry.pid);
                    waiting = Some(entry);
                    running
                }
            },
            Stop::Trap => {
                let pc = stopped.regs()?.map(|r| r.pc());
                match &waiting {
                    Some(entry) if pc.is_some_and(|pc| entry.room.is_in_entry_stub(pc)) => {
                        let _ = deadline.renew(LIFT);
                        return at_entry(stopped, entry, reap, hooks);
                    }
                    // Somebody else's SIGCONT.
                    _ => stopped.resume(Resume::Cont, 0)?,
                }
            }
            Stop::Signal(signal) => stopped.resume(Resume::Cont, signal)?,
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            Stop::Syscall => stopped.resume(Resume::Cont, 0)?,
        };
    }
}

/// How long the program may take from execve(2) to its first own instruction. One whose constructors do
/// not return is traced no longer than that; its entry stub then leads to the program by itself.
const START: Duration = Duration::from_secs(60);
/// How long a lift may take: bytes by the hundred gigabytes are copied in that time.
const LIFT: Duration = Duration::from_secs(600);

/// Limits the time of all that the helper waits for; without a limit, nothing is lifted.
fn limit(time: Duration, hooks: &mut impl LiftHooks) -> Option<Deadline> {
    match Deadline::within(time) {
        Ok(deadline) => Some(deadline),
        Err(source) => {
            hooks.bypass(&Bypass::Resources { what: "setitimer", source });
            None
        }
    }
}

/// Lifts `running`, a process that is about to stop itself at `stop`, in the library inside it
/// ([`mod@crate::launch::inside`]).
///
/// # Errors
/// As [`attend`].
pub fn attend_waiting(running: Running, stop: Addr, hooks: &mut impl LiftHooks) -> Result<(), Error> {
    let Some(_deadline) = limit(LIFT, hooks) else { return Ok(()) };
    let mut running = running;
    loop {
        let (stopped, why) = running.wait()?;
        running = match why {
            Stop::Trap => match stopped.regs()? {
                Some(regs) if regs.pc() == stop => return at_stop(stopped, hooks),
                // Somebody else's SIGCONT.
                _ => stopped.resume(Resume::Cont, 0)?,
            },
            Stop::Signal(signal) => stopped.resume(Resume::Cont, signal)?,
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            // It was to wait.
            Stop::Exec | Stop::Syscall => return Ok(()),
        };
    }
}

/// A program that has stopped itself before its `main`. The SIGCONT is its own to drain.
fn at_stop(stopped: Stopped, hooks: &mut impl LiftHooks) -> Result<(), Error> {
    let Some(regs) = stopped.regs()? else { return Err(Error::Vanished(stopped.tid())) };
    let process = Process::new(stopped.tid().cast_unsigned());
    let own = Process::OWN.status().ok().map(filters);
    let ready = process.status().map_err(Bypass::from).and_then(|status| {
        let room = CodeCave::find(stopped.tid(), &process.maps()?).ok_or(Bypass::NoCodeCave)?;
        Ok((stop_others(process, own, &status)?, room, status))
    });
    let (threads, room, status) = match ready {
        Ok(ready) => ready,
        Err(why) => {
            refuse(&stopped, hooks, &why);
            return Ok(());
        }
    };
    let home = RestoreFrame::arm(&stopped, regs.at(regs.pc(), regs.sp()), room, None)?;
    let mut remote = Remote::new(stopped, home);
    remote.set_status(status);
    let left = lift(remote, false, hooks);
    threads.release();
    left
}

const SIGCONT_BIT: u64 = 1 << (libc::SIGCONT - 1);

/// A dynamic program on its way to its entry point.
struct Entry {
    room: CodeCave,
    addr: Addr,
    /// SIGCONT was pending already: it is not the stub's, and stays.
    sigcont: bool,
    /// Our own filters.
    own: Option<Filters>,
    pid: u32,
}

/// How a process is confined, and by how many filters.
type Filters = (Option<u32>, Option<u32>);

/// What follows the stop at execve(2).
enum Next {
    /// Lifted, or not to be lifted.
    Done,
    /// The loader is to run first.
    Entry(Stopped, Entry),
}

fn at_exec(stopped: Stopped, reap: Option<i32>, hooks: &mut impl LiftHooks) -> Result<Next, Error> {
    let mut start = match prepare(&stopped) {
        Ok(start) => start,
        Err(Bypass::Ptrace(error @ Error::Vanished(_))) => return Err(error),
        Err(why) => {
            refuse(&stopped, hooks, &why);
            return Ok(Next::Done);
        }
    };
    let plan = start.place(hooks);
    let heap_page = hooks.heap_page();
    if plan.is_none() && heap_page.is_none() && start.is_dynamic {
        return to_entry(stopped, &start, reap, hooks);
    }
    // Behind the system call the registers are the program's own.
    let (stopped, stop) = stopped.resume(Resume::Syscall, 0)?.wait()?;
    if stop != Stop::Syscall {
        return Err(Error::Unexpected { tid: stopped.tid(), status: 0 });
    }
    let Some(regs) = stopped.regs()? else {
        refuse(&stopped, hooks, &class32(&stopped));
        return Ok(Next::Done);
    };
    let home = RestoreFrame::arm(&stopped, regs.after_exec(), start.room, reap)?;
    let mut remote = Remote::new(stopped, home);
    if let Some((plan, layout)) = plan {
        remote.set_auxv_slots(start.vector);
        let moved = relocate::carry_out(&mut remote, &plan, &layout);
        tracing::debug!(?plan, ?moved, "moved the executable");
        if let Err(Fault::Lost(_)) = moved {
            // Killed; or what is left of it returns through its restore frame.
            return Err(Error::Vanished(start.process.pid().cast_signed()));
        }
        if moved.is_ok() {
            start.entry = Addr(start.entry.0 - plan.distance);
        }
        hooks.placed(moved.as_ref().map(drop));
    }
    if let Some(page) = heap_page {
        start.align_heap(&mut remote, page)?;
    }
    if start.is_dynamic {
        return to_entry(remote.release()?, &start, reap, hooks);
    }
    lift(remote, false, hooks)?;
    Ok(Next::Done)
}

/// A program right behind its execve(2).
struct Start {
    process: Process,
    mappings: Vec<Mapping>,
    auxv: Auxv,
    vector: AuxvSlots,
    room: CodeCave,
    /// Has a loader, which runs first.
    is_dynamic: bool,
    /// Where the program itself begins.
    entry: Addr,
}

fn prepare(stopped: &Stopped) -> Result<Start, Bypass> {
    let pid = stopped.tid();
    let process = Process::new(pid.cast_unsigned());
    let regs = stopped.regs()?.ok_or_else(|| class32(stopped))?;
    let mappings = process.maps()?;
    let auxv = process.auxv()?;
    if auxv.secure != 0 {
        return Err(Bypass::Privileged { path: exe(pid).into(), what: "started with AT_SECURE" });
    }
    let room = CodeCave::find(pid, &mappings).ok_or(Bypass::NoCodeCave)?;
    let is_dynamic = auxv.base != 0;
    let vector = match AuxvSlots::find(pid, regs.sp(), &mappings, auxv.entry) {
        Some(vector) => vector,
        None if is_dynamic => return Err(Bypass::NoEntry),
        None => AuxvSlots::default(),
    };
    let entry = Addr(auxv.entry);
    Ok(Start { process, mappings, auxv, vector, room, is_dynamic, entry })
}

impl Start {
    /// Where the executable should be moved to, if anywhere.
    fn place(&mut self, hooks: &mut impl LiftHooks) -> Option<(Move, Layout)> {
        let image = at_exec::image(self.process, &mut self.mappings, &self.auxv, base_page())?;
        // The restore frame must not lie in what is unmapped.
        let room = self.room.entry_stub();
        let plan = hooks.place(self.process.pid(), &image, &self.mappings)?;
        if image.range.contains(room) {
            return None;
        }
        match at_exec::layout(self.process) {
            Ok(layout) => Some((plan, layout)),
            Err(error) => {
                tracing::debug!(%error, "the executable stays");
                None
            }
        }
    }
}

impl Start {
    /// Has the heap begin at a multiple of `page`. Where that cannot be done it stays: nothing is
    /// lost but the gain.
    fn align_heap(&self, remote: &mut Remote, page: PageSize) -> Result<(), Error> {
        // As they are behind a move.
        let now = at_exec::layout(self.process).and_then(|layout| {
            let mappings = self.process.maps().map_err(|e| io::Error::other(e.to_string()))?;
            Ok((layout, mappings))
        });
        let aligned = now.map(|(layout, mappings)| heap::align(remote, &layout, &mappings, page));
        tracing::debug!(?aligned, "the heap's start");
        match aligned {
            Ok(Err(Fault::Lost(_))) => Err(Error::Vanished(self.process.pid().cast_signed())),
            _ => Ok(()),
        }
    }
}

/// Arranges for a dynamic program to stop at its entry point, and lets its loader run. One that
/// must wait for its helper does so there.
fn to_entry(
    stopped: Stopped,
    start: &Start,
    reap: Option<i32>,
    hooks: &mut impl LiftHooks,
) -> Result<Next, Error> {
    if reap.is_none() && hooks.ends_at_exec() {
        stopped.detach(0)?;
        return Ok(Next::Done);
    }
    match arrange(&stopped, start) {
        Ok(entry) => Ok(Next::Entry(stopped, entry)),
        Err(Bypass::Ptrace(error @ Error::Vanished(_))) => Err(error),
        Err(why) => {
            refuse(&stopped, hooks, &why);
            Ok(Next::Done)
        }
    }
}

fn arrange(stopped: &Stopped, start: &Start) -> Result<Entry, Bypass> {
    let (pid, room, slot) = (stopped.tid(), start.room, start.vector.entry);
    room.write_entry_stub(stopped, &arch::entry_stub(start.entry, slot))?;
    memory::write(pid, slot, &room.entry_stub().0.to_ne_bytes()).map_err(|source| Error::Os {
        what: "write the auxiliary vector",
        tid: pid,
        source,
    })?;
    // It can only be pending if it is blocked.
    let blocked = stopped.signal_mask()? & SIGCONT_BIT != 0;
    let sigcont = blocked && stopped.is_pending(libc::SIGCONT)?;
    Ok(Entry { room, addr: start.entry, sigcont, own: None, pid: pid.cast_unsigned() })
}

/// A dynamic program in its entry stub: the loader and the constructors have run.
fn at_entry(
    stopped: Stopped,
    entry: &Entry,
    reap: Option<i32>,
    hooks: &mut impl LiftHooks,
) -> Result<(), Error> {
    let Some(regs) = stopped.regs()? else { return Err(Error::Vanished(stopped.tid())) };
    let status = Process::new(entry.pid).status().map_err(Bypass::from);
    let ready =
        status.and_then(|status| Ok((stop_others(Process::new(entry.pid), entry.own, &status)?, status)));
    let (threads, status) = match ready {
        Ok(ready) => ready,
        Err(why) => {
            refuse(&stopped, hooks, &why);
            return dismiss(stopped);
        }
    };
    let home = RestoreFrame::arm(&stopped, arch::entry_registers(regs, entry.addr), entry.room, reap)?;
    let mut remote = Remote::new(stopped, home);
    remote.set_status(status);
    let left = lift(remote, !entry.sigcont, hooks);
    threads.release();
    left
}

/// Stops the other threads, if there are any.
///
/// A constructor may have put the process under a seccomp filter that kills it for the calls of a
/// lift. The filters that we have inherited ourselves are no such danger.
fn stop_others(process: Process, own: Option<Filters>, status: &Status) -> Result<Threads, Bypass> {
    if own.is_some_and(|own| own != filters(*status)) {
        return Err(Bypass::Confined);
    }
    match status.threads {
        Some(1) => Ok(Threads::default()),
        _ => Ok(Threads::stop(process.pid().cast_signed())?),
    }
}

fn filters(status: Status) -> Filters {
    (status.seccomp, status.seccomp_filters)
}

/// Lets a program in its entry stub go on by itself, without the SIGCONT that has stopped
/// it there.
fn dismiss(stopped: Stopped) -> Result<(), Error> {
    if stopped.signal_mask()? & SIGCONT_BIT == 0 {
        // It stops once more to receive it; our end then lets it go without.
        stopped.resume(Resume::Cont, 0)?.wait()?;
    }
    Ok(())
}

/// The program stands before its first own instruction. `drain` takes the SIGCONT off that
/// stopped it there.
fn lift(mut remote: Remote, drain: bool, hooks: &mut impl LiftHooks) -> Result<(), Error> {
    let pid = remote.pid.cast_unsigned();
    if drain {
        remote.drain_sigcont();
    }
    match hooks.lift(pid, &mut remote) {
        Verdict::Start => remote.leave(),
        Verdict::Refuse(status) => {
            remote.exit(status);
            Ok(())
        }
    }
}

/// It cannot be lifted. If it must not start then, it is killed: there is no place in it
/// for code that would make it exit.
fn refuse(stopped: &Stopped, hooks: &mut impl LiftHooks, why: &Bypass) {
    if let Verdict::Refuse(_) = hooks.bypass(why) {
        // SAFETY: kill(2) touches no memory; the process is our tracee, so the pid is its own.
        unsafe { libc::kill(stopped.tid(), libc::SIGKILL) };
    }
}

fn class32(stopped: &Stopped) -> Bypass {
    Bypass::Class32 { path: exe(stopped.tid()).into() }
}

fn exe(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_else(|_| PathBuf::from(format!("process {pid}")))
}
