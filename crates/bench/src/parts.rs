// SPDX-License-Identifier: Apache-2.0
//! Measures what writable memory on huge pages brings: a large `.bss` read at random, and the hashes of perl
//! and mawk.

use crate::options::Options;
use crate::programs::{hugelift, under_hugelift};
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const ROUNDS: usize = 12;
const OPTIONS: [&str; 3] = ["--quiet", "--parts", "all"];
/// Writes each page of its `.bss` once, then reads the `.bss` at random.
const BSS: &str = "#include <stdint.h>\n#include <stdio.h>\nstatic volatile uint64_t zero[512 << 17];\n\
    int main(void) {\n\tuint64_t at = 1, sum = 0;\n\
    \tfor (uint64_t i = 0; i < 512 << 17; i += 512) zero[i] = i;\n\
    \tfor (int i = 0; i < 60000000; i++) {\n\t\tat = at * 6364136223846793005u + 1442695040888963407u;\n\
    \t\tsum += zero[(at >> 33) % (512 << 17)];\n\t}\n\tprintf(\"%llu\\n\", (unsigned long long)sum);\n}\n";
const PERL: &str = "my %h; $h{($_ * 7919) % 1000003} = $_ for 1 .. 800000; my $s = 0; \
    for (1 .. 800000) { $s += $h{($_ * 104729) % 1000003} // 0 } print qq($s\\n)";
const MAWK: &str = "BEGIN { for (i = 0; i < 600000; i++) h[(i * 7919) % 1000003] = i; \
    for (i = 0; i < 600000; i++) s += h[(i * 104729) % 1000003]; print s }";

/// Prints for each program the ratio of CPU time, all parts lifted to bare. hugelift's own time is included.
///
/// # Errors
/// A run failed, or the sides computed different results.
pub fn run(options: &Options) -> Result<()> {
    let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
    println!("\nall parts lifted (--parts all), CPU time");
    row(options, "512 MB of .bss read at random", 0.62, &Program::new([large_bss(&dir)?]))?;
    for (what, goal, name, arguments) in [
        ("perl, a hash of 0.8 M keys", 0.82, "perl", ["-e", PERL]),
        ("mawk, an array of 0.6 M keys", 0.92, "mawk", ["--", MAWK]),
    ] {
        let found = Command::new(name).args(["--version"]).output().is_ok();
        if !found {
            println!("  SKIP: {what}: no {name} in PATH: ci/setup.sh test");
            continue;
        }
        row(options, what, goal, &arguments.iter().fold(Program::new([name]), |p, word| p.arg(word)))?;
    }
    Ok(())
}

fn large_bss(dir: &TempDir) -> Result<PathBuf> {
    let (source, program) = (dir.path().join("bss.c"), dir.path().join("bss"));
    std::fs::write(&source, BSS)?;
    let out = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source).output().context("cc")?;
    ensure!(out.status.success(), "cc: {}", String::from_utf8_lossy(&out.stderr));
    Ok(program)
}

fn row(options: &Options, what: &str, goal: f64, program: &Program) -> Result<()> {
    let lifted = under_hugelift(program, &OPTIONS)?;
    let mut sides = [Side::new("bare", || program.run()), Side::new("lifted", || lifted.run())];
    let mut differs = None;
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, round, _| {
        if let [bare, lifted] = round
            && bare.output != lifted.output
        {
            differs = Some(format!("'{}' and '{}'", bare.output.trim(), lifted.output.trim()));
        }
    })?;
    ensure!(differs.is_none(), "{what}: bare and lifted computed {}", differs.unwrap_or_default());
    let bare: Vec<f64> = results[0].iter().map(|sample| sample.cost.cpu()).collect();
    let ratio = stats::ratio(&pairs(&results[0], &results[1], |sample| sample.cost.cpu()))?;
    println!(
        "  {what:<30} bare {:.2} s, lifted {ratio:.3} of it  goal: at most {goal}",
        stats::median(&bare)?
    );
    Ok(())
}
