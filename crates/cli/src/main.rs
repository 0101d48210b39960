// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` command: one file a subcommand.
//!
//! The C runtime calls `main` here directly. Before Rust's own `main` the standard library would ignore
//! SIGPIPE and open closed standard files, and the program that hugelift becomes would inherit that.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod align;
mod attach;
mod compare;
mod doctor;
mod failure;
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
mod service;
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

/// Replaces musl's allocator, which returns freed memory to the kernel at once and requests it again:
/// that causes a third of the page faults of a start.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Exit status of hugelift's own failures, as for env(1).
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
    Attach(attach::AttachArgs),
    Restore(attach::RestoreArgs),
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

/// The command line with `hugelift run` alone. Each start of a program waits for its parser, and
/// describing all other subcommands to clap takes as long as everything else before execve(2).
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

/// Parses `words` as the arguments of `hugelift run`.
///
/// # Errors
/// clap's description of what is wrong.
fn run_options(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, clap::Error> {
    let words = ["hugelift", "run"].map(OsString::from).into_iter().chain(words);
    let Starter { command: Start::Run(run) } = Starter::try_parse_from(words)?;
    Ok(run)
}

/// Parses the command line. What [`Starter`] rejects is parsed again by [`Cli`], whose error messages
/// know all subcommands.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    if args.get(1).is_some_and(|name| name == "run")
        && let Ok(Starter { command: Start::Run(run) }) = Starter::try_parse_from(args)
    {
        return Ok(Cli { command: Command::Run(run) });
    }
    Cli::try_parse_from(args)
}

/// Returns the subcommand in `args` with its inner subcommand: `store drop`.
fn subcommands(args: &[OsString]) -> String {
    let mut command = <Cli as clap::CommandFactory>::command();
    let mut path = Vec::new();
    // An option with a value in front of the inner subcommand ends the search. The help of the outer
    // one then serves: it lists the inner one.
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
/// `argv` holds `argc` strings that end in NUL, as the C runtime passes them.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn main(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the caller passes `count` strings that end in NUL and live as long as the process.
    let argument = |i| unsafe { CStr::from_ptr(*argv.add(i)) };
    let args = || (0..count).map(|i| OsStr::from_bytes(argument(i).to_bytes()).to_os_string()).collect();
    // The caller may have limited the stack to less than hugelift needs.
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
    command(&args, None)
}

fn command(args: &[OsString], status: Option<EarlyStatus>) -> i32 {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            let status = if error.use_stderr() { FAILED } else { 0 };
            match usage::complaint(&error, &subcommands(args)) {
                Some(line) => hugelift_os::io::console::say(&line),
                // This fails only if no process reads the output.
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
        Command::Attach(args) => attach::run_attach(&args),
        Command::Restore(args) => attach::run_restore(&args),
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
