// SPDX-License-Identifier: Apache-2.0
//! What several subcommands do with their result: JSON, comma-separated values, and a page for `--html`.

use crate::failure::Failure;
use anyhow::Context as _;
use hugelift_core::printable;
use hugelift_core::printable::Escape;
use hugelift_linux::io::console::{self, PrintError};
use hugelift_linux::io::output;
use serde::Serialize;
use std::path::Path;

/// Returns `value` as JSON in one line.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = printable::json(value).map_err(|e| format!("cannot write JSON: {e}"))?;
    Ok(text + "\n")
}

/// Prints text, in which hugelift has put colours if `coloured`.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str, coloured: bool) -> Result<(), PrintError> {
    if coloured { console::print_coloured(text) } else { console::print(text) }
}

/// Returns `rows` as comma-separated values.
///
/// # Errors
/// csv reports an error, which does not happen in memory.
pub fn csv<R: IntoIterator<Item = String>>(rows: impl IntoIterator<Item = R>) -> Result<String, Failure> {
    let mut table = csv::Writer::from_writer(Vec::new());
    for row in rows {
        table.write_record(row).context("CSV")?;
    }
    Ok(String::from_utf8(table.into_inner().context("CSV")?).context("CSV")?)
}

/// Checks `--html` before a long measurement.
///
/// # Errors
/// The folder of the file does not exist.
pub fn check_html(path: Option<&Path>) -> Result<(), Failure> {
    let folder = path.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(format!("--html: there is no folder {}", folder.escaped()).into()),
        None => Ok(()),
    }
}

/// Writes the page to the file that `--html` names. Returns the page if it is to be printed to
/// standard output instead of the result (`--html -`).
///
/// # Errors
/// The file cannot be written.
pub fn html(path: &Path, page: String) -> Result<Option<String>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Some(page));
    }
    output::write(path, page.as_bytes())?;
    Ok(None)
}
