// SPDX-License-Identifier: Apache-2.0
//! Measuring programs: interleaved rounds, one child's cost by wait4(2), and what smaps
//! shows of it while it runs.
//!
//! [`rounds`] runs sides in turn; a side is a [`program`] whose run is [`timed`], or a
//! [`server`] under a load. A [`inspection`] is a run that counts for nothing and shows everything.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod child;
pub mod comparison;
pub mod coverage;
pub mod generated;
pub mod host;
pub mod inspection;
pub mod interrupt;
pub mod ministat;
pub mod perf;
pub mod pmu;
pub mod processes;
pub mod program;
pub mod ready;
pub mod rounds;
pub mod sample;
pub mod server;
pub mod stats;
pub mod stopping;
pub mod timed;
pub mod tree;
pub mod uprobe;
