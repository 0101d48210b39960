// SPDX-License-Identifier: Apache-2.0
//! Measures the CPU time of the generated program on each backing, dynamic and static. In the same rounds a
//! preloaded library copies its text, for comparison.

use crate::options::Options;
use crate::pool;
use crate::programs::under_hugelift;
use anyhow::{Result, ensure};
use hugelift_measure::comparison::Coverage;
use hugelift_measure::generated::{self, Hot, Linking, coverage_of, result_of};
use hugelift_measure::host;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;

const ROUNDS: usize = 10;
const SECONDS: f64 = 1.2;

/// Prints a table for each way of linking.
///
/// # Errors
/// A run failed, or the sides computed different results.
pub fn run(options: &Options) -> Result<()> {
    let pool = pool::grow((options.megabytes << 20) + 4 * host::huge_page_bytes());
    if let Err(e) = &pool {
        println!("\nSKIP: hugetlb: {e:#}");
    }
    for linking in [Linking::Dynamic, Linking::Static, Linking::StaticPie] {
        table(options, linking, Hot::OneAPage, pool.is_ok())?;
    }
    table(options, Linking::Dynamic, Hot::All, pool.is_ok())
}

fn table(options: &Options, linking: Linking, hot: Hot, hugetlb: bool) -> Result<()> {
    let path = generated::jumps(options.megabytes, linking)?;
    let program = generated::run_for(&path, hot, SECONDS)?;
    let preload = generated::preload()?;

    let mut programs: Vec<(&str, Program)> = vec![("bare", program.clone())];
    programs.push(("thp", under_hugelift(&program, &["--quiet", "--backing", "thp"])?));
    if hugetlb {
        programs.push(("hugetlb", under_hugelift(&program, &["--quiet", "--backing", "hugetlb"])?));
    }
    if linking == Linking::Dynamic {
        programs.push(("preloaded copy", program.preloading(&preload)));
    }
    let sides = programs.iter().map(|(name, program)| Side::new(name, || program.run_and_read_memory()));
    let results =
        rounds::run(&mut sides.collect::<Vec<_>>(), options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;

    let bare = &results[0];
    let called = match hot {
        Hot::OneAPage => "one function a page",
        Hot::All => "every function",
    };
    println!(
        "\n{} MB of code, {called} called at random, {linking:?}: CPU time, {} rounds",
        options.megabytes,
        bare.len()
    );
    println!("  side            median s  least huge        most huge         ratio to bare");
    for ((name, _), samples) in programs.iter().zip(&results) {
        let cpu: Vec<f64> = samples.iter().map(|sample| sample.cost.cpu()).collect();
        let ratio = match *name {
            "bare" => String::new(),
            _ => format!("{:.3}", stats::ratio(&pairs(bare, samples, |sample| sample.cost.cpu()))?),
        };
        for sample in samples {
            let (got, want) = (result_of(sample), result_of(&bare[0]));
            ensure!(got == want, "{name}: computed '{got}' instead of '{want}'");
        }
        let (least, most) = extremes(samples)?;
        println!("  {name:<14}  {:>8.3}  {least:<16}  {most:<16}  {ratio}", stats::median(&cpu)?);
    }
    Ok(())
}

/// Returns the least and the most that was huge: on the bare side it can differ from run to run.
fn extremes(samples: &[Sample]) -> Result<(String, String)> {
    let mut covers: Vec<Coverage> = samples.iter().map(coverage_of).collect::<Result<_>>()?;
    covers.sort_by_key(|cover| cover.huge);
    let at = |cover: Option<&Coverage>| cover.map_or_else(String::new, Coverage::to_string);
    Ok((at(covers.first()), at(covers.last())))
}
