// SPDX-License-Identifier: Apache-2.0
//! How a thread is held for a short time: the scheduling class of the tracer, and how it waits.

use crate::ptrace::Tid;
use hugelift_linux::proc::loadavg::LoadAvg;
use hugelift_linux::proc::procfs::Process;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::sync::OnceLock;
use std::time::Duration;

/// The scheduling class of this thread while it holds a thread of the program: on a machine whose CPUs are all
/// busy, the program's thread would else wait for this one.
pub(super) struct Urgent {
    /// It has been changed.
    is_set: bool,
}

impl Urgent {
    /// Asks for it. Without the right (`CAP_SYS_NICE`), or in a class that the user chose, nothing changes.
    pub(super) fn new() -> Urgent {
        // SAFETY: sched_getscheduler(2) takes a number; 0 is the calling thread.
        let class = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        Urgent { is_set: class == libc::c_long::from(libc::SCHED_OTHER) && set_scheduler(libc::SCHED_RR, 1) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.is_set {
            set_scheduler(libc::SCHED_OTHER, 0);
        }
    }
}

/// Sets the scheduling class of the calling thread; returns whether that was permitted.
fn set_scheduler(class: i32, priority: i32) -> bool {
    // musl's sched_setscheduler(3) does nothing, so this is the system call.
    // SAFETY: sched_setscheduler(2) reads a struct sched_param, one int, that lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const priority) == 0 }
}

/// Returns for how long the next stop of a thread is asked for before the tracer sleeps. To be woken takes 20 us and
/// more. But in this scheduling class nobody else gets the CPU meanwhile, so nothing is asked unless a CPU is left for
/// each thread that runs and for this one.
pub(super) fn asks(pid: i32, tid: Tid) -> Duration {
    const ASKS: Duration = Duration::from_micros(50);
    let Some(now) = LoadAvg::read() else { return Duration::ZERO };
    let is_counted = Process::of(pid).stat_of_thread(tid).is_ok_and(|stat| stat.state == 'R');
    let wanted = now.running + u32::from(!is_counted);
    if wanted <= cpus() { ASKS } else { Duration::ZERO }
}

/// Returns how many CPUs this process may use.
fn cpus() -> u32 {
    static CPUS: OnceLock<u32> = OnceLock::new();
    let count =
        |cpus: CpuSet| (0..CpuSet::count()).filter(|cpu| cpus.is_set(*cpu) == Ok(true)).count() as u32;
    *CPUS.get_or_init(|| sched_getaffinity(Pid::from_raw(0)).map_or(1, count))
}
