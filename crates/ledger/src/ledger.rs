// SPDX-License-Identifier: Apache-2.0
//! The ledger, open for writing.

use crate::connection::{BUSY, connect};
use crate::entry::{Cost, Entry, Experiment, Lift, Use};
use crate::error::LedgerError;
use crate::place::Place;
use crate::reader::{Found, found};
use crate::schema::{MOST_ROWS, STEPS, integer, migrate, number, prune};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pages of the write-ahead log that are kept: 1 MB.
const LOG_PAGES: u32 = 256;
/// Between two tries where another process has locked it.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for another process that makes the ledger, and writes it through to a disk that may be busy.
const MAKING: Duration = Duration::from_secs(10);

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) connection: Connection,
    path: PathBuf,
    /// The name of a damaged one that was there.
    pub set_aside: Option<PathBuf>,
}

impl Ledger {
    /// Opens the ledger, and makes it if there is none. One that is damaged gets another name, and a new one is begun.
    ///
    /// # Errors
    /// Others can change it, a newer hugelift has written it, or the disk does not take it.
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let place = Place::make(path)?;
        place.make_file()?;
        match Ledger::open_at(&place.path()) {
            Err(error) if error.is_damage() => {
                let aside = place.set_aside()?;
                place.make_file()?;
                Ok(Ledger { set_aside: Some(aside), ..Ledger::open_at(&place.path())? })
            }
            opened => opened,
        }
    }

    fn open_at(path: &Path) -> Result<Ledger, LedgerError> {
        let of = |error| LedgerError::of(path, error);
        let mut connection =
            connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        connection.busy_timeout(MAKING).map_err(of)?;
        prepare(&connection).map_err(of)?;
        migrate(&mut connection, &STEPS).map_err(of)?;
        connection.busy_timeout(BUSY).map_err(of)?;
        Ok(Ledger { connection, path: path.into(), set_aside: None })
    }

    /// Writes rows of this time, in seconds since 1970: all of them, or none.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn write(&mut self, at: u64, entries: &[Entry]) -> Result<(), LedgerError> {
        self.change(|transaction| {
            entries.iter().try_for_each(|entry| insert(transaction, integer(at), entry))
        })
    }

    /// Removes rows that are older than a year, and the oldest of too many.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn prune(&mut self, now: u64) -> Result<(), LedgerError> {
        self.change(|transaction| prune(transaction, now, MOST_ROWS))
    }

    /// Returns the last result for each program that still holds.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn found(&self, now: u64) -> Result<Vec<Found>, LedgerError> {
        found(&self.connection, now).map_err(|error| LedgerError::of(&self.path, error))
    }

    fn change(&mut self, act: impl FnOnce(&Transaction) -> rusqlite::Result<()>) -> Result<(), LedgerError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let done = transaction.and_then(|transaction| {
            act(&transaction)?;
            transaction.commit()
        });
        done.map_err(|error| LedgerError::of(&self.path, error))
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    keep_log(connection)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", 4096 * i64::from(LOG_PAGES))?;
    let said: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    match said.as_str() {
        "ok" => Ok(()),
        _ => Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
            None,
        )),
    }
}

/// Has changes written to a log beside the file. For this change SQLite does not wait for another process that makes it too.
fn keep_log(connection: &Connection) -> rusqlite::Result<()> {
    let until = Instant::now() + MAKING;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if is_busy(&error) && Instant::now() < until => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn insert(transaction: &Transaction, at: i64, entry: &Entry) -> rusqlite::Result<()> {
    match entry {
        Entry::Seen(program, path) => {
            number(transaction, at, program, Some(path.as_os_str().as_bytes()))?;
        }
        Entry::Lift(program, Lift { path, part, backing, bytes }) => {
            let id = number(transaction, at, program, Some(path.as_os_str().as_bytes()))?;
            let row = (at, id, part, backing, integer(*bytes));
            transaction.execute("INSERT INTO lifts VALUES (NULL, ?1, ?2, ?3, ?4, ?5)", row)?;
        }
        Entry::Refusal(program, reason) => {
            let id = number(transaction, at, program, None)?;
            transaction.execute("INSERT INTO refusals VALUES (NULL, ?1, ?2, ?3)", (at, id, reason))?;
        }
        Entry::Use(program, Use { cpu_us, lifted_us, copies }) => {
            let id = number(transaction, at, program, None)?;
            let row = (at, id, integer(*cpu_us), integer(*lifted_us), integer(*copies));
            transaction.execute("INSERT INTO uses VALUES (NULL, ?1, ?2, ?3, ?4, ?5)", row)?;
        }
        Entry::Cost(Cost { span, cpu_us, copies }) => {
            let row = (at, integer(*span), integer(*cpu_us), integer(*copies));
            transaction.execute("INSERT INTO costs VALUES (NULL, ?1, ?2, ?3, ?4)", row)?;
        }
        Entry::Experiment(program, Experiment { path, measure, ratio, pairs, verdict, until }) => {
            let id = number(transaction, at, program, Some(path.as_os_str().as_bytes()))?;
            let [point, low, high] = [0, 1, 2].map(|i| ratio.map(|r| [r.point, r.low, r.high][i]));
            let (pairs, until) = (integer(*pairs), integer(*until));
            let row = (at, id, measure, point, low, high, pairs, verdict.key(), until);
            let sql = "INSERT INTO experiments VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
            transaction.execute(sql, row)?;
        }
    }
    Ok(())
}
