// SPDX-License-Identifier: Apache-2.0
//! The clocks of the experiments.

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// CPU time of the calling thread in nanoseconds: what others do on the machine is not in it.
pub fn thread_cpu_ns() -> u64 {
    // The clock is in every kernel since 2.6.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| t.num_nanoseconds().cast_unsigned())
}

/// Nanoseconds since `then`, up to the four seconds that a sample has room for.
pub fn since_ns(then: Instant) -> u32 {
    u32::try_from(then.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// What it costs to read the clock twice, in nanoseconds: the least of many tries, to be taken off
/// every sample.
pub fn cost_ns() -> u32 {
    (0..10_000).map(|_| since_ns(Instant::now())).min().unwrap_or(0)
}
