// SPDX-License-Identifier: Apache-2.0
//! Why there is no re-laid copy.

use crate::align::{Difference, Refusal};
use crate::loaded;
use crate::separate::{self, proof::Flaw};
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Untrusted;
use std::io;
use std::path::Path;

/// Why there is no re-laid copy.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A system call on this file failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The attempt, as a verb.
        action: &'static str,
        /// The file.
        path: Untrusted,
        /// Why.
        source: io::Error,
    },
    /// A directory, a device, a socket.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// The file.
        path: Untrusted,
    },
    /// It is read as a whole, and a sparse file may be longer than memory.
    #[error(
        "{path} is not read: it has {}, and {} of memory are left",
        human_bytes(*.bytes), human_bytes(*.left)
    )]
    TooLarge {
        /// The file.
        path: Untrusted,
        /// Its length.
        bytes: u64,
        /// The memory that is left.
        left: u64,
    },
    /// The file cannot be re-laid.
    #[error("{path}: {source}")]
    Refused {
        /// The file.
        path: Untrusted,
        /// Why.
        source: Refusal,
    },
    /// Its code cannot have huge pages of its own.
    #[error("{path}: {source}")]
    Inseparable {
        /// The file.
        path: Untrusted,
        /// Why.
        source: separate::Refusal,
    },
    /// The copy might not do what the file does.
    #[error(
        "{path}: a copy with its code on huge pages of its own is not proven to be right ({source}), and is not \
         written; without --separate only offsets in the file change: hugelift align {path} -o OUT"
    )]
    Unproven {
        /// The file.
        path: Untrusted,
        /// What could not be proven.
        source: Flaw,
    },
    /// A debugger might find something else.
    #[error(
        "{path}: a copy of this debug information with the new addresses is not proven to be right ({source}), and \
         nothing is written; without --debug the program alone is separated"
    )]
    UnprovenDebug {
        /// The file with debug information.
        path: Untrusted,
        /// What could not be proven.
        source: Flaw,
    },
    /// The loader makes something else of the copy.
    #[error(
        "{path}: a copy with its code on huge pages of its own is not the same when it is loaded ({source}), and \
         is not written; without --separate only offsets in the file change: hugelift align {path} -o OUT"
    )]
    Differs {
        /// The file.
        path: Untrusted,
        /// What differs.
        source: loaded::Difference,
    },
    /// The disk has not kept what was written.
    #[error("the copy of {path} is not what was written, and is not used")]
    Unlike {
        /// The original.
        path: Untrusted,
    },
    /// A process writes to it.
    #[error("{path} changes while it is read")]
    Changed {
        /// The file.
        path: Untrusted,
    },
    /// The copy is not what it should be: a defect of a disk, of memory or of hugelift.
    #[error("the copy of {path} is not right ({source}), and is not used")]
    Wrong {
        /// The original.
        path: Untrusted,
        /// What is wrong.
        source: Difference,
    },
}

impl RelayError {
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> RelayError + 'a {
        move |source| RelayError::Io { action, path: path.into(), source }
    }

    /// Returns why the code of the file was not separated, if that is what failed, and whether it would gain nothing.
    /// A copy without it may still be possible.
    pub fn not_separated(&self) -> Option<(String, bool)> {
        match self {
            RelayError::Inseparable { source, .. } => Some((source.to_string(), source.gains_nothing())),
            RelayError::Unproven { source, .. } => {
                Some((format!("the copy is not proven to be right ({source})"), false))
            }
            RelayError::Differs { source, .. } => {
                Some((format!("the copy is not the same when it is loaded ({source})"), false))
            }
            RelayError::TooLarge { bytes, left, .. } => Some((
                format!("it needs {} of memory, {} are left", human_bytes(*bytes), human_bytes(*left)),
                false,
            )),
            _ => None,
        }
    }
}
