// SPDX-License-Identifier: Apache-2.0
//! What is asked of one lift, and where its messages and its report go. Nothing here changes later.

use crate::FAILED;
use crate::launch::bypass::Bypass;
use crate::launch::bypass::Verdict;
use crate::options::{LiftOptions, Verbosity};
use hugelift_core::printable::Untrusted;
use hugelift_core::report;
use hugelift_linux::io::console::{say, unhurt};
use std::fs::File;
use std::io::{self, Write};

/// What is asked of the lift of one program.
pub struct Asked {
    /// The program, as messages name it.
    pub(crate) program: Untrusted,
    /// How it is lifted.
    pub(crate) options: LiftOptions,
    /// Where the report goes, if one is wanted.
    pub(crate) report: Option<File>,
}

impl Asked {
    /// Returns whether messages of this verbosity go to stderr.
    pub(crate) fn is_heard(&self, least: Verbosity) -> bool {
        self.options.verbosity >= least
    }

    /// Writes a line about the program to stderr, if the user wants lines of this verbosity.
    pub(crate) fn say(&self, least: Verbosity, line: &str) {
        if self.is_heard(least) {
            say(&format!("{}: {line}", self.program));
        }
    }

    /// Refuses the start of a program that `--strict` allows only with all that was planned.
    pub(crate) fn refuse(&self, why: &str) -> Verdict {
        self.say(Verbosity::Problems, &format!("not started (--strict): {why}"));
        Verdict::Refuse(FAILED)
    }

    /// Reports that the program cannot be lifted; returns whether it may start nevertheless.
    pub(crate) fn bypass(&self, why: &Bypass) -> Verdict {
        let nothing = serde_json::Map::new();
        self.write_report(&serde_json::json!({
            "version": report::VERSION, "objects": [], "totals": nothing, "plain": why.to_string(),
        }));
        if self.options.strict {
            return self.refuse(&why.to_string());
        }
        let least = if why.is_usual() { Verbosity::Summary } else { Verbosity::Problems };
        self.say(least, &format!("started without huge pages: {why}"));
        Verdict::Start
    }

    /// Writes the report, if one is wanted.
    pub(crate) fn write_report(&self, report: &impl serde::Serialize) {
        let Some(mut file) = self.report.as_ref() else { return };
        let written = unhurt(|| {
            serde_json::to_writer(file, report).map_err(io::Error::from).and_then(|()| file.write_all(b"\n"))
        });
        if let Err(error) = written {
            self.say(Verbosity::Problems, &format!("cannot write the report: {error}"));
        }
    }
}
