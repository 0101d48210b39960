// SPDX-License-Identifier: Apache-2.0
//! Writes lines to stderr, with a priority in front if stderr is the journal (sd-daemon(3)).

use hugelift_linux::io::console::{say, say_plain};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Priorities of syslog(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Writes one line.
pub fn log(level: Level, line: &str) {
    match is_journal() {
        true => say_plain(&format!("<{}>{line}", level as u8)),
        false => say(line),
    }
}

/// Returns whether stderr is the stream that systemd connects to the journal (`JOURNAL_STREAM`,
/// systemd.exec(5)).
fn is_journal() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = std::fs::metadata("/proc/self/fd/2");
        stderr.is_ok_and(|m| journal == format!("{}:{}", m.dev(), m.ino()))
    })
}
