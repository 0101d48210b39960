// SPDX-License-Identifier: Apache-2.0
//! Puts what `hugelift advise` says of programs beside what huge pages for their code bring, and counts how often it was
//! right.
//!
//! The gain is the ratio of CPU times of pairs: the program with its code on huge pages to the program as it is. Both run at
//! the same time on one CPU. The copy of the code is in the store before, and the CPU time of a start that does one unit of
//! work is subtracted on both sides. So what is compared is the work, not the start.

mod copies;
pub mod judgement;
mod sources;
mod together;
mod workloads;

use crate::options::Options;
use crate::programs::hugelift;
use crate::warm::TempStore;
use anyhow::{Context as _, Result, bail, ensure};
use copies::Copies;
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use hugelift_measure::stats::{self, Estimate};
use judgement::{Judgement, Tally, judgement};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use workloads::{WORKLOADS, Workload};

const ROUNDS: usize = 10;
/// CPU time of a run that is measured, in seconds.
const SECONDS: f64 = 0.8;
/// CPU time of a trial that says how much work takes how long.
const TRIAL: f64 = 0.2;
/// How long a program works before it is asked about.
const READY: Duration = Duration::from_secs(1);
/// How long it is asked about.
const ASKED: &str = "10s";
/// CPU time that the program has to do meanwhile: no program should end while it is asked about.
const LONG: f64 = 14.0;
/// Text alone, so that what is measured is what the verdict is about.
const LIFT: [&str; 3] = ["--eager", "--parts", "text"];

/// What was said of a program, and what was measured.
struct Row {
    advice: Value,
    huge: u64,
    ratio: Estimate,
}

/// Prints a line for each program, and how often the verdicts were right.
///
/// # Errors
/// `--only` names no program, or one of them could not be measured.
pub fn run(options: &Options) -> Result<()> {
    let only = options.only.as_deref();
    let chosen: Vec<&Workload> =
        WORKLOADS.iter().filter(|workload| only.is_none_or(|only| only == workload.name)).collect();
    ensure!(!chosen.is_empty(), "--only {}: not one of {}", only.unwrap_or_default(), names());
    println!(
        "\nverdicts of advise, and CPU time with code on huge pages, ratio to bare with its 95 % interval\n"
    );
    println!("| program | pages of code in use | TLB | verdict | MB huge | ratio | |");
    println!("|---|---:|---:|---|---:|---|---|");
    let (mut tally, mut failed) = (Tally::default(), Vec::new());
    for workload in chosen {
        interrupt::check()?;
        let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
        let name = workload.name;
        if let Err(why) = (workload.make)(dir.path(), 1).and_then(|program| once(&program)) {
            println!("SKIP: {name}: {why:#}");
            continue;
        }
        match row(options, workload, dir.path()) {
            Ok(row) => tally.add(print(name, &row)?),
            Err(why) => {
                interrupt::check()?;
                println!("FAILED: {name}: {why:#}");
                failed.push(name);
            }
        }
    }
    println!("\n{tally}");
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join(", "));
    }
    Ok(())
}

fn names() -> String {
    WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>().join("; ")
}

