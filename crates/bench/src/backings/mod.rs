// SPDX-License-Identifier: Apache-2.0
//! Prints a table of what each backing costs, keeps and needs. Every cell is tried on this machine; a cell that
//! cannot be tried says why.

mod memory;
mod names;
mod running;
mod startup;

use crate::warm::TempStore;
use crate::{Options, pool, under_hugelift};
use anyhow::{Context as _, Result};
use hugelift_measure::generated::{self, Linking};
use hugelift_measure::host;
use hugelift_measure::program::Program;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Megabytes of code of the program whose memory and names are examined. Ten copies must fit into memory.
const MEGABYTES: u64 = 16;
/// Processes that run at the same time.
const PROCESSES: usize = 10;
/// More than the text and read-only data of clang with all its shared objects.
const CLANG_BYTES: u64 = 320 << 20;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    Bare,
    Pagecache,
    /// The first start, which makes the copy in the store.
    SharedFirst,
    /// A later start, which uses the copy in the store.
    Shared,
    Thp,
    Hugetlb,
}

const ROWS: [Row; 6] = [Row::Bare, Row::Pagecache, Row::SharedFirst, Row::Shared, Row::Thp, Row::Hugetlb];

impl Row {
    fn title(self) -> &'static str {
        match self {
            Row::Bare => "bare, without hugelift",
            Row::Pagecache => "`pagecache`, primed",
            Row::SharedFirst => "`shared`, first start",
            Row::Shared => "`shared`, later starts",
            Row::Thp => "`thp`",
            Row::Hugetlb => "`hugetlb`",
        }
    }

    fn needs(self) -> &'static str {
        match self {
            Row::Bare => "",
            Row::Pagecache => "a file system with large folios ([which](filesystems.md)); `hugelift prime`",
            Row::SharedFirst => "a tmpfs that allows code; Linux 6.1, or root's own mount",
            Row::Shared => "a first start, as long as the store keeps the copy",
            Row::Thp => "`transparent_hugepage/enabled` not `never`",
            Row::Hugetlb => "a pool (`hugelift pool`), Linux 5.16 for the cheapest way",
        }
    }

    fn backing(self) -> Option<&'static str> {
        Some(match self {
            Row::Bare => return None,
            Row::Pagecache => "pagecache",
            Row::SharedFirst | Row::Shared => "shared",
            Row::Thp => "thp",
            Row::Hugetlb => "hugetlb",
        })
    }

    /// Returns `program` in this row, with further `options` of `hugelift run`.
    ///
    /// # Errors
    /// The hugelift to measure does not exist.
    pub fn of(self, program: &Program, store: &TempStore, options: &[&str]) -> Result<Program> {
        match self {
            Row::Bare => Ok(program.clone()),
            // `options` are for names of functions, for which the store needs no option.
            Row::SharedFirst | Row::Shared => store.lifted(program, &[]),
            _ => {
                let backing = self.backing().unwrap_or_default();
                under_hugelift(program, &[&["--quiet", "--backing", backing], options].concat())
            }
        }
    }
}

/// Prints the table.
///
/// # Errors
/// A run failed, not for lack of a feature of the machine.
pub fn run(options: &Options) -> Result<()> {
    // The pool stays enlarged until the end, for the rows that need it.
    let pool = pool::Grown::by(CLANG_BYTES.max(PROCESSES as u64 * 2 * (MEGABYTES << 20)));
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

/// A copy of the generated program that only this benchmark uses.
pub struct Victim {
    _dir: TempDir,
    path: PathBuf,
}

impl Victim {
    fn new() -> Result<Victim> {
        let made = generated::jumps(MEGABYTES, Linking::Dynamic)?;
        let dir = TempDir::new_in(made.parent().context("a folder")?)?;
        let path = dir.path().join("jumps");
        std::fs::copy(&made, &path).with_context(|| format!("cannot copy {}", made.display()))?;
        std::fs::File::open(&path)?.sync_all()?;
        Ok(Victim { path, _dir: dir })
    }

    /// Returns the program with `calls` calls.
    pub fn calling(&self, calls: u64) -> Program {
        Program::new([&self.path]).arg(&calls.to_string()).arg("1")
    }

    /// Returns the least number of bytes that its code has in whole huge pages at any address.
    pub fn whole_bytes() -> u64 {
        (MEGABYTES << 20) - host::huge_page_bytes()
    }

    /// Returns the path of its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
