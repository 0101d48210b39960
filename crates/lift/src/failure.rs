// SPDX-License-Identifier: Apache-2.0
//! Why a program was not started, or a child not lifted.

use crate::FAILED;
use hugelift_linux::io::console::PrintError;
use hugelift_linux::lookup::ExecError;

/// One line for people, and the exit status that goes with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Exit status.
    pub status: i32,
    /// What happened.
    pub message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure { status: FAILED, message }
    }
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Failure {
        Failure { status: error.status(), message: error.to_string() }
    }
}

impl From<PrintError> for Failure {
    fn from(error: PrintError) -> Failure {
        Failure { status: FAILED, message: error.to_string() }
    }
}
