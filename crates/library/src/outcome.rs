// SPDX-License-Identifier: Apache-2.0
//! What came of a lift or a restore.

use hugelift_core::printable;
use hugelift_core::report::{Report, Total};
use hugelift_core::snapshot::Part;

/// What came of a lift or a restore: what smaps shows, not what was asked for.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) report: Report,
    pub(crate) line: String,
    pub(crate) complaints: Vec<String>,
}

impl Outcome {
    /// Returns one line, as in "text 24 MB of 24 MB on huge pages".
    pub fn summary(&self) -> &str {
        &self.line
    }

    /// Returns what was not done although it might have been, a line each.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Returns all details.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the sums of a part over all objects.
    pub fn total(&self, part: Part) -> Total {
        self.report.totals.get(&part).copied().unwrap_or_default()
    }

    /// Returns all details as JSON, in the form of `hugelift inspect --json`.
    pub fn json(&self) -> String {
        printable::json(&self.report).unwrap_or_default()
    }
}
