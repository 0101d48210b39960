// SPDX-License-Identifier: Apache-2.0
//! The clocks of the experiments.

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Returns the CPU time of the calling thread in nanoseconds. Time that other programs take is not in it.
pub fn thread_cpu_ns() -> u64 {
    // Every kernel since 2.6 has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| t.num_nanoseconds().cast_unsigned())
}

/// Returns the nanoseconds since `then`, at most the four seconds that fit into a sample.
pub fn since_ns(then: Instant) -> u32 {
    u32::try_from(then.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// Returns what it costs to read the clock twice, in nanoseconds: the least of many measurements. It is
/// subtracted from every sample.
pub fn cost_ns() -> u32 {
    (0..10_000).map(|_| since_ns(Instant::now())).min().unwrap_or(0)
}

/// Returns the date and time in UTC, as in 2026-01-31T12:00:00Z.
pub fn utc_now() -> String {
    // SAFETY: time(2) with no place to store the time in; gmtime_r(3) writes to the given tm,
    // which lives through the call.
    let tm = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut tm: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const now, &raw mut tm);
        tm
    };
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    let (hour, minute, second) = (tm.tm_hour, tm.tm_min, tm.tm_sec);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", tm.tm_mday)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_date_command() {
        let seconds = |text: &str| {
            let out = std::process::Command::new("date").args(["-ud", text, "+%s"]).output().unwrap();
            String::from_utf8(out.stdout).unwrap().trim().parse::<u64>().unwrap()
        };
        let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(seconds(&utc_now()).abs_diff(real) < 60, "{}", utc_now());
    }
}
