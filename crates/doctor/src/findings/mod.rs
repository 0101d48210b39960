// SPDX-License-Identifier: Apache-2.0
//! The findings of a diagnosis. Each file has one group, which depends on the facts alone and not on
//! other groups.

mod hugetlb;
mod limits;
pub(crate) mod memory;
pub(crate) mod offers;
mod process;
mod thp;
mod trace;

use crate::facts::{Facts, Reading};
use serde::Serialize;

/// How severe a finding is, least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A gain that is not used, or a matter of preference.
    Note,
    /// Huge pages are possibly not allocated, or cost more than they save.
    Warning,
    /// A way to get huge pages is closed.
    Problem,
}

/// One thing that could be better.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// A stable name for scripts.
    pub key: &'static str,
    /// How severe it is.
    pub severity: Severity,
    /// The finding in one line.
    pub title: String,
    /// The readings that show it.
    pub read: Vec<Reading>,
    /// Why it matters.
    pub why: String,
    /// The command that changes it, for sh(1); where no command can, see `advice`.
    pub command: Option<String>,
    /// What else would help.
    pub advice: Option<String>,
    /// Whether `--fix` runs the command: it costs nothing, takes nothing from other programs and can be
    /// undone. A matter of preference or of policy is not safe.
    pub safe: bool,
}

impl Finding {
    fn new(
        key: &'static str,
        severity: Severity,
        title: impl Into<String>,
        why: impl Into<String>,
    ) -> Finding {
        Finding {
            key,
            severity,
            title: title.into(),
            read: Vec::new(),
            why: why.into(),
            command: None,
            advice: None,
            safe: false,
        }
    }

    fn problem(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Problem, title, why)
    }

    fn warning(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Warning, title, why)
    }

    fn note(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Note, title, why)
    }

    fn read(mut self, reading: &Reading) -> Finding {
        self.read.push(reading.clone());
        self
    }

    fn seen(self, source: impl Into<String>, value: impl Into<String>) -> Finding {
        self.read(&Reading { source: source.into(), value: value.into() })
    }

    fn command(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }

    /// Sets the command that writes `value` to the file that was read.
    fn set(self, reading: &Reading, value: impl std::fmt::Display) -> Finding {
        let command = write_command(value, &reading.source);
        self.command(command)
    }

    fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    fn safe(mut self) -> Finding {
        self.safe = true;
        self
    }
}

/// Returns all findings, worst first.
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    thp::findings(facts, &mut all);
    hugetlb::findings(facts, &mut all);
    memory::findings(facts, &mut all);
    limits::findings(facts, &mut all);
    trace::findings(facts, &mut all);
    if let Some(process) = &facts.process {
        process::findings(facts, process, &mut all);
        offers::findings(process, &mut all);
        // A process that has its huge pages has no problem.
        if process.is_huge() {
            let problems = all.iter_mut().filter(|f| f.severity == Severity::Problem);
            problems.for_each(|f| f.severity = Severity::Note);
        }
    }
    // A stable sort: within a severity the groups stay together.
    all.sort_by_key(|f| std::cmp::Reverse(f.severity));
    all
}

/// Returns the command `echo VALUE > PATH`.
fn write_command(value: impl std::fmt::Display, path: &str) -> String {
    format!("echo {value} > {}", quoted(path))
}

/// Returns a word for sh(1), in quotes where it needs them.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
