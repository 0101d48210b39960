// SPDX-License-Identifier: Apache-2.0
//! Measures what hugelift adds to a program that does nothing.

use crate::options::Options;
use crate::programs::under_hugelift;
use anyhow::Result;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;

const ROUNDS: usize = 300;
const GOAL_MS: f64 = 3.0;

/// Prints the milliseconds that hugelift and, for comparison, env(1) add to /bin/true.
///
/// # Errors
/// A run failed.
pub fn run(options: &Options) -> Result<()> {
    let bare = Program::new(["/bin/true"]);
    let env = Program::new(["/usr/bin/env", "/bin/true"]);
    let lifted = under_hugelift(&bare, &["--quiet"])?;
    let mut sides = [
        Side::new("bare", || bare.run()),
        Side::new("env", || env.run()),
        Side::new("hugelift", || lifted.run()),
    ];
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
    let ms = |sample: &Sample| sample.cost.wall * 1e3;
    let bare: Vec<f64> = results[0].iter().map(ms).collect();
    println!(
        "\nstart-up, wall time in ms, {} rounds; /bin/true bare: {:.2}",
        bare.len(),
        stats::median(&bare)?
    );
    println!("  env adds       {:.2}", stats::difference(&pairs(&results[0], &results[1], ms))?);
    println!(
        "  hugelift adds  {:.2}  goal {GOAL_MS:.0}",
        stats::difference(&pairs(&results[0], &results[2], ms))?
    );
    Ok(())
}
