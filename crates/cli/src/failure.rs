// SPDX-License-Identifier: Apache-2.0
//! How a subcommand ends that cannot do its work.

use crate::FAILED;
use hugelift_os::launch::program::ExecError;

/// Why there is no result, and with which status hugelift ends.
pub struct Failure {
    /// Exit status.
    pub status: i32,
    /// One line for people.
    pub message: String,
}

impl Failure {
    /// One of hugelift's own.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { status: FAILED, message: message.into() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::new(format!("{error:#}"))
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::new(message)
    }
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Failure {
        Failure { status: error.status(), message: error.to_string() }
    }
}
