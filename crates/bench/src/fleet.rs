// SPDX-License-Identifier: Apache-2.0
//! Simulates a day of a fleet of machines with `hugelift service`: a rolling upgrade, and memory pressure on some of
//! them. It prints what huge pages save and cost, as a table in Markdown for each step of a rollout.
//!
//! It measures nothing. Its figures come from docs/benchmarks.md, and an option replaces each of them. The same options
//! give the same table.

mod day;
mod inputs;
mod programs;
mod random;
mod table;
mod totals;

use anyhow::{Result, anyhow};
use inputs::Inputs;
use totals::{Step, simulate};

/// Prints the table.
///
/// # Errors
/// An option is unknown, or its value is not in order.
pub fn run(words: impl Iterator<Item = String>) -> Result<()> {
    let inputs = Inputs::parse(words).map_err(|why| anyhow!("fleet: {why}\n{}", inputs::usage()))?;
    let results: Vec<_> = Step::ALL.map(|step| (step, simulate(&inputs, step))).into();
    print!("{}", table::table(&inputs, &results));
    Ok(())
}

#[cfg(test)]
mod tests;
