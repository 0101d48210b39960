// SPDX-License-Identifier: Apache-2.0
//! Counting events by perf_event_open(2): of a child, another process or the machine.

pub mod counters;
pub mod hardware;
pub mod kernel_counts;
pub mod walks;
pub mod workload;
