// SPDX-License-Identifier: Apache-2.0
//! What was published: operations per second, and the latencies of a machine with as many CPUs.

use crate::contention::Transfer;

/// M. Macy, "Why is munmap single threaded and what can we do about it", scalebsd.org, May 2018: operations
/// per second of FreeBSD with all CPUs, with the lock and with epochs.
pub(super) const LOCK: f64 = 1.009e6;
pub(super) const WITH_EPOCHS: f64 = 3.551e6;

/// Number of CPUs in that measurement.
pub(super) const CPUS: usize = 96;

/// The number of processes at which the throughput with the lock has its maximum there, and this maximum.
pub(super) const PEAK: (usize, f64) = (12, 1.722e6);

/// A machine with as many CPUs as the literature's: two Xeon Platinum 8275CL, each with 24 cores of two
/// threads. Median latencies between cores, by <https://github.com/nviennot/core-to-core-latency>. The
/// literature does not name its machine.
pub(super) const TWO_SOCKETS: Transfer = Transfer { within: 47.0, between: 134.0, socket: 48 };
