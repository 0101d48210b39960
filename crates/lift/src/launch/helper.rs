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

mod ends;
mod entry_stop;
mod exec_stop;

use self::entry_stop::{EntryStop, at_entry, leave_at_entry};
use self::exec_stop::{Next, at_exec};
use crate::job::LiftJob;
use crate::launch::bypass::Bypass;
use hugelift_inject::deadline::Deadline;
use hugelift_inject::ptrace::{Error, Resume, Running, Stop};
use hugelift_linux::faultpoint::patience;
use std::time::Duration;

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
pub fn attend(running: Running, reap: Option<i32>, job: &mut LiftJob) -> Result<(), Error> {
    let Some(deadline) = limit(patience(START), job) else { return Ok(()) };
    let mut running = running;
    job.before_exec();
    let mut loading: Option<EntryStop> = None;
    loop {
        let (stopped, stop) = running.wait()?;
        running = match stop {
            Stop::Exec => {
                // A static program is lifted now.
                let _ = deadline.renew(LIFT);
                match at_exec(stopped, reap, job)? {
                    Next::Done => return Ok(()),
                    Next::Loading(stopped, mut program) => {
                        let _ = deadline.renew(patience(START));
                        let running = stopped.resume(Resume::Cont, 0)?;
                        program.read_inherited_filters();
                        job.while_loading(program.pid);
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
                        return at_entry(stopped, program, reap, &deadline, job);
                    }
                    // A SIGCONT from another process.
                    _ => stopped.resume(Resume::Cont, 0)?,
                }
            }
            Stop::Signal(signal) => match &loading {
                Some(program) if program.dispatches(&stopped, signal)? => {
                    return leave_at_entry(stopped, program, job);
                }
                _ => stopped.resume(Resume::Cont, signal)?,
            },
            Stop::Group(_) => stopped.resume(Resume::Listen, 0)?,
            Stop::Syscall => stopped.resume(Resume::Cont, 0)?,
        };
    }
}

/// Limits the time of everything that the helper waits for. Without a limit nothing is lifted.
fn limit(time: Duration, job: &mut LiftJob) -> Option<Deadline> {
    match Deadline::within(time) {
        Ok(deadline) => Some(deadline),
        Err(source) => {
            job.bypass(&Bypass::Resources { what: "setitimer", source });
            None
        }
    }
}
