// SPDX-License-Identifier: Apache-2.0
//! Why nothing could be done.

use std::fmt;

/// Why a lift or a restore could not be done. The process is as before, except after [`Error::Lost`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Another thread of the process lifts or restores at this moment.
    Busy,
    /// Data was asked for, and the process has this many threads.
    Threads(usize),
    /// Data was asked for without [`crate::Options::one_thread`].
    ThreadsUnknown,
    /// A pattern is malformed.
    Pattern(String),
    /// `/proc/self` cannot be read, or does not show a 64-bit ELF program.
    Proc(String),
    /// A failed step could not be undone.
    Lost(String),
    /// More than 64 threads and signal handlers read what is lifted at this moment.
    Crowded,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Busy => f.write_str("another thread lifts or restores at this moment; try again"),
            Error::Threads(count) => write!(
                f,
                "the process has {count} threads: data can be lifted only while it has one, before it starts others"
            ),
            Error::ThreadsUnknown => {
                f.write_str("data can be lifted only if the program states that it has one thread")
            }
            Error::Pattern(why) => write!(f, "malformed pattern: {why}"),
            Error::Proc(why) => write!(f, "cannot read the process: {why}"),
            Error::Lost(why) => write!(f, "a failed step could not be undone: {why}"),
            Error::Crowded => f.write_str("too many threads read what is lifted at this moment; try again"),
        }
    }
}

impl std::error::Error for Error {}
