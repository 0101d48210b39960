// SPDX-License-Identifier: Apache-2.0
//! What is known of a side: the same for commands and servers.

use hugelift_measure::inspection::Inspection;
use hugelift_measure::timed::Seen;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// What the warm-up runs of one side have shown.
#[derive(Clone, Default)]
pub struct Known {
    /// The largest value of each figure.
    pub seen: Seen,
    /// Bytes that hugelift could lift.
    pub liftable: Option<u64>,
    /// The reason that hugelift gave when it lifted nothing.
    pub why_not: Option<String>,
}

impl Known {
    /// Takes over what one inspection has shown.
    pub fn from_inspection(inspection: Inspection) -> Known {
        Known { seen: inspection.seen, liftable: inspection.liftable, why_not: inspection.why_not }
    }

    /// Adds what a further run has shown.
    pub fn add(&mut self, other: Known) {
        self.seen = self.seen.max(other.seen);
        self.liftable = self.liftable.max(other.liftable);
        self.why_not = self.why_not.take().or(other.why_not);
    }
}

/// Returns the exit status as a shell shows it: 128 and the number of the signal that ended the process.
pub fn shell_status(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
