// SPDX-License-Identifier: Apache-2.0
//! Measures what each backing adds to the start of a program with nothing to lift, and of a large one.

use super::row::{ROWS, Row};
use crate::options::Options;
use crate::primed;
use crate::programs::find_clang;
use crate::warm::TempStore;
use anyhow::{Context as _, Result};
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use std::collections::HashMap;
use tempfile::TempDir;

const ROUNDS: usize = 200;
const LARGE_ROUNDS: usize = 30;

/// Both columns.
pub struct Columns {
    /// Title of the column of the large program.
    pub large: String,
    /// What env(1) adds to the start of the small program.
    pub env: String,
    small: HashMap<String, String>,
    large_cells: HashMap<String, String>,
}

impl Columns {
    /// Returns the cells of a row.
    pub fn cells(&self, row: Row) -> [String; 2] {
        let cell = |column: &HashMap<String, String>| column.get(row.title()).cloned().unwrap_or_default();
        [cell(&self.small), cell(&self.large_cells)]
    }
}

/// Measures both columns, with all rows interleaved. The cell of the bare row is its median.
///
/// # Errors
/// A run failed.
pub fn columns(options: &Options, tried: &dyn Fn(Row) -> Result<(), String>) -> Result<Columns> {
    let small = Program::new(["/bin/true"]);
    let env = Program::new(["/usr/bin/env", "/bin/true"]);
    let rounds = options.rounds.unwrap_or(ROUNDS);
    let mut cells = column([&small, &small], Some(&env), rounds, tried)?;
    let env = cells.remove(ENV).unwrap_or_default();

    let Some(clang) = find_clang() else {
        let why = "not tried: no clang++ in PATH (ci/setup.sh test)".to_string();
        let large_cells = ROWS.iter().map(|row| (row.title().to_string(), why.clone())).collect();
        return Ok(Columns { large: "clang++".into(), env, small: cells, large_cells });
    };
    // Copies, so that no file of the machine is primed.
    let dir = TempDir::new_in(std::env::current_exe()?.parent().context("own folder")?)?;
    let libraries = primed::large_libraries(&clang)?;
    let with = |name: &str| -> Result<(Program, u64)> {
        let folder = dir.path().join(name);
        primed::copies(&libraries, &folder)?;
        let (_, whole) = primed::prime(&folder, name != "primed")?;
        let mut program = Program::new([&clang]).arg("--version");
        program.env.push(("LD_LIBRARY_PATH".into(), folder.into()));
        Ok((program, whole))
    };
    let ((plain, whole), (primed, _)) = (with("plain")?, with("primed")?);
    let _held = (primed::hold(&dir.path().join("plain"))?, primed::hold(&dir.path().join("primed"))?);
    let rounds = options.rounds.unwrap_or(LARGE_ROUNDS);
    let large_cells = column([&plain, &primed], None, rounds, tried)?;
    let large = format!("`clang++ --version`, {} MB", whole >> 20);
    Ok(Columns { large, env, small: cells, large_cells })
}

const ENV: &str = "env";
const BARE_PRIMED: &str = "bare, primed";

/// Measures the cells of a column, by the titles of the rows. The row of the page cache runs `primed`, all
/// others run `plain`.
fn column(
    [plain, primed]: [&Program; 2],
    env: Option<&Program>,
    rounds: usize,
    tried: &dyn Fn(Row) -> Result<(), String>,
) -> Result<HashMap<String, String>> {
    let (filled, empty) = (TempStore::new()?, TempStore::new()?);
    filled.filled(plain)?;
    let mut cells = HashMap::new();
    let mut sides = vec![
        Side::new(Row::Bare.title(), || Ok(plain.run()?.cost.wall)),
        Side::new(BARE_PRIMED, || Ok(primed.run()?.cost.wall)),
    ];
    for row in ROWS.into_iter().filter(|row| *row != Row::Bare) {
        if let Err(why) = tried(row) {
            cells.insert(row.title().to_string(), why);
            continue;
        }
        let program = if row == Row::Pagecache { primed } else { plain };
        let lifted = row.of(program, if row == Row::Shared { &filled } else { &empty }, &[])?;
        sides.push(Side::new(row.title(), move || match row {
            Row::SharedFirst => Ok(row.of(program, &TempStore::new()?, &[])?.run()?.cost.wall),
            _ => Ok(lifted.run()?.cost.wall),
        }));
    }
    if let Some(env) = env {
        sides.push(Side::new(ENV, || Ok(env.run()?.cost.wall)));
    }
    let results = rounds::run(&mut sides, rounds, |_, _, _| {})?;
    for (side, times) in sides.iter().zip(&results) {
        let bare = &results[usize::from(side.name == Row::Pagecache.title())];
        let cell = match side.name {
            name if name == Row::Bare.title() => format!("(takes {:.1} ms)", stats::median(times)? * 1e3),
            _ => format!("{:.2} ms", stats::difference(&pairs(bare, times, |seconds| seconds * 1e3))?),
        };
        cells.insert(side.name.to_string(), cell);
    }
    Ok(cells)
}
