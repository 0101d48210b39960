// SPDX-License-Identifier: Apache-2.0
//! A connection to the file of the ledger.

use crate::error::LedgerError;
use crate::schema::{VERSION, version};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// How long a reader may hold up a write.
pub(crate) const BUSY: Duration = Duration::from_millis(500);

/// Opens a database, and refuses one of a newer version.
pub(crate) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, LedgerError> {
    let of = |error| LedgerError::of(path, error);
    let flags = flags | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(of)?;
    connection.busy_timeout(BUSY).map_err(of)?;
    match version(&connection).map_err(of)? {
        ..=VERSION => Ok(connection),
        found => Err(LedgerError::Newer { path: path.into(), found, known: VERSION }),
    }
}
