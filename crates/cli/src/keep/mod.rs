// SPDX-License-Identifier: Apache-2.0
//! `hugelift keep`: primes programs and files at its start and whenever they change, and keeps
//! their huge pages from being evicted.
//!
//! ```text
//!   daemon    one loop: signals, inotify, clients, timers
//!                |  task                            ^  result
//!                v                                  |
//!   worker    a thread: finds the files, primes them, locks them
//! ```
//!
//! The loop waits neither for the thread nor for a client. The daemon holds only mappings and a
//! socket: if it is killed, only the socket's name is left, which the next daemon replaces.

mod ask;
mod clients;
mod config;
mod daemon;
mod journal;
mod keeper;
mod pressure;
mod socket;
mod status;
mod wanted;
mod watch;
mod worker;

use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand};
use config::read_config;
use hugelift_core::keep::CONFIG;
use std::path::PathBuf;

/// Keep programs and files on huge pages, as a daemon
///
/// Primes the files of its configuration when it starts, when a file is replaced, and where pages
/// were evicted. Locks as many huge pages in memory as the budget allows. SIGHUP makes it read the
/// configuration again, SIGTERM ends it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct KeepArgs {
    #[command(subcommand)]
    command: Option<KeepCommand>,

    /// The configuration: which programs and files to keep
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,

    /// Prime everything once, lock nothing, and end; the exit status is 0 if all is huge, 1 if not
    #[arg(long)]
    once: bool,

    /// The socket for `hugelift keep status` [default: keep.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum KeepCommand {
    Status(StatusArgs),
}

/// Show what a running `hugelift keep` keeps
///
/// Exit status: 0 if all of it is huge, 1 if not, 125 if no daemon answers.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// The daemon's socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs the daemon until SIGTERM, or asks a running one.
///
/// # Errors
/// The daemon cannot start, or none answers.
pub fn run(args: &KeepArgs) -> Result<Exit, Failure> {
    if let Some(KeepCommand::Status(args)) = &args.command {
        return status::show(args.socket.as_deref(), args.json);
    }
    match args.once {
        true => Ok(daemon::once(read_config(&args.config)?)),
        false => daemon::run(&args.config, args.socket.as_deref()),
    }
}
