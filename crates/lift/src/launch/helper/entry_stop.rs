// SPDX-License-Identifier: Apache-2.0
//! The stop before the first own instruction: in the entry stub of a dynamic program. The loader has run.

use super::ends::{lift, refuse};
use crate::job::LiftJob;
use crate::launch::bypass::Bypass;
use hugelift_core::addr::Addr;
use hugelift_inject::arch::{self, Regs};
use hugelift_inject::deadline::Deadline;
use hugelift_inject::frame::{CodeCave, RestoreFrame};
use hugelift_inject::ptrace::{self, Error, Resume, Stop, Stopped};
use hugelift_inject::remote::Remote;
use hugelift_inject::threads::Threads;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::{Process, Status};
use std::time::Duration;

const SIGCONT_BIT: u64 = 1 << (libc::SIGCONT - 1);

/// The code of a SIGSYS that a dispatched call raises (asm-generic/siginfo.h).
const SYS_USER_DISPATCH: i32 = 2;

/// The mode of seccomp, and how many filters are in force.
type Filters = (Option<u32>, Option<u32>);

/// A dynamic program on its way to its entry stub.
pub(super) struct EntryStop {
    pub(super) pid: u32,
    cave: CodeCave,
    /// Where the program itself begins.
    entry: Addr,
    /// A SIGCONT was pending already: it is not the stub's, and stays.
    had_sigcont: bool,
    /// The helper's own filters, which the program has inherited too.
    inherited: Option<Filters>,
}

impl EntryStop {
    /// Writes the entry stub to `cave`, and makes the loader jump there instead of to `entry`, where the program itself
    /// begins: the loader reads the address at `slot`, in the auxiliary vector.
    pub(super) fn arrange(
        stopped: &Stopped,
        cave: CodeCave,
        entry: Addr,
        slot: Addr,
    ) -> Result<EntryStop, Bypass> {
        let pid = stopped.tid();
        cave.write_entry_stub(stopped, &arch::entry_stub(entry, slot))?;
        memory::write(pid, slot, &cave.entry_stub().0.to_ne_bytes()).map_err(|source| Error::Os {
            what: "write the auxiliary vector",
            tid: pid,
            source,
        })?;
        // It can only be pending if it is blocked.
        let blocked = stopped.signal_mask()? & SIGCONT_BIT != 0;
        let had_sigcont = blocked && stopped.has_sigcont_pending()?;
        Ok(EntryStop { pid: pid.cast_unsigned(), cave, entry, had_sigcont, inherited: None })
    }

    /// Reads the filters that the program has inherited, which this process has as well, while the loader runs.
    pub(super) fn read_inherited_filters(&mut self) {
        self.inherited = own_filters();
    }

    /// Returns whether the program has stopped at a SIGSYS because a call of the entry stub was dispatched to the program
    /// itself: a constructor has asked for that (PR_SET_SYSCALL_USER_DISPATCH). Before, at execve(2), nothing is
    /// dispatched: the kernel ends it there.
    pub(super) fn dispatches(&self, stopped: &Stopped, signal: i32) -> Result<bool, Error> {
        if signal != libc::SIGSYS || stopped.signal_origin()?.0 != SYS_USER_DISPATCH {
            return Ok(false);
        }
        Ok(stopped.regs()?.is_some_and(|regs| self.contains(regs.pc())))
    }

    /// Returns whether `pc` is in the entry stub.
    pub(super) fn contains(&self, pc: Addr) -> bool {
        self.cave.is_in_entry_stub(pc)
    }
}

/// How long a program may take from its entry stub to the SIGCONT that the stub has sent: microseconds, unless it runs
/// a handler first.
const SOON: Duration = Duration::from_secs(1);

