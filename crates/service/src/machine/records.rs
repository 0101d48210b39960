// SPDX-License-Identifier: Apache-2.0
//! What of the machine is written into the ledger, and when.

use super::books::Books;
use super::taken::Taken;
use super::uses::Uses;
use super::verify::Ended;
use crate::journal::{Level, log};
use hugelift_core::service::verify::Program;
use hugelift_ledger::entry::{Entry, Lift};
use hugelift_ledger::reader::Found;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

/// How many programs are remembered, at most, as programs that have a row.
const NAMED: usize = 4096;

/// The rows for the ledger.
#[derive(Debug)]
pub struct Records {
    books: Books,
    uses: Uses,
    /// Programs that have a row.
    named: BTreeSet<Program>,
}

impl Records {
    /// Opens the ledger. Returns the results of earlier services that still hold, too.
    pub fn open(ledger: Option<PathBuf>) -> (Records, Vec<Found>) {
        let mut books = Books::new(ledger);
        let found = books.open();
        (Records { books, uses: Uses::start(), named: BTreeSet::new() }, found)
    }

    /// Reads processes and writes what is due.
    pub fn turn<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>, helpers: &[u32]) {
        if self.books.are_kept() {
            let rows = self.uses.turn(taken, helpers);
            rows.into_iter().for_each(|row| self.books.note(row));
            self.books.turn();
        }
    }

    /// Reads what processes have used.
    pub fn read<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>) {
        self.uses.read(taken);
    }

    /// Returns when something is due.
    pub fn next(&self) -> Option<Instant> {
        let uses = self.books.are_kept().then(|| self.uses.next());
        uses.into_iter().chain(self.books.next()).min()
    }

    /// Returns whether there is to be a ledger.
    pub fn has_ledger(&self) -> bool {
        self.books.are_kept()
    }

    /// Returns why the ledger could not be written last time.
    pub fn failed(&self) -> Option<&str> {
        self.books.failed.as_deref()
    }

    /// Writes the path of a program that may be lifted, once.
    pub fn seen(&mut self, taken: &Taken) {
        if self.named.len() >= NAMED {
            self.named.clear();
        }
        if taken.wants.is_some() && self.named.insert(taken.key.clone()) {
            self.books.note(Entry::Seen(taken.key.clone(), taken.program.as_os_str().into()));
        }
    }

    /// Writes that a process was lifted.
    pub fn lifted(&mut self, taken: &Taken) {
        for ((part, backing), bytes) in &taken.huge {
            let path = taken.program.as_os_str().into();
            let lift = Lift { path, part: part.to_string(), backing: backing.to_string(), bytes: *bytes };
            self.books.note(Entry::Lift(taken.key.clone(), lift));
        }
    }

    /// Writes that a process was refused.
    pub fn refused(&mut self, program: &Program, why: &str) {
        self.books.note(Entry::Refusal(program.clone(), why.into()));
    }

    /// Writes what was measured. What was used before is a row of its own: it is not of this result.
    pub fn measured<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>, helpers: &[u32], ended: &Ended) {
        self.uses.read(taken);
        self.uses.rows(helpers).into_iter().for_each(|row| self.books.note(row));
        let (program, experiment) = (ended.program.clone(), ended.experiment.clone());
        let unit = program.unit.as_deref().unwrap_or("no unit");
        let interval = experiment
            .ratio
            .map(|ratio| format!(", lifted / bare {:.3} [{:.3}, {:.3}]", ratio.point, ratio.low, ratio.high));
        let (verdict, interval) = (experiment.verdict.key(), interval.unwrap_or_default());
        log(
            Level::Info,
            &format!(
                "{} ({unit}): {verdict}: {}{interval}",
                hugelift_core::printable::Untrusted::from(experiment.path.as_path()),
                experiment.measure
            ),
        );
        self.books.note(Entry::Experiment(program, experiment));
    }

    /// Writes the last rows.
    pub fn end<'a>(&mut self, taken: impl Iterator<Item = &'a Taken>, helpers: &[u32]) {
        if self.books.are_kept() {
            self.uses.read(taken);
            self.uses.rows(helpers).into_iter().for_each(|row| self.books.note(row));
            self.books.end();
        }
    }
}
