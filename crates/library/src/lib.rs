// SPDX-License-Identifier: Apache-2.0
//! A program puts its own code and read-only data on huge pages, by one call:
//!
//! ```
//! match hugelift::Options::new().lift() {
//!     Ok(outcome) => println!("{}", outcome.summary()),
//!     Err(error) => eprintln!("not lifted: {error}"),
//! }
//! ```
//!
//! All addresses, bytes and protections stay, and other threads run on. Called again after dlopen(3), it lifts what is
//! new; after fork(2) it works in the child. [`restore`] gives the program the pages of its files back.
//!
//! It is the planner and the steps of `hugelift attach` ([`hugelift_core`]), with the calling process as their target
//! ([`hugelift_inject::own`]). For C there is `hugelift.h`, made of [`c`].
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod advice;
pub mod c;
pub mod compat;
mod error;
mod lift;
mod options;
mod outcome;
mod preload;
mod privilege;
mod registry;
#[cfg(test)]
mod registry_tests;
mod sync;
mod table;
mod turn;
pub mod words;

pub use error::Error;
pub use hugelift_core::addr::PageSize;
pub use hugelift_core::policy::Backing;
pub use hugelift_core::report::{Report, Total};
pub use hugelift_core::snapshot::Part;
pub use options::Options;
pub use outcome::Outcome;
pub use table::Lifted;

impl Options {
    /// Lifts the calling process. Any thread may call this; it must not be called from a signal handler, nor in a
    /// child of vfork(2).
    ///
    /// # Errors
    /// [`Error`]. What cannot be lifted is no error: [`Outcome::complaints`] and the report say why.
    pub fn lift(&self) -> Result<Outcome, Error> {
        lift::lift(self)
    }
}

/// Gives the calling process the pages of its files back, where text and read-only data are copies.
///
/// # Errors
/// [`Error`]. What cannot be restored is no error: [`Outcome::complaints`] says why.
pub fn restore() -> Result<Outcome, Error> {
    lift::restore()
}

/// Returns the lifted range that holds `addr`. It may be called from signal handlers. After dlclose(3) the ranges of
/// the object are found until the next lift or restore.
///
/// # Errors
/// [`Error::Crowded`]
pub fn find(addr: usize) -> Result<Option<Lifted>, Error> {
    table::find(addr).map_err(|_| Error::Crowded)
}

/// Returns all lifted ranges, by address.
///
/// # Errors
/// [`Error::Crowded`]
pub fn lifted() -> Result<Vec<Lifted>, Error> {
    let mut ranges = Vec::new();
    table::each(|_, range| ranges.push(*range)).map_err(|_| Error::Crowded)?;
    Ok(ranges)
}
