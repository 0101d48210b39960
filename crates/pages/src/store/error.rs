// SPDX-License-Identifier: Apache-2.0
//! Why there is no copy in the store, or no store.

use super::names::VARIABLE;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::printable::Untrusted;
use hugelift_core::record::MOST_ENTRIES;
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::NotStored;
use nix::errno::Errno;
use std::io;
use std::path::Path;

/// Why there is no copy, or no store at all.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No variable names a place.
    #[error("XDG_RUNTIME_DIR is not set")]
    NoPlace,
    /// There is no such directory.
    #[error("there is no store at {path}")]
    Missing {
        /// Where it would be.
        path: Untrusted,
    },
    /// Only tmpfs has huge pages for files that are written.
    #[error("{path} is not on tmpfs")]
    NotTmpfs {
        /// The directory.
        path: Untrusted,
    },
    /// Mounted noexec.
    #[error("{path} is on a file system that allows no code (noexec)")]
    NoExec {
        /// The directory.
        path: Untrusted,
    },
    /// Another user could have made it, or can change it.
    #[error("{path} {what}: not used")]
    Hostile {
        /// The directory or file.
        path: Untrusted,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The path of the attempt.
        path: Untrusted,
        /// Why.
        source: io::Error,
    },
    /// The path of the object leads to another file than the one that is mapped.
    #[error("{path} is no longer the file that the process has mapped")]
    Replaced {
        /// The object.
        path: Untrusted,
    },
    /// It is at an address that only this process has.
    #[error(
        "{path} is loaded at an address that is not a multiple of {page}: no other process has the same huge pages"
    )]
    ByChance {
        /// The object.
        path: Untrusted,
        /// Size of a huge page.
        page: PageSize,
    },
    /// The node on which the copy should lie lacks memory.
    #[error("node {node} has too little memory for the copy: {bytes} bytes came from other nodes")]
    OtherNode {
        /// The node.
        node: u32,
        /// Bytes of the copy on other nodes.
        bytes: u64,
    },
    /// The store has a good entry that this process cannot use.
    #[error("the store has {path} for processes that have mapped it otherwise, or have not written to it")]
    OtherLayout {
        /// The object.
        path: Untrusted,
    },
    /// Each entry of it is opened at each start, so there may not be very many.
    #[error("the store has {path} in {MOST_ENTRIES} entries already, and none of them has this code")]
    ManyEntries {
        /// The object.
        path: Untrusted,
    },
    /// Its memory is not the file's.
    #[error("{path} was written to since it was loaded")]
    Written {
        /// The object.
        path: Untrusted,
    },
    /// There is too little memory for a copy, or the program may need it.
    #[error("{0}")]
    Memory(Reason),
    /// A copy is made later, while the program runs.
    #[error("there is no copy yet")]
    Later,
    /// Another start holds the lock.
    #[error("another start is still making its copies")]
    Busy,
    /// No room on the tmpfs, or within the budget.
    #[error("no room for {} more in the store", human_bytes(*need))]
    Full {
        /// Bytes wanted.
        need: u64,
    },
    /// Only small pages are free.
    #[error("no free huge pages: the kernel gave {} of {}", human_bytes(*got), human_bytes(*want))]
    NotHuge {
        /// Bytes on huge pages.
        got: u64,
        /// Bytes wanted.
        want: u64,
    },
    /// The program's memory could not be read.
    #[error("its code could not be read")]
    Unreadable,
}

impl StoreError {
    pub(super) fn io(what: &'static str, path: &Path, errno: Errno) -> StoreError {
        StoreError::Io { what, path: path.into(), source: errno.into() }
    }

    pub(super) fn here(what: &'static str, errno: Errno) -> StoreError {
        StoreError::here_io(what, errno.into())
    }

    pub(super) fn here_io(what: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { what, path: "in the store".into(), source }
    }

    pub(super) fn hostile(path: &Path, what: &'static str) -> StoreError {
        StoreError::Hostile { path: path.into(), what }
    }

    /// Returns the command that helps.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::NoPlace | StoreError::NotTmpfs { .. } | StoreError::NoExec { .. } => {
                format!("{VARIABLE}=DIR names a directory on a tmpfs that allows code, as in /dev/shm")
            }
            StoreError::Missing { .. } => "hugelift run --backing shared PROG makes it".into(),
            StoreError::Memory(reason) => return reason.hint(),
            StoreError::Full { .. } => "hugelift store gc, hugelift store drop".into(),
            StoreError::ManyEntries { path } => {
                format!("hugelift store drop {path}, and the next process makes them again")
            }
            StoreError::NotHuge { .. } => "echo 1 > /proc/sys/vm/compact_memory".into(),
            _ => return None,
        })
    }

    /// Returns a copy: one reason holds for many objects.
    pub(super) fn again(&self) -> StoreError {
        match self {
            StoreError::NoPlace => StoreError::NoPlace,
            StoreError::Missing { path } => StoreError::Missing { path: path.clone() },
            StoreError::NotTmpfs { path } => StoreError::NotTmpfs { path: path.clone() },
            StoreError::NoExec { path } => StoreError::NoExec { path: path.clone() },
            StoreError::Hostile { path, what } => StoreError::Hostile { path: path.clone(), what },
            StoreError::Io { what, path, source } => StoreError::Io {
                what,
                path: path.clone(),
                source: io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(libc::EIO)),
            },
            StoreError::Memory(reason) => StoreError::Memory(reason.clone()),
            _ => StoreError::NoPlace,
        }
    }
}

impl From<&StoreError> for NotStored {
    fn from(error: &StoreError) -> NotStored {
        NotStored { why: error.to_string(), hint: error.hint() }
    }
}
