// SPDX-License-Identifier: Apache-2.0
//! Measures the memory that lifted code takes in each of many processes: the sum of their proportional shares,
//! divided by their number.

use super::row::Row;
use super::running::Running;
use super::victim::Victim;
use crate::warm::TempStore;
use anyhow::{Context as _, Result, bail};
use hugelift_core::addr::Addr;
use hugelift_core::smaps::Usage;
use hugelift_measure::coverage;

/// Random calls that touch every page of the code.
const EVERYWHERE: u64 = 4_000_000;

/// Returns the megabytes per process.
///
/// # Errors
/// A run failed, or the code of a process is not huge as a whole.
pub fn each(row: Row, victim: &Victim, store: &TempStore) -> Result<String> {
    // The first run primes, or fills the store.
    let program = row.of(&victim.calling(EVERYWHERE), store, &[])?;
    drop(Running::at_rest(&program)?);
    let all: Vec<Running> = (0..PROCESSES).map(|_| Running::at_rest(&program)).collect::<Result<_>>()?;
    let mut bytes = 0;
    for running in &all {
        let usages = running.smaps()?;
        let code =
            running.line.rsplit(" at ").next().and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        let code = Addr(code.context("no address in the program's output")?);
        let cover = coverage::of_text_at(&usages, code);
        if row != Row::Bare && cover.huge < Victim::whole_bytes() {
            bail!("only {cover} huge");
        }
        bytes += memory(&usages, code, Addr(code.0 + Victim::whole_bytes()));
    }
    Ok(format!("{:.1} MB", bytes as f64 / PROCESSES as f64 / f64::from(1 << 20)))
}

/// Returns the proportional share (Pss) of the process in the memory from `start` to `end`, plus hugetlb pages,
/// which Pss leaves out.
fn memory(usages: &[Usage], start: Addr, end: Addr) -> u64 {
    let inside = usages.iter().filter(|u| u.mapping.range.start < end && start < u.mapping.range.end);
    inside.map(|u| u.pss + u.hugetlb()).sum()
}

/// Processes that run at the same time.
pub(super) const PROCESSES: usize = 10;
