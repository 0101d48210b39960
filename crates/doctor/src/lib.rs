// SPDX-License-Identifier: Apache-2.0
//! What prevents huge pages on a machine or in a process, and the commands that change it.
//!
//! ```text
//! read::facts() -> Facts -> diagnose() -> findings
//!                        -> most_worth() -> programs with the command that lifts each
//!                        -> next() -> the command to type next
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`facts`] | what was read and what was tried, as plain data |
//! | [`read`] | reading the facts: of the machine, of a process, of the programs that run |
//! | `findings` | what the facts show, one file a group of findings; a pure function of them |
//! | [`alone`] | what the machine leaves to hugelift |
//! | [`worth`] | the programs that are most worth a lift |
//! | [`next`] | what to do next |
//! | [`mod@pool_wanted`] | the pool that a program would use by itself |
//!
//! `hugelift_report::doctor` shows them to people.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod alone;
pub mod facts;
mod findings;
pub mod next;
pub mod pool_wanted;
pub mod read;
pub mod worth;

pub use findings::memory::ready_huge_pages;
pub use findings::offers::{Offer, offers};
pub use findings::{Finding, Severity, diagnose};

/// Version of the JSON that `doctor --json` prints.
pub const VERSION: u32 = 1;
