// SPDX-License-Identifier: Apache-2.0
//! Measures programs that read data files through a mapping: with the page cache of the files in small pages, as after
//! they were written, with the same in huge pages after `hugelift prime`, and with the program's own switch for the same
//! purpose.

pub mod files;
pub mod readers;

use crate::options::Options;
use anyhow::{Result, ensure};
use files::Files;
use hugelift_core::smaps::Usage;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;
use readers::{CASES, Reader};
use std::path::Path;
use tempfile::TempDir;

const ROUNDS: usize = 12;

/// Prints for each program the ratio of CPU time, primed and with its own switch, to the files in small pages.
///
/// # Errors
/// A run or priming failed, the sides read different data, or a file has changed.
pub fn run(options: &Options) -> Result<()> {
    println!(
        "\ndata files through a mapping: CPU time of the whole process, ratio to the files in small pages"
    );
    for (_, make) in options.chosen_if(&CASES, readers::is_here)? {
        let programs = TempDir::new()?;
        row(options, &make(programs.path())?)?;
    }
    Ok(())
}

fn row(options: &Options, reader: &Reader) -> Result<()> {
    let files = Files::make(|folder| reader.program("make", folder).run().map(drop))?;
    let held = files.prime()?;
    let cached = files.check()?;
    let (small, primed) = (reader.program("read", &files.small()), reader.program("read", &files.primed()));
    let own = reader.own.map(|switch| (switch, reader.program("own", &files.small())));
    let mapped = [
        mapped(&small.run_and_read_memory()?.memory, &files.small()),
        mapped(&primed.run_and_read_memory()?.memory, &files.primed()),
    ];
    ensure!(mapped.iter().all(|(bytes, _)| *bytes > 0), "{}: it maps no data file", reader.what);
    println!("  {}: {cached}", reader.what);
    println!("    mapped by huge pages: {}; primed {}", share(mapped[0]), share(mapped[1]));
    let mut sides = vec![Side::new("small", || small.run()), Side::new("primed", || primed.run())];
    if let Some((switch, own)) = &own {
        sides.push(Side::new(switch, || own.run()));
    }
    let results = same_sums(&mut sides, options.rounds.unwrap_or(ROUNDS))?;
    print_ratios(&sides, &results)?;
    println!("    after the rounds: {}", files.check()?);
    drop(held);
    files.check_unchanged()
}

/// Runs the rounds, all of which must print the same.
///
/// # Errors
/// A run failed, or printed something else.
pub fn same_sums(sides: &mut [Side<Sample>], rounds: usize) -> Result<Vec<Vec<Sample>>> {
    let results = rounds::run(sides, rounds, |_, _, _| {})?;
    let outputs: Vec<&str> = results.iter().flatten().map(|sample| sample.output.trim()).collect();
    let other = outputs.iter().find(|output| **output != outputs[0]);
    ensure!(other.is_none(), "the sides read '{}' and '{}'", outputs[0], other.unwrap_or(&""));
    Ok(results)
}

fn print_ratios(sides: &[Side<Sample>], results: &[Vec<Sample>]) -> Result<()> {
    let cpu = |sample: &Sample| sample.cost.cpu();
    let small: Vec<f64> = results[0].iter().map(cpu).collect();
    println!("    small pages: {:.2} s", stats::median(&small)?);
    for (side, samples) in sides.iter().zip(results).skip(1) {
        println!("    {}: {:.3} of that", side.name, stats::ratio(&pairs(&results[0], samples, cpu))?);
    }
    Ok(())
}

/// Returns how many bytes of the files in a folder are mapped, and how many of them by huge pages.
pub fn mapped(memory: &[Usage], folder: &Path) -> (u64, u64) {
    let of_files = memory.iter().filter(|usage| usage.mapping.path.starts_with(folder));
    of_files.fold((0, 0), |(bytes, huge), usage| (bytes + usage.mapping.range.len(), huge + usage.file_huge))
}

fn share((bytes, huge): (u64, u64)) -> String {
    format!("{} of {} MB", huge >> 20, bytes >> 20)
}
