// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` command: a file or a folder for each subcommand (`restore` is in `attach`).
//!
//! It is a library so that manual pages and completions can be made from the definition of its options. Of the other
//! crates only `manual` uses it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod advise;
mod align;
mod attach;
mod colour;
mod command_line;
mod commands_shown;
mod compare;
mod doctor;
mod ending;
mod failure;
mod inspect;
mod lab;
mod log;
mod ministat;
mod options;
mod output;
mod pool;
mod prime;
mod process_id;
mod program;
mod run;
mod service;
mod starter;
mod stat;
mod store;
mod top;
mod usage;
mod wrap;

pub use command_line::{definition, enter};
pub use ending::Ending;

/// Exit status of hugelift's own failures, as for env(1).
pub use hugelift_lift::FAILED;
