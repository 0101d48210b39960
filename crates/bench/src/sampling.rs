// SPDX-License-Identifier: Apache-2.0
//! Measures what `hugelift inspect --heat` costs the program that it samples: its CPU time for the same work, with and without
//! a sampler, and the CPU time of the sampler.

use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Result, ensure};
use hugelift_measure::child::{Child, Cost};
use hugelift_measure::generated::{self, Hot, Linking};
use hugelift_measure::program::{Output, Program};
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;

const ROUNDS: usize = 30;
const SECONDS: f64 = 1.2;
/// Longer than the program runs: the sampler ends with it.
const SAMPLED: &str = "30";

/// A run of the program.
struct Run {
    /// CPU time of the program in seconds.
    program: f64,
    /// CPU time of the sampler, if there is one.
    sampler: f64,
}

/// Prints the ratio of CPU times, and the share of a CPU that the sampler takes.
///
/// # Errors
/// A run failed.
pub fn run(options: &Options) -> Result<()> {
    let path = generated::jumps(options.megabytes, Linking::Dynamic)?;
    let mut program = generated::run_for(&path, Hot::OneAPage, SECONDS)?;
    program.output = Output::Discard;
    let sides =
        &mut [Side::new("alone", || once(&program, false)), Side::new("sampled", || once(&program, true))];
    let results = rounds::run(sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
    let ratio = stats::ratio(&pairs(&results[0], &results[1], |run: &Run| run.program))?;
    let share: Vec<f64> = results[1].iter().map(|run| 100.0 * run.sampler / run.program).collect();
    println!(
        "\n{} MB of code, one function a page called at random: sampled by inspect --heat",
        options.megabytes
    );
    println!("  CPU time of the program, sampled to alone: {ratio:.4}");
    println!(
        "  CPU time of the sampler, start and report included: {:.2} % of the program's",
        stats::median(&share)?
    );
    Ok(())
}

fn once(program: &Program, is_sampled: bool) -> Result<Run> {
    let child = Child::start(&mut program.command()?)?;
    let sampler = match is_sampled {
        true => {
            let words = [hugelift()?.into_os_string(), "inspect".into(), "--heat".into(), SAMPLED.into()];
            let sampler = Program::new(words).arg(&child.pid().to_string());
            Some(Child::start(&mut Program { output: Output::Discard, ..sampler }.command()?)?)
        }
        false => None,
    };
    let (status, cost) = child.finish()?;
    ensure!(status.success(), "{program}: {status}");
    let sampler = sampler.map(|sampler| sampler.finish()).transpose()?;
    Ok(Run { program: cost.cpu(), sampler: sampler.map_or(0.0, |(_, cost): (_, Cost)| cost.cpu()) })
}
