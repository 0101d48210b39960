// SPDX-License-Identifier: Apache-2.0
//! `hugelift service status`: the daemon's state, as it sends it and as it is printed.

use crate::answers::process::ProcessStatus;
use hugelift_core::addr::human_bytes;
use hugelift_core::prime::{Blocked, FileReport};
use hugelift_core::printable::{Untrusted, printable};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// The state of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The daemon's process id.
    pub pid: u32,
    /// The path of its configuration.
    pub config: String,
    /// How many bytes it may lock.
    pub budget_bytes: u64,
    /// How many bytes it has locked.
    pub locked_bytes: u64,
    /// Why it could not lock more.
    pub lock_error: Option<String>,
    /// It has unlocked all pages because memory was short.
    pub released: bool,
    /// Names in the configuration for which there is no file, a line each.
    pub missing: Vec<String>,
    /// The files that it keeps.
    pub files: Vec<FileStatus>,
    /// The processes that the policy takes.
    pub processes: Vec<ProcessStatus>,
    /// Why the ledger could not be written last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_error: Option<String>,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// Its path.
    pub path: Untrusted,
    /// Whole huge pages of its text and read-only data, in bytes.
    pub whole_bytes: u64,
    /// Of these, on huge pages when it was last checked.
    pub huge_bytes: u64,
    /// Of these, locked in memory.
    pub locked_bytes: u64,
    /// These numbers in words.
    pub summary: String,
    /// Why the others are not huge.
    pub obstacles: Vec<ObstacleStatus>,
}

/// Bytes that are not huge for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObstacleStatus {
    /// The name of the reason.
    pub reason: String,
    /// How many bytes.
    pub bytes: u64,
    /// The reason in words.
    pub detail: String,
}

impl FileStatus {
    /// Makes the status of a file from the report on it.
    pub fn new(report: &FileReport, locked_bytes: u64) -> FileStatus {
        let obstacle = |o: &Blocked| ObstacleStatus {
            reason: o.obstacle.key().to_string(),
            bytes: o.bytes,
            detail: o.obstacle.to_string(),
        };
        FileStatus {
            path: report.path.clone(),
            whole_bytes: report.whole_bytes,
            huge_bytes: report.huge_bytes,
            locked_bytes,
            summary: report.summary(),
            obstacles: report.obstacles().into_iter().map(|(_, b)| obstacle(b)).collect(),
        }
    }
}

impl Status {
    /// Returns whether all that the configuration names exists and is huge.
    pub fn is_huge(&self) -> bool {
        self.missing.is_empty() && self.files.iter().all(|f| f.huge_bytes == f.whole_bytes)
    }
}

/// Parses the answer of a daemon.
///
/// # Errors
/// The answer is not a status. Perhaps the daemon has another version of hugelift.
pub fn parse(answer: &str) -> Result<Status, String> {
    serde_json::from_str(answer).map_err(|e| {
        format!(
            "cannot read the answer; perhaps the daemon that answered has another version of hugelift: {e}"
        )
    })
}

/// Returns what is shown of it to people.
pub fn text(status: &Status) -> String {
    let mut out = String::new();
    let sum = |of: fn(&FileStatus) -> u64| status.files.iter().map(of).sum::<u64>();
    let (huge, whole) = (human_bytes(sum(|f| f.huge_bytes)), human_bytes(sum(|f| f.whole_bytes)));
    let (locked, budget) = (human_bytes(status.locked_bytes), human_bytes(status.budget_bytes));
    let _ = writeln!(out, "pid {}, {}", status.pid, status.config);
    let _ = writeln!(out, "{huge} of {whole} huge, {locked} locked (budget {budget})");
    if status.released {
        let _ = writeln!(out, "memory was short: nothing is locked at the moment");
    }
    if let Some(error) = &status.lock_error {
        let _ = writeln!(out, "{}", error);
    }
    for missing in &status.missing {
        let _ = writeln!(out, "{}", missing);
    }
    if let Some(error) = &status.ledger_error {
        let _ = writeln!(out, "the ledger is not written: {}", printable(error));
    }
    for file in status.files.iter().filter(|f| f.whole_bytes > 0) {
        let _ = writeln!(out, "{}: {}, {} locked", file.path, file.summary, human_bytes(file.locked_bytes));
        for obstacle in &file.obstacles {
            let _ = writeln!(out, "    {}: {}", human_bytes(obstacle.bytes), obstacle.detail);
        }
    }
    for process in &status.processes {
        let _ = writeln!(out, "{}", process.text());
    }
    out
}
