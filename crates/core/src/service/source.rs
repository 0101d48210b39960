// SPDX-License-Identifier: Apache-2.0
//! A configuration file by its name and its text, and a place in one.

use crate::printable::{Escape, Untrusted};
use crate::service::written::Written;
use crate::toml_text::{self, Wrong, line_number};
use std::fmt;

/// A configuration file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path or name, for messages.
    pub name: String,
    /// What is written in it.
    pub text: String,
}

impl Source {
    /// Returns what is wrong with the file, in one line that begins with its name.
    pub fn complain(&self, wrong: &Wrong) -> String {
        format!("{}: {}", self.name.escaped(), wrong.in_text(&self.text))
    }

    /// Reads the text.
    ///
    /// # Errors
    /// Returns the line that is wrong, and why.
    pub fn read(&self) -> Result<Written, String> {
        toml_text::read(&self.text).map_err(|wrong| self.complain(&wrong))
    }

    /// Returns the place of a byte of the text.
    pub fn place(&self, offset: usize) -> Place {
        let line = line_number(&self.text, offset).unwrap_or(1);
        Place { file: self.name.as_str().into(), line }
    }
}

/// A line of a configuration file. It is shown as `FILE: line NUMBER`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub file: Untrusted,
    /// The number of the line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}", self.file, self.line)
    }
}
