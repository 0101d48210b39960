// SPDX-License-Identifier: Apache-2.0
//! Counting events by perf_event_open(2): of a child, another process or the machine.
//!
//! | module | holds |
//! |---|---|
//! | [`counters`] | the counters of some threads, group by group |
//! | [`hardware`] | this machine's PMU with the table of its events |
//! | [`kernel_counts`] | what the kernel counts with or without a PMU |
//! | `tracepoint` | the numbers of tracepoints |
//! | `walks` | the share of cycles that a few processes spend in page walks |
//! | [`watch`] | both, of one program |
//! | [`workload`] | a program that is started to be counted, and waiting for its end |

pub mod counters;
pub mod hardware;
pub mod kernel_counts;
pub(crate) mod tracepoint;
pub(crate) mod walks;
pub mod watch;
pub mod workload;