/// Lifts a dynamic program in its entry stub, or lets it go on as it is.
pub(super) fn at_entry(
    stopped: Stopped,
    program: &EntryStop,
    reap: Option<i32>,
    deadline: &Deadline,
    job: &mut LiftJob,
) -> Result<(), Error> {
    let Some(regs) = stopped.regs()? else { return Err(Error::Vanished(stopped.tid())) };
    let regs = arch::entry_registers(regs, program.entry);
    let takes_sigcont = stopped.signal_mask()? & SIGCONT_BIT == 0;
    if reap.is_none() && takes_sigcont && job.goes_on_untouched(program.pid) {
        return go_on(stopped, program, &regs, deadline);
    }
    let process = Process::new(program.pid);
    let status = process.status().map_err(Bypass::from);
    let ready = status.and_then(|status| Ok((stop_others(process, program.inherited, &status)?, status)));
    let (threads, status) = match ready {
        Ok(ready) => ready,
        Err(why) => {
            refuse(&stopped, job, &why);
            return dismiss(stopped);
        }
    };
    let frame = RestoreFrame::arm(&stopped, regs, program.cave, reap)?;
    let mut remote = Remote::new(stopped, frame);
    remote.set_status(status);
    let left = lift(remote, !program.had_sigcont, job);
    threads.release();
    left
}

/// Lets a program go on whose entry stub cannot make a call. The stub has made no call yet, and has put the program's own
/// entry point back. A program that is to wait for its helper cannot be made to: it gets a SIGCHLD when that ends.
pub(super) fn leave_at_entry(stopped: Stopped, program: &EntryStop, job: &mut LiftJob) -> Result<(), Error> {
    let Some(regs) = stopped.regs()? else { return Err(Error::Vanished(stopped.tid())) };
    refuse(&stopped, job, &Bypass::Dispatches);
    stopped.set_regs(&arch::entry_registers(regs, program.entry))?;
    program.cave.clear(&stopped)?;
    // Without the signal.
    stopped.detach(0)
}

/// Stops the other threads, if there are any.
///
/// A constructor may have put the process under a seccomp filter that kills it for the calls of a
/// lift. The filters that the helper has inherited too are not a danger.
fn stop_others(process: Process, inherited: Option<Filters>, status: &Status) -> Result<Threads, Bypass> {
    if inherited.is_some_and(|inherited| inherited != filters(*status)) {
        return Err(Bypass::Confined);
    }
    match status.threads {
        Some(1) => Ok(Threads::default()),
        _ => Ok(Threads::stop(process.pid().cast_signed())?),
    }
}

fn own_filters() -> Option<Filters> {
    Process::OWN.status().ok().map(filters)
}

fn filters(status: Status) -> Filters {
    (status.seccomp, status.seccomp_filters)
}

/// Lets a program in its entry stub go on at its entry point with `regs`, without the SIGCONT that has stopped it
/// there. It makes no system call for this.
fn go_on(stopped: Stopped, program: &EntryStop, regs: &Regs, deadline: &Deadline) -> Result<(), Error> {
    let own = (libc::SI_TKILL, stopped.tid());
    let _ = deadline.renew(SOON);
    stopped.set_regs(regs)?;
    program.cave.clear(&stopped)?;
    let (mut stopped, mut signal) = (stopped, 0);
    // A signal that stops the process, from another one, removes the SIGCONT (signal(7)).
    while stopped.has_sigcont_pending()? {
        let (next, stop) = match stopped.resume(Resume::Cont, signal)?.wait_shortly() {
            // It runs a handler that blocks the SIGCONT. Another handler may see it afterwards.
            Err(Error::Late(tid)) => {
                let _ = deadline.renew(SOON);
                return ptrace::let_go(tid);
            }
            waited => waited?,
        };
        stopped = next;
        signal = match stop {
            Stop::Signal(libc::SIGCONT) if stopped.signal_origin()? == own => 0,
            Stop::Signal(signal) => signal,
            Stop::Group(_) | Stop::Trap | Stop::Syscall | Stop::Exec => 0,
        };
    }
    stopped.detach(signal)
}

/// Lets a program in its entry stub go on by itself, without the SIGCONT that has stopped it there.
fn dismiss(stopped: Stopped) -> Result<(), Error> {
    if stopped.signal_mask()? & SIGCONT_BIT == 0 {
        // The program stops once more to receive the signal; when the helper ends, it goes on without the
        // signal.
        stopped.resume(Resume::Cont, 0)?.wait()?;
    }
    Ok(())
}
