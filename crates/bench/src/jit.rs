// SPDX-License-Identifier: Apache-2.0
//! Measures programs whose code is made at run time: bare, after `hugelift attach` of a process that has warmed up, and with
//! the program's own switch for huge pages.

mod cases;
mod generated;
mod warmed;

use crate::anon::during;
use crate::options::Options;
use crate::pool;
use anyhow::{Result, ensure};
use cases::{CASES, Case, Own};
use hugelift_lab::setting::Setting;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use std::path::Path;
use tempfile::TempDir;
use warmed::Worked;

const ROUNDS: usize = 10;
/// Which shared memory gets transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const SHARED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Prints for each program the ratio of CPU time of each way to bare, and how much of its code is huge when the work begins and
/// when it ends.
///
/// # Errors
/// A run failed, the sides computed different results, or a program makes no code.
pub fn run(options: &Options) -> Result<()> {
    println!("\ncode made at run time: CPU time of the same work after a warm-up, ratio to bare");
    println!("huge: MB of that code by smaps, when the work begins and when it ends, medians of the rounds");
    for (needs, make) in options.chosen_if(&CASES, |_| true)? {
        if let Some(package) = cases::missing(needs) {
            println!("  SKIP: no {needs}: apt-get install {package}");
            continue;
        }
        let dir = TempDir::new()?;
        rows(options, &make(dir.path())?)?;
    }
    Ok(())
}

/// Prints the rows of one program.
fn rows(options: &Options, case: &Case) -> Result<()> {
    let Case { what, program, parts, own } = case;
    let attach = format!("attach --parts {parts}");
    let mut sides = vec![
        Side::new("bare", || by_request(|| warmed::run(program, None))),
        Side::new(&attach, || by_request(|| warmed::run(program, Some(parts)))),
    ];
    for Own { switch, program, pool } in own {
        let run = || {
            let _pool = (*pool > 0).then(|| pool::grow(*pool)).transpose()?;
            by_request(|| warmed::run(program, None))
        };
        sides.push(Side::new(switch, run));
    }
    let mut differs = None;
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, round, _| {
        if let Some(other) = round.iter().find(|worked| worked.output != round[0].output) {
            differs = Some(format!("'{}' and '{}'", round[0].output, other.output));
        }
    })?;
    ensure!(differs.is_none(), "{what}: the sides computed {}", differs.unwrap_or_default());
    ensure!(results[0].iter().all(|worked| worked.end.bytes > 0), "{what}: it makes no code");
    let cpu = |worked: &Worked| worked.cpu;
    let alone: Vec<f64> = results[0].iter().map(cpu).collect();
    println!("  {what}");
    println!("    {:<46} {:.2} s, {}", "bare", stats::median(&alone)?, huge(&results[0])?);
    for (side, of_side) in sides.iter().zip(&results).skip(1) {
        let ratio = stats::ratio(&pairs(&results[0], of_side, cpu))?;
        let attach: Vec<f64> = of_side.iter().filter_map(|worked| worked.attach).collect();
        let attach = match attach[..] {
            [] => String::new(),
            _ => format!(", attach took {:.2} s of CPU time", stats::median(&attach)?),
        };
        println!("    {:<46} {ratio:.3}, {}{attach}", side.name, huge(of_side)?);
    }
    Ok(())
}

/// Runs `work` while private and shared memory gets huge pages only on request. Linux then also aligns shared memory that is mapped
/// so that it can be huge.
fn by_request<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    during("madvise", || {
        let setting = Setting::change(Path::new(SHARED), "advise")?;
        let result = work();
        setting.restore()?;
        result
    })
}

/// Returns how much of the code is huge, in words.
fn huge(side: &[Worked]) -> Result<String> {
    let median = |figure: fn(&Worked) -> u64| -> Result<f64> {
        let values: Vec<f64> = side.iter().map(|worked| figure(worked) as f64).collect();
        Ok(stats::median(&values)? / f64::from(1 << 20))
    };
    let [begin, end] = [median(|worked| worked.begin.huge)?, median(|worked| worked.end.huge)?];
    let all = median(|worked| worked.end.bytes)?;
    Ok(format!("huge {begin:.1}, then {end:.1} of {all:.1} MB"))
}