fn row(options: &Options, workload: &Workload, dir: &Path) -> Result<Row> {
    // Each side has a folder of its own, as they run at the same time.
    let other = dir.join("other");
    std::fs::create_dir(&other)?;
    let of = |units: u64| (workload.make)(dir, units);
    let rate = rate(&of)?;
    let units = |seconds: f64| ((seconds / rate) as u64).max(2);
    let advice = advice(&of(units(LONG))?)?;
    let store = TempStore::new()?;
    let copies = if workload.is_small { Copies::of(&of(1)?, &dir.join("copies"))? } else { Copies::none() };
    let copy_of = |units: u64| Ok::<_, anyhow::Error>(copies.instead(&(workload.make)(&other, units)?));
    let lifted = |units: u64| store.lifted(&copy_of(units)?, &LIFT);
    // The copies have another layout, so that both sides run them: this one on small pages.
    let bare = |units: u64| match workload.is_small {
        true => Ok::<_, anyhow::Error>(Program { no_thp: true, ..copies.instead(&of(units)?) }),
        false => of(units),
    };
    let (start, program) = (bare(1)?, bare(units(SECONDS))?);
    let (lifted_start, lifted_program) = (lifted(1)?, lifted(units(SECONDS))?);
    // Fills the store.
    once(&lifted_start)?;
    let huge = huge(&store, &copy_of(1)?)?;
    let cpu = together::a_cpu()?;
    let mut pairs = Vec::new();
    for round in 0..options.rounds.unwrap_or(ROUNDS) {
        // In each round, so that the interval holds what the starts vary by.
        let [bare_start, huge_start] = together::pair([&start, &lifted_start], cpu, round % 2)?;
        let [bare, huge] = together::pair([&program, &lifted_program], cpu, round % 2)?;
        pairs.push((bare - bare_start, huge - huge_start));
    }
    let ratio = stats::ratio(&pairs)?;
    Ok(Row { advice, huge, ratio })
}

/// Returns the CPU time of a unit of work in seconds.
fn rate(of: &impl Fn(u64) -> Result<Program>) -> Result<f64> {
    let cpu = |units: u64| once(&of(units)?);
    let start = cpu(1)?;
    let mut units = 4;
    loop {
        let more = cpu(units)? - start;
        if more > TRIAL {
            return Ok(more / (units - 1) as f64);
        }
        ensure!(units < 1 << 20, "{units} units of work take {more:.3} s");
        units *= 2;
    }
}

/// Runs a program, and returns its CPU time in seconds.
fn once(program: &Program) -> Result<f64> {
    let (status, cost) = Child::start(&mut program.command()?)?.finish()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(cost.cpu())
}

/// Returns what advise says of the program while it works.
fn advice(program: &Program) -> Result<Value> {
    let child = Child::start(&mut program.command()?)?;
    std::thread::sleep(READY);
    let mut ask = Command::new(hugelift()?);
    ask.args(["advise", "--json", "--for", ASKED]).arg(child.pid().to_string());
    let out = ask.output().context("hugelift advise")?;
    ensure!(out.status.success(), "hugelift advise: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).context("what advise prints")
}

/// Returns the bytes of text on huge pages after a start from the store.
fn huge(store: &TempStore, program: &Program) -> Result<u64> {
    let report = tempfile::NamedTempFile::new().context("a temporary file")?;
    let path = report.path().to_str().context("a path in UTF-8")?;
    once(&store.lifted(program, &[&LIFT[..], &["--report", path]].concat())?)?;
    let seen: Value = serde_json::from_reader(report.as_file()).context("the report of a start")?;
    Ok(seen["totals"]["text"]["huge_bytes"].as_u64().unwrap_or_default())
}

fn print(name: &str, row: &Row) -> Result<Judgement> {
    let Row { advice, huge, ratio } = row;
    let verdict = advice["verdict"].as_str().context("no verdict")?;
    let pages = &advice["heat"]["pages"];
    let number = |name: &str| pages[name].as_u64().with_context(|| format!("no {name} in {pages}"));
    let levels = ["first_entries", "entries"].map(|level| advice[level].as_u64());
    let entries = match levels {
        [Some(first), Some(last)] if first != last => format!("{first}, {last}"),
        [_, last] => last.map_or("unknown".into(), |last| last.to_string()),
    };
    let judgement = judgement(verdict, ratio.interval, *huge);
    println!(
        "| {name} | {} [{}, {}] | {entries} | {verdict} | {} | {ratio:.3} | {judgement} |",
        number("estimate")?,
        number("low")?,
        number("high")?,
        huge >> 20
    );
    if verdict == "cannot-tell" {
        eprintln!("{name}: {}", advice["says"].as_str().unwrap_or_default());
    }
    Ok(judgement)
}
