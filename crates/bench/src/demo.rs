// SPDX-License-Identifier: Apache-2.0
//! The demo: runs the generated program bare and lifted in turn.

use crate::options::Options;
use crate::programs::{hugelift, under_hugelift};
use anyhow::{Result, ensure};
use hugelift_measure::comparison::Coverage;
use hugelift_measure::generated::{self, Hot, Linking, coverage_of, result_of};
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats::{self, Estimate, Verdict};
use std::path::Path;
use std::process::ExitCode;

/// Copies at the start: most of these runs are too short for a copy while they run.
const EAGER: &str = "--eager";

/// Number of pairs, and CPU seconds of a bare run. All runs together take well below two minutes.
const PAIRS: usize = 12;
const SECONDS: f64 = 1.5;

/// Runs the demo. The exit status is 1 if the lifted program has no more on huge pages than the bare one.
///
/// # Errors
/// A run failed, or the two computed different results.
pub fn run(options: &Options) -> Result<ExitCode> {
    let path = generated::jumps(options.megabytes, Linking::Dynamic)?;
    let program = generated::run_for(&path, Hot::OneAPage, SECONDS)?;
    println!(
        "\nThe program: {program}\nIt has {} MB of code, and calls one function of each page at random.",
        options.megabytes
    );

    // The first run has messages and a checksum of the code.
    let (bare, lifted) = (program.arg("text").run()?, under_hugelift(&program.arg("text"), &[EAGER])?.run()?);
    same(&bare, &lifted)?;
    println!("bare and lifted: {}\n", result_of(&bare).trim());

    println!("pair  first   bare huge         lifted huge       bare CPU  lifted CPU  ratio");
    let lifted = under_hugelift(&program, &["--quiet", EAGER])?;
    let mut sides = [
        Side::new("bare", || program.run_and_read_memory()),
        Side::new("lifted", || lifted.run_and_read_memory()),
    ];
    let mut covers: Vec<(Coverage, Coverage)> = Vec::new();
    let mut wrong = None;
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(PAIRS), |round, pair, first| {
        let [bare, lifted] = pair else { return };
        let both = same(bare, lifted).and_then(|()| Ok((coverage_of(bare)?, coverage_of(lifted)?)));
        let (before, after) = match both {
            Ok(both) => both,
            Err(e) => return wrong = Some(e),
        };
        covers.push((before, after));
        let (name, ratio) = (["bare", "lifted"][first], lifted.cost.cpu() / bare.cost.cpu());
        let (before, after) = (before.to_string(), after.to_string());
        let (n, b, l) = (round + 1, bare.cost.cpu(), lifted.cost.cpu());
        println!("{n:>4}  {name:<6}  {before:<16}  {after:<16}  {b:>6.3} s    {l:>6.3} s  {ratio:.3}");
    })?;
    if let Some(e) = wrong {
        return Err(e);
    }

    let estimate = stats::ratio(&pairs(&results[0], &results[1], |sample| sample.cost.cpu()))?;
    println!(
        "\nCPU time, lifted / bare, hugelift's own included: median ratio {estimate:.3} (95 % interval)"
    );
    let gained = covers.iter().all(|(before, after)| after.huge > before.huge || after.is_full());
    let full = covers.iter().all(|(_, after)| after.is_full());
    println!("{}", summary(&estimate, full));
    println!("\n{}", next_command(&hugelift()?, &std::env::current_dir()?));
    Ok(if gained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn same(bare: &Sample, lifted: &Sample) -> Result<()> {
    let (a, b) = (result_of(bare), result_of(lifted));
    ensure!(a == b, "the lifted program computed '{b}' instead of '{a}'");
    Ok(())
}

/// Returns what to type next, with the path of the command as it can be typed in the folder `here`.
fn next_command(command: &Path, here: &Path) -> String {
    let command = command.strip_prefix(here).unwrap_or(command).display();
    format!(
        "Next, to see whether that pays for a program of yours:\n\n    {command} compare -- PROGRAM ARGUMENTS...\n\n\
         `make install` installs the command as hugelift."
    )
}

fn summary(estimate: &Estimate, full: bool) -> String {
    let percent = (1.0 - estimate.point).abs() * 100.0;
    let time = match estimate.verdict(1.0) {
        Verdict::Less => format!("The lifted program took {percent:.0} % less CPU time."),
        Verdict::More => {
            format!("The lifted program took {percent:.0} % more CPU time: it does not pay here.")
        }
        Verdict::Undecided => "No difference in CPU time was seen.".to_string(),
        Verdict::TooFew => "There were too few pairs for a verdict.".to_string(),
    };
    let pages =
        if full { "Every whole huge page of its text was huge." } else { "Not all of its text was huge." };
    format!("{time} {pages}")
}

#[cfg(test)]
mod tests {
    use super::next_command;
    use std::path::Path;

    #[test]
    fn the_next_command_can_be_typed_where_the_demo_was_started() {
        let next = |here| next_command(Path::new("/src/target/release/hugelift"), Path::new(here));
        assert!(next("/src").contains("\n    target/release/hugelift compare -- "), "{}", next("/src"));
        assert!(
            next("/home").contains("\n    /src/target/release/hugelift compare -- "),
            "{}",
            next("/home")
        );
    }
}
