// SPDX-License-Identifier: Apache-2.0
//! The ledger of `hugelift service`: what it has done to the programs of the machine, what that has cost, and what was
//! measured to be gained. It is a SQLite database, `/var/lib/hugelift/ledger.db`, which every tool can read.
//!
//! | table | a row says |
//! |---|---|
//! | `programs` | a program in a unit: the build-id of its executable, the unit (empty: none), its path, when it was last seen |
//! | `lifts` | a process was lifted: afterwards so many bytes of a part are on huge pages, of this backing |
//! | `refusals` | a process could not be lifted, and why |
//! | `uses` | CPU time that the processes of a program have used in a span of time, and how much of it while they were lifted |
//! | `costs` | CPU time of the service and of its helpers in a span of time, and bytes of copies at its end |
//! | `experiments` | what was measured: the ratio lifted / bare with its interval, the verdict, and until when it holds |
//!
//! Times are seconds since 1970 (`at` is the end of a span), spans are in seconds, CPU times in microseconds, sizes in bytes.
//! [`schema`] has the definition. Nothing here reads a clock: all times are given.
//!
//! It is kept in WAL mode, so that a process that is killed loses nothing that was written. The last seconds before a power
//! failure may be lost, and the file is in order nevertheless (sqlite.org/wal.html). Rows are kept for a year, and there are
//! [`schema::MOST_ROWS`] in a table at most.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod connection;
pub mod entry;
pub mod error;
pub mod ledger;
pub mod place;
pub mod reader;
pub mod report;
pub mod schema;
#[cfg(test)]
mod tests;
pub mod text;
