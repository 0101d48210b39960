// SPDX-License-Identifier: Apache-2.0
//! The parts of a lift: what is asked ([`options`]), the launcher ([`start`]), and the lift of one program,
//! which the launcher prepares (`job`) and its helper carries out (`steps`). A program that runs already is lifted, and given its own
//! pages back, by [`attach`]; the watcher of a run does so when it is worth its cost (`live`), and [`watch`] does
//! it for processes that a user has chosen.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocator;
mod asked;
pub mod attach;
mod choose_base;
mod dry_run;
mod failure;
mod fork_guard;
mod job;
mod later;
pub mod launch;
mod lifted;
mod live;
mod memory_limit;
pub mod options;
mod placement;
mod prime;
mod report;
pub mod start;
mod steps;
pub mod text;
mod untouched;
pub mod unused;
pub mod watch;
pub mod watcher;
mod watching;

pub use failure::Failure;

/// Exit status of hugelift's own failures, as env(1) has it.
pub const FAILED: i32 = 125;
