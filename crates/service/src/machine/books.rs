// SPDX-License-Identifier: Apache-2.0
//! Writes into the ledger what has happened. Where the ledger cannot be written, rows wait, and the service goes on.

use crate::journal::{Level, log};
use hugelift_core::printable::Escape as _;
use hugelift_ledger::entry::Entry;
use hugelift_ledger::error::LedgerError;
use hugelift_ledger::ledger::Ledger;
use hugelift_ledger::reader::Found;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rows are written this often at most.
const EVERY: Duration = Duration::from_secs(1);
/// After a failure it is tried again this much later.
const AGAIN: Duration = Duration::from_secs(600);
/// Old rows are removed this often, and not sooner after the start: the clock may not have been set yet.
const PRUNE: Duration = Duration::from_secs(3600);
/// The rows that wait at most. Beyond it the oldest are lost.
const WAITING: usize = 4096;

/// What writes into the ledger.
#[derive(Debug)]
pub struct Books {
    /// Where the ledger is; none for no ledger.
    path: Option<PathBuf>,
    ledger: Option<Ledger>,
    waiting: VecDeque<(u64, Entry)>,
    /// Rows that were lost.
    lost: u64,
    next: Instant,
    prune_at: Instant,
    /// Why the ledger could not be opened or written last time.
    pub failed: Option<String>,
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Books {
    /// Returns books of which nothing is open yet.
    pub fn new(path: Option<PathBuf>) -> Books {
        let now = Instant::now();
        Books {
            path,
            ledger: None,
            waiting: VecDeque::new(),
            lost: 0,
            next: now,
            prune_at: now + PRUNE,
            failed: None,
        }
    }

    /// Returns whether there is to be a ledger.
    pub fn are_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Opens the ledger. Returns the results of earlier services that still hold.
    pub fn open(&mut self) -> Vec<Found> {
        if let Err(error) = self.open_ledger() {
            self.fail(&error);
        }
        let found = self.ledger.as_ref().map(|ledger| ledger.found(now())).transpose();
        found
            .unwrap_or_else(|error| {
                self.fail(&error);
                None
            })
            .unwrap_or_default()
    }

    /// Has something written soon.
    pub fn note(&mut self, entry: Entry) {
        if !self.are_kept() {
            return;
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back((now(), entry));
    }

    /// Writes what waits, if that is due.
    pub fn turn(&mut self) {
        if Instant::now() >= self.next && !self.waiting.is_empty() {
            self.write();
        }
    }

    /// Returns when something is to be written.
    pub fn next(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// Writes what waits now, unless the last time has failed.
    pub fn end(&mut self) {
        if self.failed.is_none() {
            self.write();
        }
    }

    fn write(&mut self) {
        self.next = Instant::now() + EVERY;
        if let Err(error) = self.open_ledger().and_then(|()| self.write_waiting()) {
            self.fail(&error);
        } else if self.failed.take().is_some() {
            log(Level::Info, &format!("the ledger is written again; {} rows were lost", self.lost));
            self.lost = 0;
        }
    }

    fn open_ledger(&mut self) -> Result<(), LedgerError> {
        let (Some(path), None) = (&self.path, &self.ledger) else { return Ok(()) };
        let ledger = Ledger::open(path)?;
        if let Some(aside) = &ledger.set_aside {
            let aside = aside.escaped();
            log(
                Level::Warning,
                &format!("the ledger was damaged; it is {aside} now, and a new one is begun"),
            );
        }
        self.ledger = Some(ledger);
        Ok(())
    }

    /// Writes rows of the same time together.
    fn write_waiting(&mut self) -> Result<(), LedgerError> {
        let Some(ledger) = &mut self.ledger else { return Ok(()) };
        while let Some((at, _)) = self.waiting.front() {
            let at = *at;
            let same = self.waiting.iter().take_while(|(time, _)| *time == at);
            let entries: Vec<Entry> = same.map(|(_, entry)| entry.clone()).collect();
            ledger.write(at, &entries)?;
            self.waiting.drain(..entries.len());
        }
        if Instant::now() >= self.prune_at {
            self.prune_at = Instant::now() + PRUNE;
            ledger.prune(now())?;
        }
        Ok(())
    }

    fn fail(&mut self, error: &LedgerError) {
        let why = error.to_string();
        let is_new = self.failed.as_ref() != Some(&why);
        if is_new {
            log(
                Level::Warning,
                &format!(
                    "{why}; the service goes on without its ledger, and tries it again in {} s",
                    AGAIN.as_secs()
                ),
            );
        }
        (self.ledger, self.failed, self.next) = (None, Some(why), Instant::now() + AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_ledger::entry::Cost;
    use hugelift_ledger::reader::Reader;

    #[test]
    fn issue_33_4_without_a_disk_rows_wait_and_are_bounded() {
        let mut books = Books::new(Some("/proc/hugelift/ledger.db".into()));
        assert!(books.open().is_empty() && books.failed.is_some());
        (0..=WAITING).for_each(|_| books.note(Entry::Cost(Cost::default())));
        assert_eq!((books.waiting.len(), books.lost), (WAITING, 1));
        books.turn();
        assert!(books.next().is_some_and(|next| next > Instant::now() + AGAIN / 2), "not before ten minutes");
        // The disk is there again.
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("ledger.db");
        (books.path, books.next) = (Some(path.clone()), Instant::now());
        books.turn();
        assert_eq!((books.waiting.len(), books.lost, &books.failed), (0, 0, &None));
        assert!(Reader::open(&path).is_ok());
        let mut none = Books::new(None);
        none.note(Entry::Cost(Cost::default()));
        assert!(none.open().is_empty() && none.next().is_none());
    }
}
