// SPDX-License-Identifier: Apache-2.0
//! The CPU time of another process, in nanoseconds: /proc shows hundredths of a second.

use std::io;
use std::time::Duration;

/// Returns the CPU time that all threads of a process have used, also of those that have ended.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: clock_getcpuclockid(3) writes only to `clock`.
    match unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes only to `time`.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Ok(Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::cpu_time;
    use std::time::{Duration, Instant};

    #[test]
    fn own_cpu_time_grows_by_what_is_computed() {
        let (before, began) = (cpu_time(std::process::id()).unwrap(), Instant::now());
        while cpu_time(std::process::id()).unwrap() - before < Duration::from_millis(20) {
            assert!(began.elapsed() < Duration::from_secs(20), "the clock stands");
        }
        // Larger than any pid: the kernel's limit is 2^22.
        assert!(cpu_time(1 << 23).is_err());
    }
}
