// SPDX-License-Identifier: Apache-2.0
//! The command line of `hugelift run`, without all other subcommands.

use crate::colour::ColourArgs;
use crate::run::RunArgs;
use clap::{Parser, Subcommand};
use std::ffi::OsString;

/// The command line with `hugelift run` alone. Each start of a program waits for its parser, and
/// describing all other subcommands to clap takes as long as everything else before execve(2).
#[derive(Parser)]
#[command(name = "hugelift", max_term_width = 100)]
pub struct Starter {
    #[command(flatten)]
    pub colour: ColourArgs,

    #[command(subcommand)]
    pub command: Start,
}

#[derive(Subcommand)]
pub enum Start {
    Run(RunArgs),
}

/// Parses `words` as the arguments of `hugelift run`.
///
/// # Errors
/// clap's description of what is wrong.
pub fn run_options(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, clap::Error> {
    let words = ["hugelift", "run"].map(OsString::from).into_iter().chain(words);
    let Starter { command: Start::Run(run), .. } = Starter::try_parse_from(words)?;
    Ok(run)
}
