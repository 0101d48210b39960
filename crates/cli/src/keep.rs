// SPDX-License-Identifier: Apache-2.0
//! `hugelift keep`: primes programs and files at its start and whenever they change, and keeps
//! their huge pages from being evicted. [`hugelift_service`] does it.

use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand};
use hugelift_core::keep::CONFIG;
use hugelift_linux::io::console;
use hugelift_service::answers::ask::{Daemon, KEEP, ask};
use hugelift_service::answers::status;
use hugelift_service::{Source, daemon};
use std::path::PathBuf;

/// Exit status where some of what is wanted is not huge.
const NOT_ALL: i32 = 1;

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

/// Show what a running `hugelift keep` or `hugelift service` keeps
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
    let source = Source::Keep(args.config.clone());
    match (&args.command, args.once) {
        (Some(KeepCommand::Status(args)), _) => show(args, &KEEP),
        (None, true) => Ok(exit(daemon::once(&source)?)),
        (None, false) => {
            daemon::run(source, args.socket.as_deref())?;
            Ok(Exit::SUCCESS)
        }
    }
}

/// Shows what a daemon answers.
pub(crate) fn show(args: &StatusArgs, daemon: &Daemon) -> Result<Exit, Failure> {
    let answer = ask(args.socket.as_deref(), daemon)?;
    let status = status::parse(&answer)?;
    console::print(&if args.json { answer } else { status::text(&status) })?;
    Ok(exit(status.is_huge()))
}

/// Returns the exit status.
fn exit(is_huge: bool) -> Exit {
    if is_huge { Exit::SUCCESS } else { Exit(NOT_ALL) }
}
