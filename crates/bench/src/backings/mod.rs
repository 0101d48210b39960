// SPDX-License-Identifier: Apache-2.0
//! Prints a table of what each backing costs, keeps and needs. Every cell is tried on this machine; a cell that
//! cannot be tried says why.

mod memory;
mod names;
mod row;
mod running;
mod startup;
mod victim;

use crate::options::Options;
use crate::pool;
use crate::warm::TempStore;
use anyhow::Result;
use memory::PROCESSES;
use row::{ROWS, Row};
use victim::{MEGABYTES, Victim};

/// More than the text and read-only data of clang with all its shared objects.
const CLANG_BYTES: u64 = 320 << 20;

/// Prints the table.
///
/// # Errors
/// A run failed, not for lack of a feature of the machine.
pub fn run(options: &Options) -> Result<()> {
    // The pool stays enlarged until the end, for the rows that need it.
    let pool = pool::grow(CLANG_BYTES.max(PROCESSES as u64 * 2 * (MEGABYTES << 20)));
    let pool = pool.as_ref().map(drop);
    let tried = |row: Row| match (row, &pool) {
        (Row::Hugetlb, Err(e)) => Err(format!("not tried: {e:#}")),
        _ => Ok(()),
    };
    let victim = Victim::new()?;
    let start = startup::columns(options, &tried)?;
    println!(
        "\n| backing | added to a start: `/bin/true` | {} | memory for {MEGABYTES} MB of code, each of \
         {PROCESSES} processes | names of functions | uprobe on the program's file | needs |",
        start.large
    );
    println!("|---|---|---|---|---|---|---|");
    for row in ROWS {
        let store = TempStore::new()?;
        let cell = |measured: &dyn Fn() -> Result<String>| match tried(row) {
            Err(why) => why,
            Ok(()) => measured().unwrap_or_else(|e| format!("not tried: {e:#}")),
        };
        let memory = cell(&|| memory::each(row, &victim, &store));
        let names = cell(&|| names::symbols(row, &victim, &store));
        let uprobe = cell(&|| names::uprobe(row, &victim, &store));
        let [small, large] = start.cells(row);
        println!("| {} | {small} | {large} | {memory} | {names} | {uprobe} | {} |", row.title(), row.needs());
    }
    println!("\nadded to a start: wall time in ms, with 95 % interval (env(1) adds {})", start.env);
    Ok(())
}
