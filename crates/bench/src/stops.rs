// SPDX-License-Identifier: Apache-2.0
//! Measures for how long `hugelift attach` and `restore` stop a thread of a program that works: on a machine that has
//! CPUs to spare, and on one whose CPUs are all busy.

use crate::late::{CASES, Make};
use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use hugelift_measure::stats;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 30;
/// How long a program works before the first lift: until it has opened its objects.
const READY: Duration = Duration::from_secs(2);
/// The cases of [`CASES`] that are measured: a program of one thread, one of many, a JVM, a compiler.
const MEASURED: [&str; 4] = ["php", "node", "javac", "clang++"];

/// What a lift or a restore took.
struct Change {
    /// MB on huge pages after it.
    huge: u64,
    /// How often a thread was stopped.
    count: f64,
    /// The longest stop in microseconds.
    longest_us: f64,
}

/// Prints the longest stop of a thread in each lift: its median and the longest of all.
///
/// # Errors
/// A program cannot be started or changed.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "\nlongest stop of a thread in an attach and a restore, microseconds, {rounds} rounds: median (longest)"
    );
    println!(
        "  program    MB huge   stops   attach            restore           both, beside {cpus} busy processes"
    );
    let measured: Vec<_> = CASES.into_iter().filter(|(needs, _)| MEASURED.contains(needs)).collect();
    for (needs, make) in options.chosen(&measured)? {
        row(needs, make, rounds, cpus)?;
    }
    Ok(())
}

fn row(name: &str, make: Make, rounds: usize, cpus: usize) -> Result<()> {
    let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
    let store = TempDir::new_in("/dev/shm").context("no tmpfs on /dev/shm")?;
    let program = Program::new(make(dir.path())?);
    let child = Child::start(&mut program.command()?)?;
    std::thread::sleep(READY);
    // The first lift fills the store.
    both(&child, store.path())?;
    let (attach, restore) = changes(&child, store.path(), rounds)?;
    let busy = Program::new(["sh", "-c", "while :; do :; done"]);
    let busy = (0..cpus).map(|_| Child::start(&mut busy.command()?)).collect::<Result<Vec<Child>>>()?;
    let (lifts, restores) = changes(&child, store.path(), rounds)?;
    drop(busy);
    let beside: Vec<f64> = lifts.iter().chain(&restores).map(|change| change.longest_us).collect();
    let of = |changes: &[Change]| shown(&changes.iter().map(|change| change.longest_us).collect::<Vec<_>>());
    let counts: Vec<f64> = attach.iter().map(|change| change.count).collect();
    let huge = attach.iter().map(|change| change.huge).max().unwrap_or_default();
    println!(
        "  {name:<10} {huge:>7}   {:>5.0}   {:<17} {:<17} {}",
        stats::median(&counts)?,
        of(&attach)?,
        of(&restore)?,
        shown(&beside)?
    );
    Ok(())
}

fn shown(values: &[f64]) -> Result<String> {
    let longest = values.iter().copied().fold(0.0, f64::max);
    Ok(format!("{:.0} ({longest:.0})", stats::median(values)?))
}

fn changes(child: &Child, store: &Path, rounds: usize) -> Result<(Vec<Change>, Vec<Change>)> {
    let all = (0..rounds).map(|_| both(child, store)).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().unzip())
}

fn both(child: &Child, store: &Path) -> Result<(Change, Change)> {
    let attach = change("attach", &["--whole", "--backing", "shared"], child, store)?;
    Ok((attach, change("restore", &[], child, store)?))
}

fn change(verb: &str, options: &[&str], child: &Child, store: &Path) -> Result<Change> {
    interrupt::check()?;
    let mut command = Command::new(hugelift()?);
    command.args([verb, "--json"]).args(options).arg(child.pid().to_string());
    let out = command.env("HUGELIFT_STORE", store.join("store")).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "hugelift {verb}: {said}");
    let seen: Value =
        serde_json::from_slice(&out.stdout).with_context(|| format!("hugelift {verb}: {said}"))?;
    let row = &seen["processes"][0];
    let number = |name: &str| row[name].as_f64().with_context(|| format!("no {name} in {row}"));
    let of = |part: &str| row["report"]["totals"][part]["huge_bytes"].as_u64().unwrap_or_default();
    Ok(Change {
        huge: (of("text") + of("rodata")) >> 20,
        count: number("borrowed")?,
        longest_us: number("longest_stop_us")?,
    })
}
