// SPDX-License-Identifier: Apache-2.0
//! The findings of a diagnosis. Each group has a file, which looks at the facts alone and knows
//! nothing of the other groups.

mod hugetlb;
mod limits;
pub(crate) mod memory;
pub(crate) mod offers;
mod process;
mod thp;
mod trace;

use crate::facts::{Facts, Reading};
use serde::Serialize;

/// How much it matters, least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something could be had that is not; or a matter of taste.
    Note,
    /// Huge pages may fail to come, or cost more than they bring.
    Warning,
    /// A way to huge pages is closed.
    Problem,
}

/// One thing that is not as it could be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// A stable word for machines.
    pub key: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What is the matter, in a line.
    pub title: String,
    /// What was read to find it.
    pub read: Vec<Reading>,
    /// Why it matters.
    pub why: String,
    /// The command that changes it, for sh(1); where no command can, see `advice`.
    pub command: Option<String>,
    /// What else would help.
    pub advice: Option<String>,
    /// The command costs nothing, takes nothing from anybody and can be undone: `--fix` runs
    /// it. What is a matter of taste or of somebody's policy is not safe.
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

    /// The command that writes `value` to the file that was read.
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

/// All that is found, worst first.
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
        // No way to huge pages is closed to one that has them.
        if process.is_huge() {
            let problems = all.iter_mut().filter(|f| f.severity == Severity::Problem);
            problems.for_each(|f| f.severity = Severity::Note);
        }
    }
    // A stable sort: within a severity the groups stay together.
    all.sort_by_key(|f| std::cmp::Reverse(f.severity));
    all
}

/// `echo VALUE > PATH`
fn write_command(value: impl std::fmt::Display, path: &str) -> String {
    format!("echo {value} > {}", quoted(path))
}

/// A word for sh(1), in quotes where it needs them.
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
