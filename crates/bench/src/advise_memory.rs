// SPDX-License-Identifier: Apache-2.0
//! Puts what `hugelift advise` says of the data of programs beside what huge pages for them bring, and counts how often it was
//! right. It does for memory and data files what `advise` does for code.
//!
//! The two are apart because nothing but the table is common: the programs there do fixed work and are compared by pairs of
//! runs, and most of these run on and are compared with themselves.

mod files;
mod private;
mod said;
mod workloads;

use crate::advise::judgement::{Judgement, Tally, judgement};
use crate::data::readers::{self, CASES, SMALL_CASES};
use crate::options::Options;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::heat::extent::DataVerdict;
use hugelift_measure::interrupt;
use said::{Row, word};
use tempfile::TempDir;
use workloads::WORKLOADS;

/// Prints a line for each program, and how often the verdicts were right.
///
/// # Errors
/// `--only` names no program, or one of them could not be measured.
pub fn run(options: &Options) -> Result<()> {
    let is_wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    let files =
        || CASES.iter().map(|case| (case, "large")).chain(SMALL_CASES.iter().map(|case| (case, "small")));
    let file_name = |needs: &str, size: &str| format!("{needs}, a {size} file");
    let names =
        WORKLOADS.iter().map(|w| w.name.to_string()).chain(files().map(|(c, size)| file_name(c.0, size)));
    let names: Vec<String> = names.collect();
    ensure!(
        names.iter().any(|name| is_wanted(name)),
        "--only {}: not one of {}",
        options.only.as_deref().unwrap_or_default(),
        names.join("; ")
    );
    println!(
        "\nverdicts of advise on data, and CPU time with heap and anonymous memory, or the files, on huge pages, ratio to"
    );
    println!(
        "small pages with its 95 % interval. Where the CPU does not say what its TLBs hold, the rule is tried with"
    );
    println!("{} MB.\n", said::TRIED >> 20);
    println!("| program | MB on small pages: anonymous, files | verdict | by the rule | MB huge | ratio | |");
    println!("|---|---:|---|---|---:|---|---|");
    let mut table = Table::default();
    for workload in WORKLOADS.iter().filter(|workload| is_wanted(workload.name)) {
        let dir = TempDir::new_in(std::env::current_exe()?.parent().context("own folder")?)?;
        match workload.start(dir.path()) {
            Ok(running) => table.add(workload.name, private::row(options, &running))?,
            Err(why) => println!("SKIP: {}: {why:#}", workload.name),
        }
    }
    for ((needs, make), size) in files() {
        let name = file_name(needs, size);
        if !is_wanted(&name) {
            continue;
        }
        if !readers::is_here(needs) {
            println!("SKIP: no {needs}: ci/setup.sh test");
            continue;
        }
        table.add(&name, files::row(options, *make))?;
    }
    println!("\n{}", table.tally);
    if !table.failed.is_empty() {
        bail!("not measured: {}", table.failed.join(", "));
    }
    Ok(())
}

/// The rows so far.
#[derive(Default)]
struct Table {
    tally: Tally,
    failed: Vec<String>,
}

impl Table {
    fn add(&mut self, name: &str, row: Result<Row>) -> Result<()> {
        interrupt::check()?;
        match row {
            Ok(row) => self.tally.add(print(name, &row)),
            Err(why) => {
                println!("FAILED: {name}: {why:#}");
                self.failed.push(name.into());
            }
        }
        Ok(())
    }
}

fn print(name: &str, row: &Row) -> Judgement {
    let Row { said, huge, ratio } = row;
    let judgement = match ratio {
        Some(ratio) => judgement(judged_as(said.by_rule()), ratio.interval, *huge),
        None => Judgement::NotLifted,
    };
    let ratio = ratio.map_or("".into(), |ratio| format!("{ratio:.3}"));
    let mb = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    println!(
        "| {name} | {}, {} | {} | {} | {} | {ratio} | {judgement} |",
        mb(said.extents.anonymous.small()),
        mb(said.extents.files.small()),
        said.verdict,
        word(said.by_rule()),
        huge >> 20,
    );
    judgement
}

/// Returns the verdict on code that promises as much: "perhaps" is judged as if it were "probably", though it promises less.
fn judged_as(verdict: DataVerdict) -> &'static str {
    match verdict {
        DataVerdict::Little => "little",
        DataVerdict::Perhaps => "probably",
        DataVerdict::CannotTell => "cannot-tell",
    }
}
