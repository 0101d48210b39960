// SPDX-License-Identifier: Apache-2.0
//! The ledger, open for reading alone: what a report needs of it.

use crate::connection::connect;
use crate::entry::{Cost, Experiment, Program, Ratio, Use, Verdict};
use crate::error::LedgerError;
use crate::place::Place;
use crate::schema::integer;
use rusqlite::{Connection, OpenFlags, Row};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The last result for a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The program.
    pub program: Program,
    /// When the experiment has ended, in seconds since 1970.
    pub at: u64,
    /// Its result.
    pub experiment: Experiment,
}

/// What is known of a program since some time.
#[derive(Clone, PartialEq, Debug)]
pub struct Known {
    /// The program.
    pub program: Program,
    /// The path of its executable; empty if it was never lifted or measured.
    pub path: PathBuf,
    /// What its processes have used, with the newest number of bytes of copies.
    pub used: Use,
    /// Of this, since the end of its last experiment that gave a result, if there was one.
    pub used_since: Use,
    /// How many lifts there were.
    pub lifts: u64,
    /// How many refusals there were.
    pub refusals: u64,
    /// Its last experiment that gave a result, or else its last one, however old.
    pub found: Option<(u64, Experiment)>,
}

/// The ledger, open for reading.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

/// The columns of an experiment, behind which those of its program follow.
const EXPERIMENT: &str = "e.at, e.measure, e.ratio, e.low, e.high, e.pairs, e.verdict, e.until, p.path";

impl Reader {
    /// Opens the ledger.
    ///
    /// # Errors
    /// There is none, others can change it, or it is damaged or of a newer version.
    pub fn open(path: &Path) -> Result<Reader, LedgerError> {
        if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Err(LedgerError::Missing { path: path.into() });
        }
        let path = Place::find(path)?.path();
        Ok(Reader { connection: connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)?, path })
    }

    /// Returns what is known of each program since a time, those that have used most first.
    ///
    /// # Errors
    /// The file is damaged, or of no version.
    pub fn programs(&self, since: u64) -> Result<Vec<Known>, LedgerError> {
        self.known(integer(since)).map_err(|error| LedgerError::of(&self.path, error))
    }

    /// Returns the costs since a time: the sums, and the newest number of bytes of copies.
    ///
    /// # Errors
    /// The file is damaged, or of no version.
    pub fn costs(&self, since: u64) -> Result<Cost, LedgerError> {
        let sql = "SELECT total(span), total(cpu_us),
            (SELECT copies FROM costs ORDER BY id DESC LIMIT 1) FROM costs WHERE at >= ?1";
        let cost = self.connection.query_row(sql, [integer(since)], |row| {
            let copies: Option<i64> = row.get(2)?;
            Ok(Cost { span: sum(row, 0)?, cpu_us: sum(row, 1)?, copies: natural(copies.unwrap_or(0)) })
        });
        cost.map_err(|error| LedgerError::of(&self.path, error))
    }

    fn known(&self, since: i64) -> rusqlite::Result<Vec<Known>> {
        let sql = "SELECT id, build_id, unit, path FROM programs WHERE seen >= ?1";
        let mut programs = self.connection.prepare(sql)?;
        let rows = programs.query_map([since], |row| Ok((row.get(0)?, program(row, 1)?, path(row, 3)?)))?;
        let mut all = Vec::new();
        for row in rows {
            let (id, program, path): (i64, _, _) = row?;
            let found = self.last_result(id)?;
            let measured = found.as_ref().map(|(at, _)| integer(*at).max(since.saturating_sub(1)));
            all.push(Known {
                program,
                path,
                used: self.used(id, since)?,
                // What was used until the result is written in the same second.
                used_since: measured
                    .map(|at| self.used(id, at.saturating_add(1)))
                    .transpose()?
                    .unwrap_or_default(),
                // A lift of several parts has several rows of one time.
                lifts: self.count(
                    "SELECT count(DISTINCT at) FROM lifts WHERE program = ?1 AND at >= ?2",
                    id,
                    since,
                )?,
                refusals: self.count(
                    "SELECT count(*) FROM refusals WHERE program = ?1 AND at >= ?2",
                    id,
                    since,
                )?,
                found,
            });
        }
        all.sort_by_key(|known| std::cmp::Reverse(known.used.cpu_us));
        Ok(all)
    }

    fn last_result(&self, id: i64) -> rusqlite::Result<Option<(u64, Experiment)>> {
        let sql = format!(
            "SELECT {EXPERIMENT} FROM experiments e JOIN programs p ON p.id = e.program
             WHERE e.program = ?1 ORDER BY e.verdict = 'unmeasured', e.id DESC LIMIT 1"
        );
        self.connection.prepare(&sql)?.query_map([id], experiment)?.next().transpose()
    }

    fn used(&self, id: i64, since: i64) -> rusqlite::Result<Use> {
        let sql = "SELECT total(cpu_us), total(lifted_us),
            (SELECT copies FROM uses WHERE program = ?1 ORDER BY id DESC LIMIT 1)
            FROM uses WHERE program = ?1 AND at >= ?2";
        self.connection.query_row(sql, (id, since), |row| {
            let copies: Option<i64> = row.get(2)?;
            Ok(Use { cpu_us: sum(row, 0)?, lifted_us: sum(row, 1)?, copies: natural(copies.unwrap_or(0)) })
        })
    }

    fn count(&self, sql: &str, id: i64, since: i64) -> rusqlite::Result<u64> {
        self.connection.query_row(sql, (id, since), |row| row.get(0).map(natural))
    }
}

