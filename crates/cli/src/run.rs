// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages. [`hugelift_lift::start`] does it.

use crate::options::{
    AfterForkChoice, ChildrenChoice, MallocChoice, NamesChoice, PolicyArgs, SeccompChoice, TouchedChoice,
};
use clap::Args;
use hugelift_core::demangle::Names;
use hugelift_lift::options::{LiftOptions, StartOptions, Verbosity};
use hugelift_lift::start::{EarlyStatus, start};
use hugelift_os::io::console::say;
use std::ffi::OsString;
use std::path::PathBuf;

/// Start a program with its code and read-only data on huge pages
///
/// The program runs as if started without hugelift: same process, same exit status. What
/// cannot be lifted runs as it is, and one line on stderr says why.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Run the program as this user, by name or number (root only)
    #[arg(long, value_name = "USER[:GROUP]")]
    user: Option<String>,

    /// Have the program's allocator put the heap on huge pages, by its variable of the environment
    #[arg(long, value_enum, default_value_t = MallocChoice::Auto)]
    malloc: MallocChoice,

    /// Which huge pages of text and rodata are copied [default: all, and with --backing auto as many
    /// as pay, by what past runs took and touched]
    #[arg(long, value_enum)]
    touched: Option<TouchedChoice>,

    /// What becomes of the programs that it starts itself
    #[arg(long, value_enum, default_value_t = ChildrenChoice::Plain)]
    children: ChildrenChoice,

    /// What becomes of its huge pages that writes after a fork have split
    #[arg(long, value_enum, default_value_t = AfterForkChoice::Auto)]
    after_fork: AfterForkChoice,

    /// Pages of the pool that are kept for what a forked child writes (--data-backing hugetlb)
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    fork_reserve: u64,

    /// What is done where a seccomp filter is in force, which may kill who makes the calls of a lift
    #[arg(long, value_enum, default_value_t = SeccompChoice::Auto)]
    seccomp: SeccompChoice,

    /// Print what would be done, and start nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not start the program (exit 125) unless all that was planned is lifted
    #[arg(long)]
    strict: bool,

    /// Write what smaps shows after the lift to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Name copied code for perf(1): write /tmp/perf-PID.map, and remove it at the program's end;
    /// with the names of the source, or (=mangled) of the symbol table
    #[arg(
        long,
        value_enum,
        value_name = "NAMES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "demangled"
    )]
    perf_map: Option<NamesChoice>,

    /// Say what was lifted (-vv: and every skip)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Say nothing
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// The program, looked up on PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROG", "ARGS"])]
    command: Vec<OsString>,
}

impl From<RunArgs> for StartOptions {
    fn from(args: RunArgs) -> StartOptions {
        let RunArgs {
            policy,
            user,
            malloc,
            touched,
            children,
            after_fork,
            fork_reserve,
            seccomp,
            dry_run,
            strict,
            report,
            perf_map,
            verbose,
            quiet,
            command,
        } = args;
        let verbosity = match verbose {
            _ if quiet => Verbosity::Quiet,
            0 => Verbosity::Problems,
            1 => Verbosity::Summary,
            _ => Verbosity::Everything,
        };
        let lift = LiftOptions {
            policy: policy.into(),
            touched: touched.map(Into::into),
            after_fork: after_fork.into(),
            perf_map: perf_map.map(Names::from),
            strict,
            verbosity,
        };
        StartOptions {
            lift,
            command,
            user,
            malloc: malloc.into(),
            children: children.into(),
            fork_reserve,
            seccomp: seccomp.into(),
            report,
            dry_run,
        }
    }
}

/// Becomes the program; returns the exit status where nothing is started.
pub fn run(args: RunArgs, status: EarlyStatus) -> i32 {
    match start(&args.into(), &status) {
        Ok(status) => status,
        Err(failure) => {
            say(&failure.message);
            failure.status
        }
    }
}
