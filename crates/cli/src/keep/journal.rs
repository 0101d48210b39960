// SPDX-License-Identifier: Apache-2.0
//! Lines on stderr: with a priority in front where the journal reads them (sd-daemon(3)).

use hugelift_os::io::console::{say, say_plain};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Priorities of syslog(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// One line.
pub fn log(level: Level, line: &str) {
    match is_journal() {
        true => say_plain(&format!("<{}>{line}", level as u8)),
        false => say(line),
    }
}

/// Whether stderr is the stream that systemd has given us (`JOURNAL_STREAM`, systemd.exec(5)).
fn is_journal() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = std::fs::metadata("/proc/self/fd/2");
        stderr.is_ok_and(|m| told == format!("{}:{}", m.dev(), m.ino()))
    })
}
