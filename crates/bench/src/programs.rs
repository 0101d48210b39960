// SPDX-License-Identifier: Apache-2.0
//! Where the programs are: the hugelift to measure, and what it runs.

use anyhow::{Context as _, Result, ensure};
use hugelift_measure::program::Program;
use std::path::PathBuf;
use std::process::Command;

/// Returns the path of the hugelift to measure.
pub fn hugelift() -> Result<PathBuf> {
    let path = match std::env::var_os("HUGELIFT_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe().context("own path")?.with_file_name("hugelift"),
    };
    ensure!(path.is_file(), "no hugelift at {}: cargo build --release, or set HUGELIFT_BIN", path.display());
    Ok(path)
}

/// Returns `program` under `hugelift run` with `options`.
pub fn under_hugelift(program: &Program, options: &[&str]) -> Result<Program> {
    Ok(program.lifted(&hugelift()?, options))
}

/// Returns the newest clang++ in PATH.
pub fn find_clang() -> Option<PathBuf> {
    let names = std::iter::once("clang++".to_string()).chain((11..40).rev().map(|n| format!("clang++-{n}")));
    let dirs: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let found = names.flat_map(|name| dirs.iter().map(move |dir| dir.join(&name)).collect::<Vec<_>>());
    found.into_iter().find(|path| path.is_file())
}

/// Runs a compiler. What it says is the error, if it fails.
pub fn built(command: &mut Command) -> Result<()> {
    let out = command.output().with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}
