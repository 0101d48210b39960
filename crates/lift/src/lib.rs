// SPDX-License-Identifier: Apache-2.0
//! What a lift is made of: what is asked ([`start`]), the helper's [`job`], what is reported.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod afterwards;
pub mod child;
mod complaints;
mod dry_run;
mod failure;
pub mod job;
pub mod options;
pub mod start;
mod tell;
mod weigh;

pub use failure::Failure;

/// Exit status of hugelift's own failures, as env(1) has it.
pub const FAILED: i32 = 125;
