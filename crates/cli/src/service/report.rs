// SPDX-License-Identifier: Apache-2.0
//! `hugelift service report`: what the service has gained, and what for, by its ledger.

use crate::failure::{Exit, Failure};
use crate::output;
use clap::Args;
use hugelift_core::quantity;
use hugelift_ledger::place::LEDGER;
use hugelift_ledger::reader::Reader;
use hugelift_ledger::report::Report;
use hugelift_ledger::text::text;
use hugelift_linux::io::console;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Say what the service has gained and what it has cost, by its ledger
///
/// Only gains that were measured are summed up: those of rules with 'verify = true'. Changes nothing.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// How far back from now the report reaches, as in 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = quantity::positive_duration)]
    since: Duration,

    /// The ledger
    #[arg(long, value_name = "FILE", default_value = LEDGER)]
    ledger: PathBuf,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,
}

/// Prints the report.
///
/// # Errors
/// There is no ledger, or it cannot be read.
pub fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let since = now.saturating_sub(args.since.as_secs());
    let read = || {
        let reader = Reader::open(&args.ledger)?;
        Ok::<_, hugelift_ledger::error::LedgerError>((reader.programs(since)?, reader.costs(since)?))
    };
    let (programs, cost) = read().map_err(|error| error.to_string())?;
    let report = Report::new(&programs, cost, since, now);
    console::print(&if args.json { output::json(&report)? } else { text(&report) })?;
    Ok(Exit::SUCCESS)
}
