// SPDX-License-Identifier: Apache-2.0
//! Measuring programs: interleaved rounds, the cost of one child by wait4(2), what smaps shows of
//! it while it runs, and the statistics of pairs.
//!
//! | module | holds |
//! |---|---|
//! | [`rounds`] | sides that run in turn, in an order drawn anew for each round |
//! | [`program`], [`child`], [`interrupt`] | what to run and how; one child and its cost; what ctrl-C ends |
//! | [`timed`] | a run that is measured |
//! | [`inspection`] | a run that is not measured: the program is stopped at its exit and its memory read |
//! | [`server`], [`ready`], `tree` | a server for one round, when it is ready, the CPU time of its processes |
//! | [`live`] | a process that runs: the periods in which it is lifted or bare, and what is read of it |
//! | [`generated`], [`sample`] | the generated programs; runs of programs that wait while their memory is read |
//! | [`coverage`] | how much of a process is huge, by smaps |
//! | `run`, `memory` | one run and its figures; how much of a process was huge |
//! | [`stats`], [`stopping`], [`comparison`] | intervals of pairs, when there are enough pairs, what may be claimed |
//! | [`ministat`] | samples compared by Student's t, as ministat(1) does |
//! | [`pmu`] | the events of each CPU model and what follows from their counts |
//! | [`perf`] | counting events by perf_event_open(2) |
//! | [`cost`] | what threads waited for: compaction, reclaim, copies; what the machine did for huge pages |
//! | [`heat`] | the code in use, by samples of instruction addresses |
//! | [`processes`] | all processes: their CPU time, their text and its huge bytes |
//! | [`host`], [`uprobe`] | the machine in one line; a count of executions of one instruction |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod child;
pub mod comparison;
pub mod cost;
pub mod coverage;
pub mod generated;
pub mod heat;
pub mod host;
pub mod inspection;
pub mod interrupt;
pub mod live;
mod memory;
pub mod ministat;
pub mod perf;
pub mod pmu;
pub mod processes;
pub mod program;
pub mod ready;
pub mod rounds;
mod run;
pub mod sample;
pub mod server;
pub mod stats;
pub mod stopping;
pub mod timed;
pub mod tree;
pub mod uprobe;
