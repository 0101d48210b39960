// SPDX-License-Identifier: Apache-2.0
//! The helper: the process that stops the program at its start, has it lifted, and ends.
//!
//! ```text
//!   launcher ----------- execve ==> loader ==> constructors ==> entry stub ==> program
//!      ^ seize              |                                        |
//!   helper ............. stop: static? lift                 stop: lift the dynamic one
//! ```

use crate::arch;
use crate::home::{Home, Room};
use crate::memory;
use crate::plain::Plain;
use crate::procfs::{Auxv, Process};
use crate::ptrace::{Error, Resume, Running, Stop, Stopped};
use crate::remote::Remote;
use crate::threads::Threads;
use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;
use std::path::PathBuf;

/// What is to be done with a program that is stopped before its first own instruction.
pub trait Lifter {
    /// Changes `target`, the process `pid`; says whether the program may start.
    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict;
    /// It cannot be changed, and why; says whether the program may start all the same.
    fn plain(&mut self, why: &Plain) -> Verdict;
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
/// When this returns the program may run on; it does so when the calling process ends.
///
/// # Errors
/// [`Error::Vanished`] if the program ended before, anything else if it was lost.
pub fn attend(running: Running, reap: Option<i32>, lifter: &mut impl Lifter) -> Result<(), Error> {
    let mut running = running;
    let mut waiting: Option<Entry> = None;
    loop {
        let (stopped, stop) = running.wait()?;
        running = match stop {
            Stop::Exec => match at_exec(stopped, reap, lifter)? {
                Next::Done => return Ok(()),
                Next::Entry(stopped, entry) => {
                    waiting = Some(entry);
                    stopped.resume(Resume::Cont, 0)?
                }
            },
            Stop::Trap => {
                let pc = stopped.regs()?.map(|r| r.pc());
                match &waiting {
                    Some(entry) if pc.is_some_and(|pc| entry.room.is_in_entry_stub(pc)) => {
                        return at_entry(stopped, entry, reap, lifter);
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

const SIGCONT_BIT: u64 = 1 << (libc::SIGCONT - 1);

/// A dynamic program on its way to its entry point.
struct Entry {
    room: Room,
    addr: Addr,
    /// SIGCONT was pending already: it is not the stub's, and stays.
    sigcont: bool,
}

enum Next {
    /// Lifted, or not to be lifted.
    Done,
    /// The loader is to run first.
    Entry(Stopped, Entry),
}

fn at_exec(stopped: Stopped, reap: Option<i32>, lifter: &mut impl Lifter) -> Result<Next, Error> {
    match prepare(&stopped) {
        Ok(Start::Dynamic(entry)) => Ok(Next::Entry(stopped, entry)),
        Ok(Start::Static(room)) => {
            // Behind the system call the registers are the program's own.
            let (stopped, stop) = stopped.resume(Resume::Syscall, 0)?.wait()?;
            if stop != Stop::Syscall {
                return Err(Error::Unexpected { tid: stopped.tid(), status: 0 });
            }
            match stopped.regs()? {
                Some(regs) => {
                    lift(Home::arm(&stopped, regs.after_exec(), room, reap)?, stopped, false, lifter)?
                }
                None => refuse(&stopped, lifter, &class32(&stopped)),
            }
            Ok(Next::Done)
        }
        Err(Plain::Ptrace(error @ Error::Vanished(_))) => Err(error),
        Err(why) => {
            refuse(&stopped, lifter, &why);
            Ok(Next::Done)
        }
    }
}

enum Start {
    Static(Room),
    Dynamic(Entry),
}

/// Looks at a program right behind its execve(2), and arranges for a dynamic one to stop
/// at its entry point.
fn prepare(stopped: &Stopped) -> Result<Start, Plain> {
    let pid = stopped.tid();
    let process = Process::new(pid.cast_unsigned());
    let regs = stopped.regs()?.ok_or_else(|| class32(stopped))?;
    let mappings = process.maps()?;
    let auxv = process.auxv()?;
    if auxv.secure != 0 {
        return Err(Plain::Privileged { path: exe(pid), what: "started with AT_SECURE" });
    }
    let room = Room::find(pid, &mappings).ok_or(Plain::NoRoom)?;
    if auxv.base == 0 {
        return Ok(Start::Static(room));
    }
    let addr = Addr(auxv.entry);
    let slot = find_entry_slot(pid, regs.sp(), &mappings, &auxv).ok_or(Plain::NoEntry)?;
    room.write_entry_stub(stopped, &arch::entry_stub(addr, slot))?;
    memory::write(pid, slot, &room.entry_stub().0.to_ne_bytes()).map_err(|source| Error::Os {
        what: "write the auxiliary vector",
        tid: pid,
        source,
    })?;
    // It can only be pending if it is blocked.
    let blocked = stopped.signal_mask()? & SIGCONT_BIT != 0;
    let sigcont = blocked && stopped.is_pending(libc::SIGCONT)?;
    Ok(Start::Dynamic(Entry { room, addr, sigcont }))
}

/// Where the value of AT_ENTRY stands on the stack that execve(2) has made:
/// `argc, argv..., NULL, envp..., NULL, (key, value)..., (AT_NULL, 0)`.
fn find_entry_slot(pid: i32, sp: Addr, mappings: &[Mapping], auxv: &Auxv) -> Option<Addr> {
    let stack = mappings.iter().find(|m| m.range.contains(sp))?;
    let mut bytes = vec![0; (stack.range.end.0 - sp.0) as usize];
    let len = memory::read(pid, sp, &mut bytes).ok()?;
    let words: Vec<u64> =
        bytes[..len].chunks_exact(8).map(|c| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))).collect();
    let argc = usize::try_from(*words.first()?).ok()?;
    let envp = argc.checked_add(2)?;
    let end = words.get(envp..)?.iter().position(|w| *w == 0)? + envp;
    let vector = end + 1;
    let pairs = words.get(vector..)?.chunks_exact(2);
    let index = pairs.take_while(|p| p[0] != 0).position(|p| p[0] == libc::AT_ENTRY && p[1] == auxv.entry)?;
    sp.checked_add(8 * (vector + 2 * index + 1) as u64)
}

/// A dynamic program in its entry stub: the loader and the constructors have run.
fn at_entry(
    stopped: Stopped,
    entry: &Entry,
    reap: Option<i32>,
    lifter: &mut impl Lifter,
) -> Result<(), Error> {
    let Some(regs) = stopped.regs()? else { return Err(Error::Vanished(stopped.tid())) };
    let threads = match confined(&stopped).map_or_else(|| Ok(Threads::stop(stopped.tid())?), Err) {
        Ok(threads) => threads,
        Err(why) => {
            refuse(&stopped, lifter, &why);
            return dismiss(stopped);
        }
    };
    let home = Home::arm(&stopped, arch::entry_home(regs, entry.addr), entry.room, reap)?;
    let left = lift(home, stopped, !entry.sigcont, lifter);
    threads.release();
    left
}

/// A constructor may have put the process under a seccomp filter that kills it for the
/// calls of a lift. The filters that we have inherited ourselves are no such danger.
fn confined(stopped: &Stopped) -> Option<Plain> {
    let filters = |process: Process| process.status().ok().map(|s| (s.seccomp, s.seccomp_filters));
    let (own, theirs) = (filters(Process::OWN)?, filters(Process::new(stopped.tid().cast_unsigned()))?);
    (own != theirs).then_some(Plain::Confined)
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

/// The program stands before its first own instruction; `home` is where it goes on.
/// `drain` takes the SIGCONT off that stopped it there.
fn lift(home: Home, stopped: Stopped, drain: bool, lifter: &mut impl Lifter) -> Result<(), Error> {
    let pid = stopped.tid().cast_unsigned();
    let mut remote = Remote::new(stopped, home);
    if drain {
        remote.drain_sigcont()?;
    }
    match lifter.lift(pid, &mut remote) {
        Verdict::Start => remote.leave(),
        Verdict::Refuse(status) => {
            remote.exit(status);
            Ok(())
        }
    }
}

/// It cannot be lifted. If it must not start then, it is killed: there is no place in it
/// for code that would make it exit.
fn refuse(stopped: &Stopped, lifter: &mut impl Lifter, why: &Plain) {
    if let Verdict::Refuse(_) = lifter.plain(why) {
        // SAFETY: kill(2) touches no memory; the process is our tracee, so the pid is its own.
        unsafe { libc::kill(stopped.tid(), libc::SIGKILL) };
    }
}

fn class32(stopped: &Stopped) -> Plain {
    Plain::Class32 { path: exe(stopped.tid()) }
}

fn exe(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_else(|_| PathBuf::from(format!("process {pid}")))
}