/// Returns the last result for each program, if it still holds at this time. An experiment that measured nothing lets an earlier
/// result hold on, for as long as it would hold itself ([`hugelift_core::service::verify`]).
pub(crate) fn found(connection: &Connection, now: u64) -> rusqlite::Result<Vec<Found>> {
    let sql = format!(
        "SELECT {EXPERIMENT}, p.build_id, p.unit,
            (SELECT verdict FROM experiments
             WHERE program = e.program AND verdict <> 'unmeasured' ORDER BY id DESC LIMIT 1)
         FROM experiments e JOIN programs p ON p.id = e.program
         WHERE e.until > ?1 AND e.id = (SELECT max(id) FROM experiments WHERE program = e.program)"
    );
    let mut found = connection.prepare(&sql)?;
    let rows = found.query_map([integer(now)], |row| {
        let (at, mut experiment) = experiment(row)?;
        let measured: Option<String> = row.get(11)?;
        if experiment.verdict == Verdict::Unmeasured && measured.as_deref() == Some(Verdict::Pays.key()) {
            experiment.verdict = Verdict::Pays;
        }
        Ok(Found { program: program(row, 9)?, at, experiment })
    })?;
    rows.collect()
}

fn program(row: &Row, at: usize) -> rusqlite::Result<Program> {
    let unit: String = row.get(at + 1)?;
    Ok(Program { build_id: row.get(at)?, unit: (!unit.is_empty()).then_some(unit) })
}

fn path(row: &Row, at: usize) -> rusqlite::Result<PathBuf> {
    Ok(OsString::from_vec(row.get(at)?).into())
}

fn experiment(row: &Row) -> rusqlite::Result<(u64, Experiment)> {
    let ratio: [Option<f64>; 3] = [row.get(2)?, row.get(3)?, row.get(4)?];
    let ratio = match ratio {
        [Some(point), Some(low), Some(high)] => Some(Ratio { point, low, high }),
        _ => None,
    };
    let verdict: String = row.get(6)?;
    let experiment = Experiment {
        path: path(row, 8)?,
        measure: row.get(1)?,
        ratio,
        pairs: row.get(5).map(natural)?,
        // The table has no other words.
        verdict: Verdict::of_key(&verdict).unwrap_or(Verdict::Unmeasured),
        until: row.get(7).map(natural)?,
    };
    Ok((row.get(0).map(natural)?, experiment))
}

/// Returns a sum of integers. It is a real number in SQLite, so that it cannot overflow.
fn sum(row: &Row, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, f64>(at)? as u64)
}

fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
