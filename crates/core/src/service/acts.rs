// SPDX-License-Identifier: Apache-2.0
//! What the service may do with a process: a small set.

use serde::Deserialize;
use std::fmt;

/// One thing that the service may do with a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// The files of its code and data are kept huge in the page cache. Nothing is copied.
    Pagecache,
    /// Its hot code is copied onto huge pages, while it runs.
    Code,
    /// Its anonymous memory is collapsed onto huge pages.
    Memory,
    /// Its shared memory is collapsed onto huge pages.
    Shm,
}

impl Act {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Act; 4] = [Act::Pagecache, Act::Code, Act::Memory, Act::Shm];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The word that stands for it in the configuration.
impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Act::Pagecache => "pagecache",
            Act::Code => "code",
            Act::Memory => "memory",
            Act::Shm => "shm",
        })
    }
}

/// What the service may do with a process. Its `Display` is the list as it is written in the configuration.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Acts(u8);

impl Acts {
    /// Leaves the process alone.
    pub const NONE: Acts = Acts(0);

    /// Returns whether it may do this.
    pub fn allow(self, act: Act) -> bool {
        self.0 & act.bit() != 0
    }

    /// Returns whether it may do nothing.
    pub fn is_empty(self) -> bool {
        self == Acts::NONE
    }

    /// Returns what it may do, in the order of [`Act::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Act> {
        Act::ALL.into_iter().filter(move |act| self.allow(*act))
    }
}

impl FromIterator<Act> for Acts {
    fn from_iter<I: IntoIterator<Item = Act>>(acts: I) -> Acts {
        Acts(acts.into_iter().fold(0, |bits, act| bits | act.bit()))
    }
}

impl From<Act> for Acts {
    fn from(act: Act) -> Acts {
        Acts(act.bit())
    }
}

impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.iter().map(|act| format!("\"{act}\"")).collect();
        f.pad(&format!("[{}]", words.join(", ")))
    }
}

impl fmt::Debug for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_a_set_of_acts() {
        let acts: Acts = [Act::Code, Act::Pagecache, Act::Code].into_iter().collect();
        assert!(acts.allow(Act::Code) && acts.allow(Act::Pagecache) && !acts.allow(Act::Memory));
        assert_eq!(acts.to_string(), "[\"pagecache\", \"code\"]");
        assert_eq!(format!("{acts:?}"), "{Pagecache, Code}");
        assert_eq!((Acts::NONE.to_string(), Acts::NONE.is_empty()), ("[]".to_string(), true));
        assert!(Act::ALL.into_iter().collect::<Acts>().iter().eq(Act::ALL));
    }
}
