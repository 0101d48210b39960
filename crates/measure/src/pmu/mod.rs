// SPDX-License-Identifier: Apache-2.0
//! The cost of TLB misses by the CPU's own counters: which events a CPU has, and what follows from
//! their counts.
//!
//! ```text
//! /proc/cpuinfo -> Cpu -> Model (events in groups) -> [perf: counts] -> Sample -> metrics -> report
//! ```
//!
//! [`tables`] is data: for each model the raw codes of its events, and the published table that they
//! were checked against. Models without such a table are left out, as a wrong code counts another
//! event and nothing shows it.
//!
//! The events of one group are on the PMU at the same time. Every share is computed within a group,
//! from the cycles that this group has counted. So multiplexing changes how long was counted, but
//! numerator and denominator cover the same time.

pub mod count;
pub mod counts;
pub mod cpu;
pub mod given;
pub mod metric;
pub mod report;
pub mod side_by_side;
pub mod tables;

pub use count::{Count, Sample};
pub use cpu::{Cpu, parse_cpuinfo};
pub use tables::{Event, Model, Role, model_of};
