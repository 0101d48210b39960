// SPDX-License-Identifier: Apache-2.0
//! Keeps the last report of each experiment for `hugelift doctor`, in
//! `$XDG_STATE_HOME/hugelift/lab/`, or `~/.local/state/hugelift/lab/` (XDG Base Directory
//! Specification).

use crate::results::{Report, VERSION};
use anyhow::{Context as _, Result};
use hugelift_core::printable::Escape;
use hugelift_linux::io::{open, output};
use std::fs;
use std::path::{Path, PathBuf};

/// A report is a few hundred kilobytes. A larger file is not a report.
const LARGEST: u64 = 16 << 20;

/// Returns the folder; `None` if neither variable names one.
pub fn folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("hugelift/lab"))
}

/// Saves a report. It replaces an earlier one of the same experiment.
///
/// # Errors
/// The folder or the file cannot be made.
pub fn save(folder: &Path, report: &Report) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.escaped()))?;
    let json = serde_json::to_vec(report).context("JSON")?;
    let path = folder.join(format!("{}.json", report.experiment));
    // The message of the error includes that of its source.
    output::write(&path, &json).map_err(|e| anyhow::anyhow!("{e}"))
}

/// Loads all saved reports, in the order of their names. Files that are not reports of this version are
/// skipped.
pub fn load(folder: &Path) -> Vec<Report> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "json"));
    files.sort();
    let report = |path: &PathBuf| {
        let text = open::text(path, LARGEST).ok()?;
        let report: Report =
            serde_json::from_str(&text).inspect_err(|e| tracing::debug!("{}: {e}", path.escaped())).ok()?;
        (report.version == VERSION).then_some(report)
    };
    files.iter().filter_map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;
    use crate::{Experiment, perform};

    #[test]
    fn saved_reports_are_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        assert_eq!(load(&folder), []);
        let experiment = Experiment { name: "x", title: "t", run: |_, _| Ok(Outcome::default()) };
        let report = perform(&experiment, true, |_, _| {}, |_| Ok(Outcome::default())).unwrap();
        save(&folder, &report).unwrap();
        save(&folder, &report).unwrap();
        // Files that are not reports are skipped.
        fs::write(folder.join("y.json"), "{").unwrap();
        fs::write(folder.join("z"), "{}").unwrap();
        fs::write(
            folder.join("old.json"),
            serde_json::to_vec(&Report { version: 0, ..report.clone() }).unwrap(),
        )
        .unwrap();
        assert_eq!(load(&folder), [report]);
    }
}
