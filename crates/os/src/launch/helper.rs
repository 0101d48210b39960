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

mod entry_stop;
mod exec_stop;

use self::entry_stop::{EntryStop, at_entry, at_library};
use self::exec_stop::{Next, at_exec};
use crate::launch::bypass::Bypass;
use crate::trace::deadline::Deadline;
use crate::trace::faultpoint::patience;
use crate::trace::ptrace::{Error, Resume, Running, Stop, Stopped};
use crate::trace::remote::Remote;
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::{Image, Move};
use hugelift_core::target::Fault;
use std::path::PathBuf;
use std::time::Duration;

/// What is done with a program on its way to its first own instruction: the steps, in the order of time.
///
/// The helper calls them. It is a process of its own, which traces the program. From
/// [`place`](Self::place) to [`ends_at_exec`](Self::ends_at_exec) the program stands at its exec stop: the
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

/// How long the program may take from execve(2) to its first own instruction. One whose constructors do
/// not return is traced no longer than that; its entry stub then leads to the program by itself.
const START: Duration = Duration::from_secs(60);
/// How long a lift may take: hundreds of gigabytes are copied in that time.
const LIFT: Duration = Duration::from_secs(600);

/// Sees `running`, the launcher, through its execve(2) to the program's first own instruction. `reap` is
/// the helper's own pid if the program is its parent and must wait for it.
///
/// When this returns the program may run on, and does so when the calling process ends, if not
/// before.
///
/// # Errors
/// [`Error::Vanished`] if the program ended before, anything else if it was lost.
pub fn attend(running: Running, reap: Option<i32>, hooks: &mut impl LiftHooks) -> Result<(), Error> {
    let Some(deadline) = limit(patience(START), hooks) else { return Ok(()) };
    let mut running = running;
    hooks.before_exec();
    let mut loading: Option<EntryStop> = None;
    loop {
        let (stopped, stop) = running.wait()?;
        running = match stop {
            Stop::Exec => {
                // A static program is lifted now.
                let _ = deadline.renew(LIFT);
                match at_exec(stopped, reap, hooks)? {
                    Next::Done => return Ok(()),
                    Next::Loading(stopped, mut program) => {
                        let _ = deadline.renew(patience(START));
                        let running = stopped.resume(Resume::Cont, 0)?;
                        program.read_inherited_filters();
                        hooks.while_loading(program.pid);
                        loading = Some(program);
                        running
                    }
                }
            }
            Stop::Trap => {
                let pc = stopped.regs()?.map(|r| r.pc());
                match &loading {
                    Some(program) if pc.is_some_and(|pc| program.contains(pc)) => {
                        let _ = deadline.renew(LIFT);
                        return at_entry(stopped, program, reap, hooks);
                    }
                    // A SIGCONT from another process.
                    _ => stopped.resume(Resume::Cont, 0)?,
                }
            }
            Stop::Signal(signal) => stopped.resume(Resume::Cont, signal)?,
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            Stop::Syscall => stopped.resume(Resume::Cont, 0)?,
        };
    }
}

/// Lifts `running`, a child of a lifted program, which is about to stop itself at `stop` in the library
/// inside it ([`mod@crate::launch::inside`]).
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
                Some(regs) if regs.pc() == stop => return at_library(stopped, hooks),
                // A SIGCONT from another process.
                _ => stopped.resume(Resume::Cont, 0)?,
            },
            Stop::Signal(signal) => stopped.resume(Resume::Cont, signal)?,
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            // The library would have waited.
            Stop::Exec | Stop::Syscall => return Ok(()),
        };
    }
}

/// Limits the time of all that the helper waits for. Without a limit nothing is lifted.
fn limit(time: Duration, hooks: &mut impl LiftHooks) -> Option<Deadline> {
    match Deadline::within(time) {
        Ok(deadline) => Some(deadline),
        Err(source) => {
            hooks.bypass(&Bypass::Resources { what: "setitimer", source });
            None
        }
    }
}

/// Lets the hooks lift a program that stands before its first own instruction, and lets it go. `drain`
/// discards the SIGCONT that stopped it there.
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

/// Gives up a program that cannot be lifted. If it must not start then, it is killed: there is no place
/// in it for code that would make it exit.
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
