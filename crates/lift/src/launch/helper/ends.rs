// SPDX-License-Identifier: Apache-2.0
//! How the helper leaves a program: lifted, as it is, or dead.

use crate::job::LiftJob;
use crate::launch::bypass::{Bypass, Verdict};
use hugelift_inject::ptrace::{Error, Stopped};
use hugelift_inject::remote::Remote;
use std::path::PathBuf;

/// Lifts a program that stands before its first own instruction, and lets it go. `drain`
/// discards the SIGCONT that stopped it there.
pub(super) fn lift(mut remote: Remote, drain: bool, job: &mut LiftJob) -> Result<(), Error> {
    let pid = remote.pid.cast_unsigned();
    if drain {
        remote.drain_sigcont();
    }
    match job.lift(pid, &mut remote) {
        Verdict::Start => remote.leave(),
        Verdict::Refuse(status) => {
            remote.exit(status);
            Ok(())
        }
    }
}

/// Ends the work on a program that cannot be lifted. If it must not start then, it is killed: there is no
/// place in it for code that would make it exit.
pub(super) fn refuse(stopped: &Stopped, job: &mut LiftJob, why: &Bypass) {
    if let Verdict::Refuse(_) = job.bypass(why) {
        // SAFETY: kill(2) touches no memory; the process is our tracee, so the pid is its own.
        unsafe { libc::kill(stopped.tid(), libc::SIGKILL) };
    }
}

pub(super) fn class32(stopped: &Stopped) -> Bypass {
    Bypass::Class32 { path: exe(stopped.tid()).into() }
}

pub(super) fn exe(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_else(|_| PathBuf::from(format!("process {pid}")))
}
