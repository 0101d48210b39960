// SPDX-License-Identifier: Apache-2.0
//! Compares the time that a lift adds to a start with a bare copy of the same bytes.

use crate::options::Options;
use crate::pool;
use crate::programs::{find_clang, hugelift, under_hugelift};
use crate::reference::{self, Piece};
use anyhow::{Context as _, Result, ensure};
use hugelift_core::smaps::Usage;
use hugelift_measure::generated::{self, Hot, Linking};
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side};
use hugelift_measure::stats;
use hugelift_measure::{coverage, host};

const ROUNDS: usize = 30;
const GOAL: f64 = 1.15;

/// Measures the generated program, with one call.
///
/// # Errors
/// A run failed.
pub fn jumps(options: &Options) -> Result<()> {
    let program =
        generated::run_of(&generated::jumps(options.megabytes, Linking::Dynamic)?, Hot::OneAPage, 1);
    compare(options, &format!("the program with {} MB of code", options.megabytes), &program, &program)
}

/// Measures clang++ with all its shared objects, printing its version.
///
/// # Errors
/// A run failed.
pub fn clang(options: &Options) -> Result<()> {
    let Some(clang) = find_clang() else {
        println!("\nSKIP: no clang++ in PATH: ci/setup.sh test");
        return Ok(());
    };
    let program = Program::new([clang.clone()]).arg("--version");
    // The same program with the same objects, which waits for input.
    let waiting = ["-x", "c++", "-E", "-"].into_iter().fold(Program::new([clang]), |p, arg| p.arg(arg));
    compare(options, "clang++ with its shared objects", &program, &waiting)
}

/// Prints the table of a program: it runs bare and lifted, and the reference copies its bytes.
fn compare(options: &Options, name: &str, program: &Program, waiting: &Program) -> Result<()> {
    hugelift()?;
    let memory = waiting.memory_at_rest()?;
    let pieces = reference::pieces(&memory)?;
    let bytes = reference::bytes(&pieces);
    ensure!(bytes > 0, "{program}: no whole huge page of text or read-only data");
    println!("\nlift of {name}: {} MB of text and read-only data", bytes >> 20);
    println!("  huge in the bare program: {} of text", coverage::of_all_text(&memory));
    println!("  backing  bare ms  added ms  bare copy ms  lifted MB  added / bare copy");
    for backing in ["thp", "hugetlb"] {
        // A lift may take a few pages more than the reference does.
        let pool =
            if backing == "hugetlb" { Some(pool::grow(bytes + 8 * host::huge_page_bytes())) } else { None };
        match pool.transpose() {
            Ok(_pool) => one_backing(options, backing, program, waiting, &pieces)?,
            Err(e) => println!("  SKIP: {backing}: {e:#}"),
        }
    }
    println!("  goal: at most {GOAL}");
    Ok(())
}

fn one_backing(
    options: &Options,
    backing: &str,
    program: &Program,
    waiting: &Program,
    pieces: &[Piece],
) -> Result<()> {
    let bytes = reference::bytes(pieces);
    let lift = ["--quiet", "--backing", backing];
    let memory = under_hugelift(waiting, &lift)?.memory_at_rest()?;
    let huge: u64 = memory.iter().filter(|usage| !usage.mapping.prot.write).map(Usage::huge).sum();

    let lifted = under_hugelift(program, &lift)?;
    let mut sides = [
        Side::new("bare", || Ok(program.run()?.cost.wall)),
        Side::new("lifted", || Ok(lifted.run()?.cost.wall)),
        Side::new("reference", || {
            let cost = reference::copy(pieces, backing == "hugetlb")?;
            let got = cost.huge;
            ensure!(
                got == bytes,
                "the copy has {got} of {bytes} bytes on huge pages: free memory is fragmented"
            );
            Ok(cost.seconds)
        }),
    ];
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
    let [bare, lifted, copy] = &results[..] else { return Ok(()) };
    let added: Vec<f64> = lifted.iter().zip(bare).map(|(lifted, bare)| lifted - bare).collect();
    let quotients: Vec<f64> = added.iter().zip(copy).map(|(added, copy)| added / copy).collect();
    let ms = |values: &[f64]| stats::median(values).map(|s| s * 1e3).context("times");
    println!(
        "  {backing:<7}  {:>7.1}  {:>8.1}  {:>12.1}  {:>9}  {:.2}",
        ms(bare)?,
        ms(&added)?,
        ms(copy)?,
        huge >> 20,
        stats::location(&quotients)?
    );
    Ok(())
}
