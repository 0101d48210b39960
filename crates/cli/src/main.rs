// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` command: one file a subcommand.
//!
//! `main` is C's own: the standard library's would ignore SIGPIPE and open closed
//! standard files, and the program that we become would inherit that.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod align;
mod compare;
mod doctor;
mod failure;
mod inside;
mod inspect;
mod keep;
mod lab;
mod log;
mod ministat;
mod options;
mod output;
mod pool;
mod prime;
mod program;
mod run;
mod stat;
mod store;
mod top;
mod usage;

use clap::{Parser, Subcommand};
use failure::{Exit, Failure};
use hugelift_lift::start::EarlyStatus;
use run::RunArgs;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// musl's own returns memory to the kernel at once, and takes it again: a third of the page faults of a
/// start.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Exit status of hugelift's own failures, as env(1) has it.
pub use hugelift_lift::FAILED;

/// Puts the code and data of any Linux program on huge pages.
#[derive(Parser)]
#[command(name = "hugelift", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(RunArgs),
    Compare(Box<compare::CompareArgs>),
    Stat(stat::StatArgs),
    Inspect(inspect::InspectArgs),
    Top(top::TopArgs),
    Doctor(doctor::DoctorArgs),
    Pool(pool::PoolArgs),
    Prime(prime::PrimeArgs),
    Align(align::AlignArgs),
    Keep(keep::KeepArgs),
    Store(store::StoreArgs),
    Ministat(ministat::MinistatArgs),
    Lab(lab::LabArgs),
}

/// `hugelift run` alone. Programs wait for it, and to describe all the other subcommands to the
/// parser takes as long as everything else before execve(2).
#[derive(Parser)]
#[command(name = "hugelift", max_term_width = 100)]
struct Starter {
    #[command(subcommand)]
    command: Start,
}

#[derive(Subcommand)]
enum Start {
    Run(RunArgs),
}

/// The options of `hugelift run` that `words` are.
///
/// # Errors
/// What clap says of them.
fn run_options(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, clap::Error> {
    let words = ["hugelift", "run"].map(OsString::from).into_iter().chain(words);
    let Starter { command: Start::Run(run) } = Starter::try_parse_from(words)?;
    Ok(run)
}

/// What [`Starter`] does not understand is for [`Cli`], which also knows what to say of it.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    if args.get(1).is_some_and(|name| name == "run")
        && let Ok(Starter { command: Start::Run(run) }) = Starter::try_parse_from(args)
    {
        return Ok(Cli { command: Command::Run(run) });
    }
    Cli::try_parse_from(args)
}

/// The subcommand that `args` name, and the one in it: `store drop`.
fn subcommands(args: &[OsString]) -> String {
    let mut command = <Cli as clap::CommandFactory>::command();
    let mut path = Vec::new();
    // An option with a value before the inner one hides it: the outer one's help has that too.
    for name in args.iter().skip(1).map_while(|arg| arg.to_str()) {
        let Some(inner) = command.find_subcommand(name) else { break };
        path.push(name);
        command = inner.clone();
    }
    path.join(" ")
}

/// Entry point from the C runtime.
///
/// # Safety
/// `argv` holds `argc` strings, as the C runtime passes them.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn main(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the caller's promise; each string ends in NUL and lives as long as we do.
    let argument = |i| unsafe { CStr::from_ptr(*argv.add(i)) };
    let args = || (0..count).map(|i| OsStr::from_bytes(argument(i).to_bytes()).to_os_string()).collect();
    // A program may be started with less stack than hugelift needs.
    if count > 1 && argument(1) == c"run" {
        return hugelift_os::launch::stack::on_new_stack(|| {
            let status = EarlyStatus::read();
            if !status.is_filtered() {
                hugelift_os::io::console::guard_standard_files();
            }
            let args: Vec<OsString> = args();
            command(&args, Some(status))
        });
    }
    hugelift_os::io::console::guard_standard_files();
    let args: Vec<OsString> = args();
    if count > 1 && args[1] == hugelift_os::launch::inside::SUBCOMMAND {
        return status_of(log::start().and_then(|()| inside::run(&args[2..])));
    }
    command(&args, None)
}

fn command(args: &[OsString], status: Option<EarlyStatus>) -> i32 {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            let status = if error.use_stderr() { FAILED } else { 0 };
            match usage::complaint(&error, &subcommands(args)) {
                Some(line) => hugelift_os::io::console::say(&line),
                // Nobody may be reading.
                None => _ = error.print(),
            }
            return status;
        }
    };
    status_of(log::start().and_then(|()| run(cli.command, status)))
}

/// Returns the exit status. Says why hugelift has failed, if it has.
fn status_of(ended: Result<Exit, Failure>) -> i32 {
    match ended {
        Ok(Exit(status)) => status,
        Err(failure) => {
            hugelift_os::io::console::say(&failure.message);
            failure.status
        }
    }
}

fn run(command: Command, status: Option<EarlyStatus>) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::run(args, status.unwrap_or_else(EarlyStatus::read)),
        Command::Compare(args) => compare::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Prime(args) => prime::run(&args),
        Command::Align(args) => align::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Ministat(args) => ministat::run(&args),
        Command::Lab(args) => lab::run(&args),
    }
}
