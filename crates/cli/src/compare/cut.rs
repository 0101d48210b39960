// SPDX-License-Identifier: Apache-2.0
//! A comparison that ends before the rule says so: what was measured until then is printed.

use crate::FAILED;
use crate::failure::{Exit, in_one_line};
use anyhow::{Error, Result};
use hugelift_measure::comparison::Comparison;
use hugelift_measure::interrupt::{self, Interrupted};
use hugelift_measure::live::NoWork;
use hugelift_measure::stopping::Reached;
use std::time::{Duration, Instant};

/// A process that is compared with itself has ended during the experiment.
#[derive(Debug, thiserror::Error)]
#[error("it has ended")]
pub struct Ended;

/// How long a process may take to end whose work no longer counts.
const DYING: Duration = Duration::from_secs(1);

impl Ended {
    /// Returns `error`, or [`Ended`] if it comes from the end of a process, for which it waits a moment.
    pub fn cause_of(error: Error, has_ended: impl Fn() -> bool) -> Error {
        let deadline = Instant::now() + DYING;
        while !has_ended() {
            // An interrupted experiment does not wait.
            if interrupt::check().is_err() || Instant::now() >= deadline {
                return error;
            }
            std::thread::sleep(DYING / 20);
        }
        Ended.into()
    }
}

/// A comparison, and why it has fewer pairs than were asked for.
pub struct Measured<T = Comparison> {
    /// The comparison.
    pub comparison: T,
    /// The line to print after it, if there is something to say.
    pub said: Option<String>,
    /// The exit status.
    pub exit: Exit,
}

impl Measured {
    /// Makes a comparison that is as it was asked for.
    pub fn whole(comparison: Comparison) -> Measured {
        Measured { comparison, said: None, exit: Exit::SUCCESS }
    }
}

/// Why there are fewer pairs than were asked for.
pub struct Cut {
    /// What has ended the comparison.
    pub reached: Reached,
    /// The exit status: a load or a process that ends is no failure.
    pub exit: Exit,
    error: Error,
}

impl Cut {
    /// Makes one of the error that has ended a comparison of `pairs` whole pairs.
    ///
    /// # Errors
    /// That error, if there is no pair.
    pub fn after(pairs: usize, error: Error) -> Result<Cut> {
        if pairs == 0 {
            return Err(error);
        }
        let (reached, exit) = match () {
            () if error.is::<Interrupted>() => (Reached::Interrupted, Exit::INTERRUPTED),
            () if error.is::<Ended>() => (Reached::Ended, Exit::SUCCESS),
            () if error.is::<NoWork>() => (Reached::NoWork, Exit::SUCCESS),
            () => (Reached::Failed, Exit(FAILED)),
        };
        Ok(Cut { reached, exit, error })
    }

    /// Returns the line that says so.
    pub fn line(&self, pairs: usize) -> String {
        let pairs = if pairs == 1 { "the pair".into() } else { format!("the {pairs} pairs") };
        let why = match self.reached {
            Reached::Interrupted => Interrupted.to_string(),
            Reached::Ended => Ended.to_string(),
            _ => in_one_line(&self.error),
        };
        format!("{why}; the result is on {pairs} before that")
    }
}
