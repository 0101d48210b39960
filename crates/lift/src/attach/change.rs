// SPDX-License-Identifier: Apache-2.0
//! What the change of a running process showed.

use super::chosen::Chosen;
use super::page_size::Resized;
use hugelift_core::addr::Range;
use hugelift_core::apply::Outcome;
use hugelift_core::plan::Plan;
use hugelift_core::report::Report;
use hugelift_core::restore::Restored;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::unused::GivenBack;
use hugelift_inject::live::Stops;
use hugelift_linux::proc::procfs::Process;
use serde::Serialize;
use std::time::Duration;

/// What the change of a running process showed.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What is huge now, or what was restored.
    pub lines: Vec<String>,
    /// What was not done although it might have been, a line each.
    pub complaints: Vec<String>,
    /// How often a thread was borrowed.
    pub borrowed: u64,
    /// The longest time for which one was stopped, in microseconds.
    pub longest_stop_us: u64,
    /// How often all threads were stopped, to replace data.
    pub all_stopped: u64,
    /// The longest time for which they were, from the first to the last, in microseconds.
    pub longest_stop_of_all_us: u64,
    /// From the first reading of the process to the end, in milliseconds.
    pub took_ms: f64,
    /// What was given back of memory that huge pages waste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<GivenBack>,
    /// What of the copies was restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
    /// Bytes of anonymous copies that were made, of ordinary memory.
    #[serde(skip)]
    pub(crate) copied: u64,
    /// The anonymous copies of code among these.
    #[serde(skip)]
    pub(crate) code: Vec<Range>,
    /// Whether any code or constants were put on huge pages.
    #[serde(skip)]
    pub(crate) is_lifted: bool,
    /// Whether some of what was planned stays as it was.
    #[serde(skip)]
    pub(crate) is_partial: bool,
    /// What smaps shows afterwards.
    pub report: Report,
}

impl Change {
    /// Returns a change that has lifted nothing.
    pub(super) fn new(
        lines: Vec<String>,
        complaints: Vec<String>,
        stops: Stops,
        took: Duration,
        report: Report,
    ) -> Change {
        Change {
            lines,
            complaints,
            borrowed: stops.count,
            longest_stop_us: micros(stops.longest),
            all_stopped: stops.all,
            longest_stop_of_all_us: micros(stops.longest_of_all),
            took_ms: millis(took),
            unused: None,
            restored: None,
            copied: 0,
            code: Vec::new(),
            is_lifted: false,
            is_partial: false,
            report,
        }
    }

    /// Names the process that was chosen, by whichever thread it was reached.
    pub(super) fn of(mut self, chosen: Chosen) -> Change {
        self.report.pid = Some(chosen.pid);
        self
    }

    /// Returns the bytes of these parts that are on huge pages.
    pub(crate) fn huge_bytes(&self, parts: &[Part]) -> u64 {
        let totals = self.report.totals.iter().filter(|(part, _)| parts.contains(part));
        totals.map(|(_, total)| total.huge_bytes).sum()
    }

    /// Adds what a further step has changed, of which a line tells.
    pub fn add(&mut self, line: Option<String>, step: Resized) {
        self.lines.extend(line);
        self.complaints.extend(step.complaints);
        self.count(step.stops);
        self.took_ms += millis(step.took);
    }

    /// Adds the stops of a further step.
    pub(super) fn count(&mut self, stops: Stops) {
        self.borrowed += stops.count;
        self.longest_stop_us = self.longest_stop_us.max(micros(stops.longest));
        self.all_stopped += stops.all;
        self.longest_stop_of_all_us = self.longest_stop_of_all_us.max(micros(stops.longest_of_all));
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a time in milliseconds.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Reports what smaps shows of a process now.
pub(super) fn report(
    pid: u32,
    snapshot: &Snapshot,
    plan: &Plan,
    outcome: Option<&Outcome>,
) -> Result<Report, String> {
    let usage = Process::new(pid).smaps().map_err(|e| e.to_string())?;
    let mut report = Report::new(snapshot, Some(&usage), plan, outcome);
    report.pid = Some(pid);
    Ok(report)
}
