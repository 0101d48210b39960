// SPDX-License-Identifier: Apache-2.0
//! What the lifted code takes of memory, in each of many processes: their shares of it added up,
//! divided by how many they are.

use super::running::Running;
use super::{PROCESSES, Row, Victim};
use crate::warm::Shelf;
use anyhow::{Context as _, Result, bail};
use hugelift_core::addr::Addr;
use hugelift_core::smaps::Usage;
use hugelift_measure::coverage;

/// Calls at random that leave no page of the code untouched.
const EVERYWHERE: u64 = 4_000_000;

/// Megabytes of memory, and how much of the code is huge where not all is.
///
/// # Errors
/// A run failed, or a process is not lifted.
pub fn each(row: Row, victim: &Victim, shelf: &Shelf) -> Result<String> {
    // Once before: it primes, or fills the store.
    let program = row.of(&victim.calling(EVERYWHERE), shelf, &[])?;
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

/// The process's share of what lies from `start` to `end`. smaps leaves hugetlb pages out of it.
fn memory(usages: &[Usage], start: Addr, end: Addr) -> u64 {
    let inside = usages.iter().filter(|u| u.mapping.range.start < end && start < u.mapping.range.end);
    inside.map(|u| u.pss + u.hugetlb()).sum()
}
