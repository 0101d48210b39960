// SPDX-License-Identifier: Apache-2.0
//! Data files through a mapping: a reader is asked about while it reads the copy in small pages, then compared with the primed
//! copy by pairs of runs.

use super::said::{Row, Said};
use crate::data::files::Files;
use crate::data::readers::Make;
use crate::data::{mapped, same_sums};
use crate::options::Options;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{Side, pairs};
use hugelift_measure::stats;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 10;
/// How long a reader reads before it is asked about.
const READY: Duration = Duration::from_millis(300);
/// How long it is asked about. After its work it waits, with its memory as it was.
const ASKED: &str = "1s";

/// Makes a reader and its files, asks about it, and measures it.
///
/// # Errors
/// The files could not be made or primed, or a run failed.
pub fn row(options: &Options, make: Make) -> Result<Row> {
    let programs = TempDir::new()?;
    let reader = make(programs.path())?;
    let files = Files::make(|folder| reader.program("make", folder).run().map(drop))?;
    let held = files.prime()?;
    files.check()?;
    let (small, primed) = (reader.program("read", &files.small()), reader.program("read", &files.primed()));
    let said = said(&small)?;
    let (_, huge_before) = mapped(&small.run_and_read_memory()?.memory, &files.small());
    let (_, huge) = mapped(&primed.run_and_read_memory()?.memory, &files.primed());
    let mut sides = [Side::new("small", || small.run()), Side::new("primed", || primed.run())];
    let results = same_sums(&mut sides, options.rounds.unwrap_or(ROUNDS))?;
    let ratio = stats::ratio(&pairs(&results[0], &results[1], |sample| sample.cost.cpu()))?;
    files.check()?;
    drop(held);
    Ok(Row { said, huge: huge.saturating_sub(huge_before), ratio: Some(ratio) })
}

fn said(program: &Program) -> Result<Said> {
    let mut command = program.command()?;
    let mut child = Child::start(command.stdin(Stdio::piped()))?;
    std::thread::sleep(READY);
    let said = Said::of(child.pid(), ASKED);
    // The reader ends at the end of its input.
    drop(child.streams().stdin.take());
    let (status, _) = child.finish().context("the reader")?;
    ensure!(status.success(), "{program}: {status}");
    said
}
