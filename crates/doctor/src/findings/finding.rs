// SPDX-License-Identifier: Apache-2.0
//! One finding, and how severe it is.

use super::shell::write_command;
use crate::facts::Reading;
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
    pub(super) fn new(
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

    pub(super) fn problem(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Problem, title, why)
    }

    pub(super) fn warning(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Warning, title, why)
    }

    pub(super) fn note(key: &'static str, title: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding::new(key, Severity::Note, title, why)
    }

    pub(super) fn read(mut self, reading: &Reading) -> Finding {
        self.read.push(reading.clone());
        self
    }

    pub(super) fn seen(self, source: impl Into<String>, value: impl Into<String>) -> Finding {
        self.read(&Reading { source: source.into(), value: value.into() })
    }

    pub(super) fn command(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }

    /// Sets the command that writes `value` to the file that was read.
    pub(super) fn set(self, reading: &Reading, value: impl std::fmt::Display) -> Finding {
        let command = write_command(value, &reading.source);
        self.command(command)
    }

    pub(super) fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    pub(super) fn safe(mut self) -> Finding {
        self.safe = true;
        self
    }
}
