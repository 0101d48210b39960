// SPDX-License-Identifier: Apache-2.0
//! The result of `hugelift lab walks`, which is also its JSON output.

use super::count::{Counted, Counting, NoTrace};
use hugelift_core::printable::Untrusted;
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What was traced.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A command, word by word.
    Command(Vec<Untrusted>),
    /// A recorded trace: its path, or `-` for standard input.
    Trace(Untrusted),
}

/// Lines of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Lines {
    /// Those that were read.
    pub read: u64,
    /// Those of them that are neither accesses nor messages of valgrind.
    pub foreign: u64,
    /// The number of the first of these, from 1.
    pub first_foreign: Option<u64>,
}

/// The result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// What was traced.
    pub subject: Subject,
    /// Lines of the trace.
    pub lines: Lines,
    /// What was counted.
    #[serde(flatten)]
    pub counted: Counted,
}

impl Report {
    /// Ends a trace, and reports on it.
    ///
    /// # Errors
    /// No line of it is an instruction.
    pub fn of(subject: Subject, counting: &mut Counting) -> Result<Report, NoTrace> {
        let counted = counting.finish()?;
        let reader = &counting.reader;
        let lines =
            Lines { read: reader.lines, foreign: reader.foreign, first_foreign: reader.first_foreign };
        Ok(Report { version: VERSION, subject, lines, counted })
    }
}
