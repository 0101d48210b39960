// SPDX-License-Identifier: Apache-2.0
//! Why a file was not replaced, or not restored.

use crate::relay::RelayError;
use hugelift_core::prime::Obstacle;
use hugelift_core::printable::{Untrusted, quoted};
use std::io;

/// Why a file was not replaced, or not restored. It is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// There is no copy.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The path is that of another mount namespace.
    #[error("{0} is another file here than for the process: replace it where the process runs")]
    Elsewhere(Untrusted),
    /// A process has it open for writing.
    #[error("{0} is {1}")]
    Written(Untrusted, Obstacle),
    /// The original would keep its rights under its second name.
    #[error("{0} {1}: such a program is not replaced")]
    Privileged(Untrusted, &'static str),
    /// Another user has put something under the name for the original.
    #[error("{kept} is in the way: it is not the original of {path} ({what}); remove it: rm '{kept}'")]
    InTheWay {
        /// The file.
        path: Untrusted,
        /// The name that its original would get.
        kept: Untrusted,
        /// What it is instead.
        what: String,
    },
    /// Restoring the original would change access rights.
    #[error("{path} is not restored: {what}; make both equal first (stat '{path}' '{kept}')")]
    Rights {
        /// The file.
        path: Untrusted,
        /// Its original.
        kept: Untrusted,
        /// What differs.
        what: String,
    },
    /// It has hard links, and where the other names are is not known.
    #[error("{path} has {links} names (hard links): the others would stay names of the old file")]
    Links {
        /// The file.
        path: Untrusted,
        /// How many.
        links: u64,
    },
    /// IMA, EVM or fs-verity vouch for this very file.
    #[error("{path} is signed or measured ({by}): its copy would not be")]
    Signed {
        /// The file.
        path: Untrusted,
        /// By what.
        by: &'static str,
    },
    /// Nobody may rename it.
    #[error("{path} cannot be renamed (chattr +{letter}); first: chattr -{letter} {}", quoted(.path.as_os_str()))]
    Locked {
        /// The file.
        path: Untrusted,
        /// The flag.
        letter: char,
    },
    /// An owner, an attribute or a time could not be carried over.
    #[error("cannot give the copy of {path} its {what}: {source}")]
    Attribute {
        /// The file.
        path: Untrusted,
        /// Which of them.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A check came out differently for the copy.
    #[error("the copy of {path} is not used: {what}")]
    Check {
        /// The file.
        path: Untrusted,
        /// The check, and its result for each of the two files.
        what: String,
    },
    /// There is no original to restore.
    #[error("{0} was not replaced by hugelift: there is no {1}")]
    NoOriginal(Untrusted, Untrusted),
    /// Another file took the name while the copy was put in place.
    #[error(
        "{0} was replaced by another file just now, as a package upgrade does: that file stays; try again"
    )]
    Upgraded(Untrusted),
    /// The copy was replaced by another file, as an upgrade does.
    #[error(
        "{path} is not, or no longer, a copy of {kept}: it has another build-id, so that file is of no use any more: \
         hugelift prime --clean {}", quoted(.path.as_os_str())
    )]
    Other {
        /// The file.
        path: Untrusted,
        /// Its original.
        kept: Untrusted,
    },
    /// The copy was changed since, by strip(1) for example, or was made by another version.
    #[error(
        "{path} is not, or no longer, the copy of {kept} that hugelift makes: {why}; to have the original back: \
         mv {} {}", quoted(.kept.as_os_str()), quoted(.path.as_os_str())
    )]
    Modified {
        /// The file.
        path: Untrusted,
        /// Its original.
        kept: Untrusted,
        /// What is known about it.
        why: &'static str,
    },
    /// The file is gone, as after the removal of its package.
    #[error(
        "{path} is gone, as after the removal of its package, and its original is left: \
         hugelift prime --clean {} removes it, mv {} {0} puts it back",
        quoted(.path.as_os_str()), quoted(.kept.as_os_str())
    )]
    Gone {
        /// The file.
        path: Untrusted,
        /// Its original.
        kept: Untrusted,
    },
}
