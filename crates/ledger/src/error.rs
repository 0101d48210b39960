// SPDX-License-Identifier: Apache-2.0
//! Why the ledger cannot be written or read.

use hugelift_core::printable::Untrusted;
use std::io;
use std::path::Path;
use thiserror::Error;

/// Why the ledger cannot be written or read. Each is one line.
#[derive(Error, Debug)]
pub enum LedgerError {
    /// The folder cannot be made or opened.
    #[error("cannot open {path}: {error}")]
    Place {
        /// The ledger.
        path: Untrusted,
        /// What the kernel says.
        error: io::Error,
    },
    /// There is none to read.
    #[error("there is no ledger {path}: 'hugelift service' writes one (systemctl enable --now hugelift)")]
    Missing {
        /// The ledger.
        path: Untrusted,
    },
    /// Another user could change the ledger.
    #[error("{path} can be written to by other users than root; give it to root with mode 0700")]
    Exposed {
        /// The folder, or the file.
        path: Untrusted,
    },
    /// A newer hugelift has written it.
    #[error("{path} is of version {found}, and this hugelift knows those up to {known}")]
    Newer {
        /// The ledger.
        path: Untrusted,
        /// Its version.
        found: i64,
        /// The newest version that is known.
        known: i64,
    },
    /// It is damaged, and an earlier one that was damaged is still there.
    #[error("{path} is damaged, and so is {aside}, an earlier one; remove one of them")]
    DamagedAgain {
        /// The ledger.
        path: Untrusted,
        /// The earlier one.
        aside: Untrusted,
    },
    /// SQLite has failed: the disk is full or read-only, for example.
    #[error("{path}: {error}")]
    Sqlite {
        /// The ledger.
        path: Untrusted,
        /// What it says.
        error: rusqlite::Error,
    },
}

impl LedgerError {
    /// Returns an error of SQLite.
    pub(crate) fn of(path: &Path, error: rusqlite::Error) -> LedgerError {
        LedgerError::Sqlite { path: path.into(), error }
    }

    /// Returns whether the file is no database, or a damaged one.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        let LedgerError::Sqlite { error, .. } = self else { return false };
        matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
    }
}
