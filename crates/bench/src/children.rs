// SPDX-License-Identifier: Apache-2.0
//! Compares programs that start many children: bare, under hugelift with plain children, and with lifted
//! children.

use crate::options::Options;
use crate::programs::{find_clang, under_hugelift};
use crate::warm::TempStore;
use anyhow::Result;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;

const ROUNDS: usize = 30;
/// How many children each parent starts, one after another.
const SMALL: usize = 300;
const LARGE: usize = 20;
const PLAIN: [&str; 1] = ["--quiet"];
const LIFT: [&str; 3] = ["--quiet", "--children", "lift"];

/// Prints the time per child, and what hugelift adds to it.
///
/// # Errors
/// A run failed.
pub fn run(options: &Options) -> Result<()> {
    println!("\nchildren, one after another; microseconds per child, CPU time with that of all helpers");
    println!(
        "  parent                       bare  plain adds             lifted adds           lifted adds, wall"
    );
    let shell = |child: &str, times: usize| {
        let text = format!("i=0; while [ $i -lt {times} ]; do {child}; i=$((i+1)); done");
        Program::new(["sh", "-c", &text])
    };
    let python = |body: &str| {
        let text = format!("import os, subprocess\nfor i in range({SMALL}):\n {body}");
        Program::new(["python3", "-c", &text])
    };
    let fork = "p = os.fork()\n if p == 0: os._exit(0)\n os.waitpid(p, 0)";
    let vfork = "subprocess.run(['/bin/true'])";
    compare(options, "sh: fork, exec true", &shell("/bin/true", SMALL), SMALL, None)?;
    compare(options, "sh: fork alone", &shell("(:)", SMALL), SMALL, None)?;
    compare(options, "python3: fork alone", &python(fork), SMALL, None)?;
    compare(options, "python3: vfork, exec true", &python(vfork), SMALL, None)?;
    let Some(clang) = find_clang() else {
        println!("  SKIP: no clang++ in PATH: ci/setup.sh test");
        return Ok(());
    };
    let store = TempStore::new()?;
    store.filled(&Program::new([clang.clone()]).arg("--version"))?;
    let child = format!("{} --version >/dev/null", clang.display());
    compare(options, "sh: clang from the store", &shell(&child, LARGE), LARGE, Some(&store))
}

fn compare(
    options: &Options,
    name: &str,
    bare: &Program,
    times: usize,
    store: Option<&TempStore>,
) -> Result<()> {
    // The options for the store include --quiet already.
    let with = |words: &[&str]| match store {
        Some(store) => store.lifted(bare, &words[1..]),
        None => under_hugelift(bare, words),
    };
    let (plain, lifted) = (with(&PLAIN)?, with(&LIFT)?);
    let mut sides = [
        Side::new("bare", || bare.run()),
        Side::new("plain", || plain.run()),
        Side::new("lifted", || lifted.run()),
    ];
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
    let each = |seconds: f64| seconds * 1e6 / times as f64;
    let cpu = |sample: &Sample| each(sample.cost.cpu());
    let alone: Vec<f64> = results[0].iter().map(cpu).collect();
    println!(
        "  {name:<25}  {:>6.0}  {:.0}  {:.0}  {:.0}",
        stats::median(&alone)?,
        stats::difference(&pairs(&results[0], &results[1], cpu))?,
        stats::difference(&pairs(&results[0], &results[2], cpu))?,
        stats::difference(&pairs(&results[0], &results[2], |sample| each(sample.cost.wall)))?
    );
    Ok(())
}
