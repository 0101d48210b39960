// SPDX-License-Identifier: Apache-2.0
//! CPU time, in nanoseconds where /proc shows clock ticks.

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::io;
use std::time::Duration;

/// The clock of the CPU time that the scheduler counts (`CPUCLOCK_SCHED`).
const SCHED: libc::clockid_t = 2;

/// Returns the CPU time that all threads of a process have used, also of those that have ended.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // As clock_getcpuclockid(3) makes it (MAKE_PROCESS_CPUCLOCK in the kernel's include/linux/posix-timers_types.h). That function
    // also asks the kernel whether there is such a process, which the next call does too.
    let clock = (!pid.cast_signed() << 3) | SCHED;
    match clock_gettime(ClockId::from_raw(clock)) {
        Err(Errno::EINVAL) => Err(Errno::ESRCH.into()),
        time => Ok(time?.into()),
    }
}

/// Returns the CPU time that this process has used.
pub fn own_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Returns the CPU time that the calling thread has used.
pub fn cpu_time_of_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Returns the clock ticks of a second, in which /proc counts CPU time.
pub fn ticks_per_second() -> u64 {
    let each = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|each| u64::try_from(each).ok());
    each.filter(|each| *each > 0).unwrap_or(100)
}

/// Returns the time of so many clock ticks.
pub fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn own_cpu_time_grows_by_what_is_computed() {
        let own = || cpu_time(std::process::id()).unwrap();
        let (before, of_thread, began) = (own(), cpu_time_of_thread(), Instant::now());
        while own() - before < Duration::from_millis(20) {
            assert!(began.elapsed() < Duration::from_secs(20), "the clock stands");
        }
        let used = cpu_time_of_thread() - of_thread;
        assert!(used > Duration::ZERO && used <= own_cpu_time(), "{used:?}");
        // Larger than any pid: the kernel's limit is 2^22.
        assert!(cpu_time(1 << 23).is_err());
    }
}
