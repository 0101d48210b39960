// SPDX-License-Identifier: Apache-2.0
//! How a subcommand ends: with an exit status, or with the one error type of this crate.
//!
//! Functions that `hugelift_measure` and `hugelift_lab` call return `anyhow::Result`, as those
//! crates do; `?` makes a [`Failure`] of it.

use crate::FAILED;
use hugelift_linux::elf::elf_file::FileError;
use hugelift_linux::io::console::PrintError;
use hugelift_linux::io::output::OutputError;
use hugelift_linux::lookup::ExecError;
use hugelift_linux::proc::procfs::ProcError;
use hugelift_pages::store::StoreError;

/// The exit status of hugelift, or that of the program it has run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit(pub i32);

impl Exit {
    /// Success.
    pub const SUCCESS: Exit = Exit(0);
    /// After ctrl-C, as a shell's for SIGINT: what was measured before is printed.
    pub const INTERRUPTED: Exit = Exit(130);
}

/// Why a subcommand could not do its work. `main` prints the message and exits with the status.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Exit status.
    pub status: i32,
    /// One line for people.
    pub message: String,
}

impl Failure {
    /// A failure of hugelift's own: exit status 125.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { status: FAILED, message: message.into() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::new(in_one_line(&error))
    }
}

/// Joins the messages of an error and of its causes. Most errors of this workspace name their cause themselves, and are
/// not to name it twice.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::new(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Failure {
        Failure::new(message)
    }
}

impl From<PrintError> for Failure {
    fn from(error: PrintError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<ProcError> for Failure {
    fn from(error: ProcError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
        Failure::new(format!("{error}{hint}"))
    }
}

/// The exit status is as for env(1): 127 if there is no such file.
impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        let status = if error.is_not_found() { 127 } else { FAILED };
        Failure { status, message: error.to_string() }
    }
}

/// The exit status is as for env(1): 127 if there is no such program, 126 if it cannot be executed.
impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Failure {
        Failure { status: error.status(), message: error.to_string() }
    }
}

impl From<hugelift_lift::Failure> for Failure {
    fn from(hugelift_lift::Failure { status, message }: hugelift_lift::Failure) -> Failure {
        Failure { status, message }
    }
}

#[cfg(test)]
mod tests {
    use super::in_one_line;
    use anyhow::Context as _;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_cause_is_named_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read a: {source}")]
        struct Reads {
            source: Error,
        }
        let error =
            anyhow::Error::from(Reads { source: Error::from(ErrorKind::NotFound) }).context("lab tlb");
        assert_eq!(in_one_line(&error), "lab tlb: cannot read a: entity not found");
        let error = Err::<(), _>(Error::from(ErrorKind::NotFound)).context("cannot read b").unwrap_err();
        assert_eq!(in_one_line(&error), "cannot read b: entity not found");
    }
}
