// SPDX-License-Identifier: Apache-2.0
//! Measures how often `hugelift compare --pid --same-copy` calls a difference where there can be none: memory changes from huge
//! pages to small ones and back that its process never touches. So what counts is what the switches themselves do to the figures.

use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::{Output, Program};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const EXPERIMENTS: usize = 200;
const PAIRS: &str = "20";
/// Until the program is under way.
const READY: Duration = Duration::from_secs(2);

/// Has 64 MB that it does not use after the start, and makes a system call for each piece of work, which differ.
const PYTHON: &str = "\
import mmap, os, random
unused = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
unused.write(b'x' * (64 << 20))
table = {n: str(n) for n in range(100000)}
while True:
    found = [table[random.randrange(100000)] for _ in range(random.randrange(20, 400))]
    os.stat('/')
";

/// Prints how many of the experiments call a difference, and how wide their intervals are.
///
/// # Errors
/// The program cannot be started, or compare fails.
pub fn run(options: &Options) -> Result<()> {
    let experiments = options.rounds.unwrap_or(EXPERIMENTS);
    let program = Program { output: Output::Discard, ..Program::new(["python3", "-c", PYTHON]) };
    let child = Child::start(&mut program.command()?)?;
    std::thread::sleep(READY);
    let pid = child.pid().to_string();
    let (mut faster, mut slower, mut widths) = (0, 0, Vec::new());
    for _ in 0..experiments {
        interrupt::check()?;
        let words = ["compare", "--json", "--same-copy", "--parts", "anon", "--pairs", PAIRS, "--pid", &pid];
        let out = Command::new(hugelift()?).args(words).output().context("hugelift compare")?;
        ensure!(out.status.success(), "hugelift compare: {}", String::from_utf8_lossy(&out.stderr));
        let result: Value = serde_json::from_slice(&out.stdout).context("its JSON")?;
        let variant = &result["variants"][0];
        faster += usize::from(variant["verdict"] == "faster");
        slower += usize::from(variant["verdict"] == "slower");
        let end = |name: &str| variant["ratios"][0][name].as_f64().context("a ratio");
        widths.push((end("high")? - end("low")?) / 2.0);
    }
    widths.sort_by(f64::total_cmp);
    let median = widths.get(widths.len() / 2).copied().unwrap_or_default();
    println!(
        "\nunused memory: of {experiments} experiments of {PAIRS} pairs of 50 ms, {faster} call huge pages faster and {slower} slower; half \
         of a 95 % interval is {:.1} % (median)",
        100.0 * median
    );
    Ok(())
}
