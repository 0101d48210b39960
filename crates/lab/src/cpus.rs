// SPDX-License-Identifier: Apache-2.0
//! The CPUs that this process may use.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Returns how many CPUs this process may use.
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the numbers of these CPUs; none if the kernel does not report them.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect()
}

/// Pins the calling thread to one CPU. If the kernel refuses, the thread is not pinned. Allocates
/// nothing, so that a child of fork(2) may call it.
pub fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
