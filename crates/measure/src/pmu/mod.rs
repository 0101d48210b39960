// SPDX-License-Identifier: Apache-2.0
//! What TLB misses cost, from the CPU's own counters: which events a CPU has, and what
//! follows from their counts.
//!
//! ```text
//! /proc/cpuinfo -> Cpu -> Model (events in groups) -> [os: counts] -> Sample -> metrics -> report
//! ```
//!
//! [`tables`] is data: per model the raw codes of its events, with the published table that
//! they were checked against. Models that no such table was at hand for are left out, as a
//! wrong code counts something else without a word.
//!
//! The events of one group are on the PMU at the same time. Every share is taken within a
//! group, over the cycles that this group has counted itself: multiplexing then changes how
//! much was seen, and not what is divided by what.

pub mod count;
pub mod cpu;
pub mod given;
pub mod metric;
pub mod report;
pub mod tables;

pub use count::{Count, Sample};
pub use cpu::{Cpu, parse_cpuinfo};
pub use tables::{Event, Model, Role, model_of};
