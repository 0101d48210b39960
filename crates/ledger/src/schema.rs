// SPDX-License-Identifier: Apache-2.0
//! The tables, and how an older ledger becomes one of this version. `PRAGMA user_version` is the number of steps that a ledger
//! has taken.

use crate::entry::Program;
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// The rows of a table at most, apart from those of `programs`, of which there are [`MOST_PROGRAMS`].
pub const MOST_ROWS: u64 = 100_000;
/// The programs at most.
pub const MOST_PROGRAMS: u64 = 10_000;
/// The time for which rows are kept: a year, in seconds.
pub const KEPT: u64 = 366 * 24 * 3600;

/// The tables whose rows have a time.
pub(crate) const TIMED: [&str; 5] = ["lifts", "refusals", "uses", "costs", "experiments"];

/// The steps from an empty file to this version. A step that was published never changes.
pub const STEPS: [&str; 1] = ["
-- A program in a unit. The unit is empty if there is none.
CREATE TABLE programs (
  id INTEGER PRIMARY KEY,
  build_id TEXT NOT NULL,
  unit TEXT NOT NULL,
  path BLOB NOT NULL,
  seen INTEGER NOT NULL,
  UNIQUE (build_id, unit)
) STRICT;

-- A process was lifted. A lift of several parts is several rows.
CREATE TABLE lifts (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  program INTEGER NOT NULL REFERENCES programs ON DELETE CASCADE,
  part TEXT NOT NULL,
  backing TEXT NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;

-- A process could not be lifted.
CREATE TABLE refusals (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  program INTEGER NOT NULL REFERENCES programs ON DELETE CASCADE,
  reason TEXT NOT NULL
) STRICT;

-- What the processes of a program have used in the hour before.
CREATE TABLE uses (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  program INTEGER NOT NULL REFERENCES programs ON DELETE CASCADE,
  cpu_us INTEGER NOT NULL,
  lifted_us INTEGER NOT NULL,
  copies INTEGER NOT NULL
) STRICT;

-- What the service and its helpers have cost in the span before.
CREATE TABLE costs (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  span INTEGER NOT NULL,
  cpu_us INTEGER NOT NULL,
  copies INTEGER NOT NULL
) STRICT;

-- What was measured: the ratio lifted / bare with its interval of 95 %, none where there was no result.
CREATE TABLE experiments (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  program INTEGER NOT NULL REFERENCES programs ON DELETE CASCADE,
  measure TEXT NOT NULL,
  ratio REAL,
  low REAL,
  high REAL,
  pairs INTEGER NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('pays', 'pays-not', 'harms', 'unmeasured')),
  until INTEGER NOT NULL
) STRICT;

CREATE INDEX lifts_of ON lifts (program);
CREATE INDEX refusals_of ON refusals (program);
CREATE INDEX uses_of ON uses (program);
CREATE INDEX experiments_of ON experiments (program);
"];

/// The version of a ledger that has taken all steps.
pub const VERSION: i64 = STEPS.len() as i64;

/// Returns the version of a ledger; 0 for an empty file.
pub(crate) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Takes the steps that a ledger of this version lacks. Either all are taken or none.
pub(crate) fn migrate(connection: &mut Connection, steps: &[&str]) -> rusqlite::Result<()> {
    if version(connection)? >= steps.len() as i64 {
        return Ok(());
    }
    // One that begins by reading could not wait for another process that takes the same steps.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    for step in steps.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    transaction.commit()
}

/// Returns the number of a program, which gets a row if it has none.
pub(crate) fn number(
    transaction: &Transaction,
    at: i64,
    program: &Program,
    path: Option<&[u8]>,
) -> rusqlite::Result<i64> {
    let unit = program.unit.as_deref().unwrap_or_default();
    transaction.query_row(
        "INSERT INTO programs (build_id, unit, path, seen) VALUES (?1, ?2, coalesce(?3, x''), ?4)
         ON CONFLICT DO UPDATE SET path = coalesce(?3, path), seen = max(seen, excluded.seen) RETURNING id",
        (&program.build_id, unit, path, at),
        |row| row.get(0),
    )
}

/// Removes rows that are older than a year, and the oldest of too many.
pub(crate) fn prune(transaction: &Transaction, now: u64, most: u64) -> rusqlite::Result<()> {
    let oldest = integer(now.saturating_sub(KEPT));
    for table in TIMED {
        transaction.execute(
            &format!("DELETE FROM {table} WHERE at < ?1 OR id <= (SELECT max(id) FROM {table}) - ?2"),
            (oldest, integer(most)),
        )?;
    }
    let most = integer(most.min(MOST_PROGRAMS));
    transaction.execute(
        "DELETE FROM programs WHERE seen < ?1
         OR id IN (SELECT id FROM programs ORDER BY seen DESC, id DESC LIMIT -1 OFFSET ?2)",
        (oldest, most),
    )?;
    Ok(())
}

/// Returns a number as SQLite holds it.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
