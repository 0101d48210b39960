// SPDX-License-Identifier: Apache-2.0
//! `hugelift keep status`: what the daemon says of itself.

use super::ask::ask;
use crate::failure::{Exit, Failure};
use hugelift_core::addr::human_bytes;
use hugelift_core::prime::{Blocked, FileReport};
use hugelift_core::printable::Untrusted;
use hugelift_os::io::console;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;
/// Exit status where some of what is wanted is not huge.
const NOT_ALL: i32 = 1;

/// How things are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The daemon.
    pub pid: u32,
    /// Its configuration.
    pub config: String,
    /// What it may lock.
    pub budget_bytes: u64,
    /// What it has locked.
    pub locked_bytes: u64,
    /// Why it could not lock more.
    pub lock_error: Option<String>,
    /// It has let go of its locks because memory was short.
    pub released: bool,
    /// What was named and is not there.
    pub missing: Vec<String>,
    /// What it keeps.
    pub files: Vec<FileStatus>,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// Where it is.
    pub path: Untrusted,
    /// Whole huge pages of its text and read-only data, in bytes.
    pub whole_bytes: u64,
    /// Of these, on huge pages when it was last looked at.
    pub huge_bytes: u64,
    /// Of these, locked in memory.
    pub locked_bytes: u64,
    /// In words.
    pub summary: String,
    /// What stands in the way.
    pub obstacles: Vec<ObstacleStatus>,
}

/// Bytes that are not huge, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObstacleStatus {
    /// Its name.
    pub reason: String,
    /// How many bytes.
    pub bytes: u64,
    /// In words.
    pub detail: String,
}

impl FileStatus {
    /// The file as reported, with so much of it locked.
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
    /// All that is wanted is there and huge.
    fn is_huge(&self) -> bool {
        self.missing.is_empty() && self.files.iter().all(|f| f.huge_bytes == f.whole_bytes)
    }

    /// The exit status that says so: 0, or 1 if not all is huge.
    pub fn exit(&self) -> Exit {
        if self.is_huge() { Exit::SUCCESS } else { Exit(NOT_ALL) }
    }
}

/// Asks the daemon, and prints its answer.
///
/// # Errors
/// No daemon answers, or its answer cannot be read or printed.
pub fn show(path: Option<&Path>, json: bool) -> Result<Exit, Failure> {
    let answer = ask(path)?;
    let status: Status = serde_json::from_str(&answer)
        .map_err(|e| format!("what answers there is no hugelift keep of this version: {e}"))?;
    console::print(&if json { answer } else { text(&status) })?;
    Ok(status.exit())
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    let sum = |of: fn(&FileStatus) -> u64| status.files.iter().map(of).sum::<u64>();
    let (huge, whole) = (human_bytes(sum(|f| f.huge_bytes)), human_bytes(sum(|f| f.whole_bytes)));
    let (locked, budget) = (human_bytes(status.locked_bytes), human_bytes(status.budget_bytes));
    let _ = writeln!(out, "pid {}, {}", status.pid, status.config);
    let _ = writeln!(out, "{huge} of {whole} huge, {locked} locked (budget {budget})");
    if status.released {
        let _ = writeln!(out, "memory was short: nothing is locked for the moment");
    }
    if let Some(error) = &status.lock_error {
        let _ = writeln!(out, "{}", error);
    }
    for missing in &status.missing {
        let _ = writeln!(out, "{}", missing);
    }
    for file in status.files.iter().filter(|f| f.whole_bytes > 0) {
        let _ = writeln!(out, "{}: {}, {} locked", file.path, file.summary, human_bytes(file.locked_bytes));
        for obstacle in &file.obstacles {
            let _ = writeln!(out, "    {}: {}", human_bytes(obstacle.bytes), obstacle.detail);
        }
    }
    out
}
