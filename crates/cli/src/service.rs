// SPDX-License-Identifier: Apache-2.0
//! `hugelift service`: puts the programs of a machine on huge pages, as far as a policy says. [`hugelift_service`] does it.

mod apply;
mod report;

use crate::failure::{Exit, Failure};
use crate::output;
use crate::process_id;
use clap::{Args, Subcommand};
use hugelift_core::service::policy::{CONFIG, DROP_INS, Policy};
use hugelift_ledger::place::LEDGER;
use hugelift_linux::io::console;
use hugelift_service::answers::ask::ask;
use hugelift_service::answers::status;
use hugelift_service::machine::explain::{Explained, explain, unknown_names};
use hugelift_service::{Source, daemon};
use serde::Serialize;
use std::path::PathBuf;

/// The version of the JSON that `hugelift service check` prints.
const VERSION: u32 = 1;
/// Exit status where some files are not huge.
const NOT_ALL: Exit = Exit(1);
/// Programs with less code are shown with --all alone: no huge page fits.
const LEAST: u64 = 2 << 20;

/// Put the programs of this machine on huge pages, as a daemon
///
/// A policy says which processes it takes, and what it may do with them: keep their files huge in the page cache, copy their hot
/// code, collapse their memory. Without a rule it keeps the files of programs of root and of system users in the page cache,
/// and changes no process. What it has done stays when it ends. SIGHUP makes it read the policy again, SIGTERM ends it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ServiceArgs {
    #[command(subcommand)]
    command: Option<ServiceCommand>,

    #[command(flatten)]
    policy: PolicyFiles,

    /// The socket for `hugelift service status` [default: service.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// The ledger: what was done, what it has cost, and what was measured to be gained
    #[arg(long, value_name = "FILE", default_value = LEDGER)]
    ledger: PathBuf,
}

/// Where the policy is.
#[derive(Args, Debug)]
struct PolicyFiles {
    /// The policy
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,

    /// The folder of further files, *.toml, whose rules come first
    #[arg(long, value_name = "FOLDER", default_value = DROP_INS)]
    drop_ins: PathBuf,

    /// The pods of Kubernetes in JSON, as kubectl get pods -A -o json gives them; read again when the file changes
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum ServiceCommand {
    Check(CheckArgs),
    Status(StatusArgs),
    Report(report::ReportArgs),
    Apply(apply::ApplyArgs),
}

/// Check the policy, and say which rule takes which process that runs
///
/// Changes nothing. Exit status: 0 if the policy is in order, 125 if not.
#[derive(Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    policy: PolicyFiles,

    /// Say of one process why each rule before does not take it
    #[arg(long, value_name = "PID", value_parser = process_id::parse)]
    pid: Option<u32>,

    /// Also show processes that no rule takes, and those with less than 2 MB of code
    #[arg(long)]
    all: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,
}

/// Show what a running `hugelift service` does
///
/// Exit status: 0 if all files that it keeps are huge, 1 if not, 125 if no daemon answers.
#[derive(Args, Debug)]
struct StatusArgs {
    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// The daemon's socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// What `hugelift service check --json` prints.
#[derive(Serialize)]
struct Checked<'a> {
    version: u32,
    rules: Vec<String>,
    notes: &'a [String],
    processes: &'a [Explained],
}

/// Runs the daemon until SIGTERM, checks its policy, or asks a running one.
///
/// # Errors
/// The policy is wrong, the daemon cannot start, or none answers.
pub fn run(args: &ServiceArgs) -> Result<Exit, Failure> {
    match &args.command {
        Some(ServiceCommand::Check(args)) => check(args),
        Some(ServiceCommand::Status(args)) => show(args),
        Some(ServiceCommand::Report(args)) => report::run(args),
        Some(ServiceCommand::Apply(args)) => apply::run(args),
        None => {
            daemon::run(args.policy.source(), args.socket.as_deref(), Some(args.ledger.clone()))?;
            Ok(Exit::SUCCESS)
        }
    }
}

impl PolicyFiles {
    fn source(&self) -> Source {
        Source { config: self.config.clone(), drop_ins: self.drop_ins.clone(), pods: self.pods.clone() }
    }

    fn policy(&self) -> Result<Policy, Failure> {
        Ok(self.source().read()?.policy)
    }
}

/// Shows what a daemon answers.
fn show(args: &StatusArgs) -> Result<Exit, Failure> {
    let answer = ask(args.socket.as_deref())?;
    let status = status::parse(&answer)?;
    console::print(&if args.json { answer } else { status::text(&status) })?;
    Ok(if status.is_huge() { Exit::SUCCESS } else { NOT_ALL })
}

fn check(args: &CheckArgs) -> Result<Exit, Failure> {
    let policy = args.policy.policy()?;
    let mut processes = explain(&policy, args.pid, args.policy.pods.clone())?;
    let is_shown =
        |one: &Explained| args.all || args.pid.is_some() || one.is_taken && one.code_bytes >= LEAST;
    processes.retain(is_shown);
    let rules: Vec<String> = policy.rules().iter().map(|rule| rule.name.clone()).collect();
    let notes = unknown_names(&policy);
    if args.json {
        let checked = Checked { version: VERSION, rules, notes: &notes, processes: &processes };
        console::print(&output::json(&checked)?)?;
        return Ok(Exit::SUCCESS);
    }
    let mut text = match rules.len() {
        0 => "the policy is in order; it has no rules, so the default takes processes of root and of system users\n".into(),
        1 => "the policy is in order; it has one rule\n".into(),
        count => format!("the policy is in order; it has {count} rules\n"),
    };
    for note in &notes {
        text += &format!("{note}\n");
    }
    for one in &processes {
        text += &format!("{}\n", one.line());
        if args.pid.is_some() {
            one.why().iter().for_each(|line| text += &format!("    {line}\n"));
        }
    }
    console::print(&text)?;
    Ok(Exit::SUCCESS)
}
