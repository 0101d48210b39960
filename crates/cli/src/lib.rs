// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` command: a file or a folder for each subcommand (`restore` is in `attach`).
//!
//! It is a library so that manual pages and completions can be made from the definition of its options. Of the other
//! crates only `manual` uses it.
//!
//! | module | holds |
//! |---|---|
//! | `command_line` | the definition of all subcommands, and what is done with a command line |
//! | `starter` | the command line of `hugelift run` alone |
//! | `run` | `hugelift run`: starts a program on huge pages |
//! | `attach` | `hugelift attach` and `hugelift restore`: processes that run already |
//! | `inspect` | `hugelift inspect`: what is on huge pages, what could be, why the rest is not |
//! | `doctor` | `hugelift doctor`: what prevents huge pages |
//! | `advise` | `hugelift advise`: whether huge pages may pay for a process |
//! | `top` | `hugelift top`: which processes execute most code |
//! | `compare` | `hugelift compare`: whether a program is faster when it is lifted |
//! | `stat` | `hugelift stat`: what TLB misses cost a program |
//! | `ministat` | `hugelift ministat`: compares samples in files |
//! | `lab` | `hugelift lab`: the experiments |
//! | `prime` | `hugelift prime`: the page cache of files on huge pages |
//! | `align` | `hugelift align`: copies an ELF file so that its code can be on huge pages |
//! | `pool` | `hugelift pool`: the hugetlb pools |
//! | `store` | `hugelift store`: the store of shared code |
//! | `service` | `hugelift service`: the programs of a machine, by a policy |
//! | `wrap` | `hugelift wrap` and `hugelift unwrap`: drop-ins for services of systemd |
//! | `options` | options that several subcommands share |
//! | `process_id` | process ids on the command line |
//! | `program` | programs that do not run, named on the command line |
//! | `colour` | `--color` |
//! | `output` | JSON, comma-separated values and pages of HTML |
//! | `log` | `HUGELIFT_LOG`: debugging output |
//! | `usage` | the answer to a command line that runs no command |
//! | `ending` | the end of each help: exit statuses and examples |
//! | `failure` | how a subcommand ends: its exit status, or the error type of this crate |
//! | `commands_shown` | commands that a message shows, run as they are shown |
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
