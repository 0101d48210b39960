// SPDX-License-Identifier: Apache-2.0
//! The helper: the process that stops the program at its start, has it lifted, and ends.
//!
//! ```text
//!   launcher ----------- execve ==> loader ==> constructors ==> entry stub ==> program
//!      ^ seize              |                                        |
//!   helper ............. stop: static? lift                 stop: nothing to lift? let it go on
//!                        PIE? move; align the heap                lift the dynamic one
//!                        nothing left to do? end
//! ```

mod entry_stop;
mod exec_stop;

use self::entry_stop::{EntryStop, at_entry, leave_at_entry};
use self::exec_stop::{Next, at_exec};
use crate::launch::bypass::Bypass;
use crate::trace::deadline::Deadline;
use crate::trace::faultpoint::patience;
use crate::trace::ptrace::{Error, Resume, Running, Stop, Stopped};
use crate::trace::remote::Remote;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::{Image, Move};
use hugelift_core::target::Fault;
use std::path::PathBuf;
use std::time::Duration;

/// The steps of a lift on the way of a program to its first own instruction, in the order of time.
///
/// The helper calls them. It is a process of its own, which traces the program. From
/// [`place`](Self::place) to [`ends_at_exec`](Self::ends_at_exec) the program stands at its exec stop: the
/// kernel has mapped it, and nothing of it has run.
///
/// A static program has no loader, and is lifted at its exec stop.
pub trait LiftHooks {
    /// Is called when the launcher is about to call execve(2). Work done now costs the program no time.
    fn before_exec(&mut self);

    /// Returns where the executable should be instead; `None` leaves it where it is. The program stands at
    /// its exec stop, and `mappings` are all its mappings.
    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move>;

    /// Returns the page size; the heap's start is then moved to a multiple of it. `None` leaves the heap
    /// where it is. The program stands at its exec stop.
    fn heap_page(&self) -> Option<PageSize>;

    /// Is called after the move that `place` returned has been tried. The program stands at its exec stop.
    fn placed(&mut self, result: Result<(), &Fault>);

    /// Returns whether the helper may end before the loader runs, because nothing is left to do. It is not
    /// called if the program is its helper's parent: such a program waits for the helper at its entry
    /// point.
    fn ends_at_exec(&mut self, pid: u32) -> bool;

    /// Is called while the loader of the process `pid` runs, and then the constructors. Work done now costs
    /// the program no time.
    fn while_loading(&mut self, pid: u32);

    /// Returns whether the program may go on as it is, without [`lift`](Self::lift). The process `pid` stands before
    /// its first own instruction. It is not called if the program is its helper's parent.
    fn goes_on_untouched(&mut self, pid: u32) -> bool;

    /// Changes `target`, which is the process `pid`, and returns whether the program may start. The
    /// program stands before its first own instruction.
    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict;

    /// Is called when the program runs, and nothing waits for the helper. It is not called if the helper is
    /// the program's child.
    fn after_start(&mut self);

    /// Is called at any of these steps if the program cannot be lifted, with the reason. Returns whether it
    /// may start nevertheless. At most `after_start` follows.
    fn bypass(&mut self, why: &Bypass) -> Verdict;
}

/// Whether the program starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It starts.
    Start,
    /// It does not start: it exits with this status.
    Refuse(i32),
}

/// How long the program may take from execve(2) to its first own instruction. One whose constructors do
/// not return is traced no longer than that; its entry stub then leads to the program by itself.
const START: Duration = Duration::from_secs(60);
/// How long a lift may take: hundreds of gigabytes are copied in that time.
const LIFT: Duration = Duration::from_secs(600);

/// Traces `running`, the launcher, through its execve(2) to the program's first own instruction. `reap` is
/// the helper's own pid if the program is its parent and must wait for it.
///
/// When this returns the program may run on, and does so when the calling process ends, if not
/// before.
///
/// # Errors
/// [`Error::Vanished`] if the program ended before, any other error if control of it was lost.
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
                        return at_entry(stopped, program, reap, &deadline, hooks);
                    }
                    // A SIGCONT from another process.
                    _ => stopped.resume(Resume::Cont, 0)?,
                }
            }
            Stop::Signal(signal) => match &loading {
                Some(program) if program.dispatches(&stopped, signal)? => {
                    return leave_at_entry(stopped, program, hooks);
                }
                _ => stopped.resume(Resume::Cont, signal)?,
            },
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            Stop::Syscall => stopped.resume(Resume::Cont, 0)?,
        };
    }
}

/// Limits the time of everything that the helper waits for. Without a limit nothing is lifted.
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

/// Ends the work on a program that cannot be lifted. If it must not start then, it is killed: there is no
/// place in it for code that would make it exit.
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
