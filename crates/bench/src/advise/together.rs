// SPDX-License-Identifier: Apache-2.0
//! Pairs of runs at the same time on the same CPU: the scheduler alternates between the two every few milliseconds. So what
//! else happens on the machine, and on the host of a guest, disturbs both alike.

use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Runs both programs once. Returns the CPU seconds of each.
///
/// # Errors
/// One of them cannot be started, or ends with another status than 0.
pub fn pair(programs: [&Program; 2], cpu: usize, first: usize) -> Result<[f64; 2]> {
    interrupt::check()?;
    let start = |at: usize| {
        let program = Program { cpus: vec![cpu], ..programs[at].clone() };
        Child::start(&mut program.command()?)
    };
    let (one, other) = (start(first)?, start(1 - first)?);
    let mut seconds = [0.0; 2];
    for (at, child) in [(first, one), (1 - first, other)] {
        let (status, cost) = child.finish()?;
        ensure!(status.success(), "{}: {status}", programs[at]);
        seconds[at] = cost.cpu();
    }
    reap();
    interrupt::check()?;
    Ok(seconds)
}

/// Returns a CPU that this process may use.
///
/// # Errors
/// The kernel does not say.
pub fn a_cpu() -> Result<usize> {
    let own = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    let usable = |cpu: &usize| own.is_set(*cpu).unwrap_or(false);
    (0..CpuSet::count()).rev().find(usable).context("no CPU")
}

/// Waits for orphans that have ended. No other child runs at this time.
fn reap() {
    let ended = || waitpid(None, Some(WaitPidFlag::WNOHANG));
    while !matches!(ended(), Ok(WaitStatus::StillAlive) | Err(_)) {}
}
