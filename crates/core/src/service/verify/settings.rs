// SPDX-License-Identifier: Apache-2.0
//! How it is verified: the table `[verify]`.

use crate::quantity;
use crate::service::written::WrittenVerify;
use crate::toml_text::{Wrong, checked};
use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The shortest and the longest experiment.
const LENGTH: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(HOUR)];
/// The shortest and the longest pause.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30 * DAY)];
/// The shortest and the longest time for which a result holds.
const AGAIN: [Duration; 2] = [Duration::from_secs(MINUTE), Duration::from_secs(3650 * DAY)];

/// How it is verified. Times are in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The length of an experiment: 5 s to an hour.
    pub length: u64,
    /// The time between the end of an experiment and the start of the next one, on the whole machine.
    pub pause: u64,
    /// The time for which a result holds.
    pub again: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { length: MINUTE, pause: HOUR, again: 30 * DAY }
    }
}

impl Settings {
    /// Checks what is written.
    ///
    /// # Errors
    /// Returns the value that is wrong, and why.
    pub fn check(written: &WrittenVerify) -> Result<Settings, Wrong> {
        let usual = Settings::default();
        let time = |key, value, [least, most]: [Duration; 2]| {
            checked(key, value, |text: &String| quantity::duration_between(text, least, most))
        };
        let or = |time: Option<Duration>, usual| time.map_or(usual, |time| time.as_secs());
        Ok(Settings {
            length: or(time("for", written.length.as_ref(), LENGTH)?, usual.length),
            pause: or(time("pause", written.pause.as_ref(), PAUSE)?, usual.pause),
            again: or(time("again", written.again.as_ref(), AGAIN)?, usual.again),
        })
    }
}
