// SPDX-License-Identifier: Apache-2.0
//! What keeps pages of a file from being huge in the page cache.

use crate::addr::{PageSize, human_bytes};
use crate::printable::{Untrusted, quoted};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// A process that holds a file, mapped or open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: Untrusted,
}

/// So many of many holders are named.
const NAMED: usize = 4;

/// Why pages of a file are not huge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The segment has no whole huge page.
    TooSmall(PageSize),
    /// Stated address and file offset differ modulo the huge page.
    NotCongruent(PageSize),
    /// The kernel has no transparent huge pages.
    NoThp,
    /// `prctl(PR_SET_THP_DISABLE)` was inherited.
    ThpDisabled,
    /// Somebody has the file open for writing.
    BeingWritten(Vec<Holder>),
    /// These processes map its small pages, which therefore cannot be dropped.
    InUse(Vec<Holder>),
    /// Its small pages stay in memory, and no process that can be seen maps them.
    Stays,
    /// The file system gave small pages where memory had huge ones.
    NoLargeFolios(String),
    /// The kernel found no free huge page: memory is in pieces, or was for a moment.
    Fragmented,
    /// The pages would not fit into the memory that is left.
    MemoryShort {
        /// Bytes that could still be had.
        left: u64,
        /// Bytes that were wanted.
        need: u64,
    },
    /// Nobody has primed it (said where nothing is to be changed).
    NotPrimed,
    /// Nothing of it is in memory (said where nothing is to be changed).
    NotRead,
    /// Without reading it only its owner sees what of it is in memory.
    NotOwner,
    /// The file was changed meanwhile.
    Changed,
    /// A system call failed.
    Failed {
        /// Which one.
        call: &'static str,
        /// The kernel's answer.
        error: String,
    },
}

impl Obstacle {
    /// Its name in JSON.
    pub fn key(&self) -> &'static str {
        match self {
            Obstacle::TooSmall(_) => "too-small",
            Obstacle::NotCongruent(_) => "not-congruent",
            Obstacle::NoThp => "no-thp",
            Obstacle::ThpDisabled => "thp-off",
            Obstacle::BeingWritten(_) => "being-written",
            Obstacle::InUse(_) => "in-use",
            Obstacle::Stays => "stays-in-memory",
            Obstacle::NoLargeFolios(_) => "no-large-folios",
            Obstacle::Fragmented => "fragmented",
            Obstacle::MemoryShort { .. } => "memory-short",
            Obstacle::NotPrimed => "not-primed",
            Obstacle::NotRead => "not-read",
            Obstacle::NotOwner => "not-owner",
            Obstacle::Changed => "changed",
            Obstacle::Failed { .. } => "failed",
        }
    }

    /// What would change it for `file`, where something would.
    pub fn hint_for(&self, file: &Path) -> Option<String> {
        let file = quoted(file.as_os_str());
        let hint = match self {
            Obstacle::BeingWritten(_) | Obstacle::Changed => {
                format!("when it is complete: hugelift prime {file}")
            }
            Obstacle::NotCongruent(_) => {
                format!(
                    "hugelift prime --replace {file} puts a re-laid copy in its place; or, of a \
                 position-independent program, hugelift run --backing pagecache moves the code to where it fits"
                )
            }
            Obstacle::InUse(_) => {
                format!(
                    "end them, and before anything else starts it: hugelift prime {file}; or hugelift \
                 prime --replace {file}"
                )
            }
            Obstacle::Stays => {
                format!(
                    "hugelift prime {file} again; if that does not help: echo 1 > /proc/sys/vm/drop_caches"
                )
            }
            Obstacle::NoLargeFolios(_) => {
                "keep the file on ext4 (Linux 6.16 or newer), XFS, or tmpfs mounted with huge=always".into()
            }
            Obstacle::Fragmented => {
                format!("echo 1 > /proc/sys/vm/compact_memory; then hugelift prime {file}")
            }
            Obstacle::NotPrimed | Obstacle::NotRead => format!("hugelift prime {file}"),
            Obstacle::NotOwner => format!("as the file's owner or as root: hugelift prime {file}"),
            Obstacle::ThpDisabled => "start hugelift from a process without PR_SET_THP_DISABLE".into(),
            _ => return None,
        };
        Some(hint)
    }

    /// Whether it would not stand in the way of a re-laid copy.
    pub fn is_cured_by_copy(&self) -> bool {
        matches!(self, Obstacle::NotCongruent(_) | Obstacle::InUse(_) | Obstacle::Stays)
    }

    /// The processes that it names.
    pub fn holders(&self) -> &[Holder] {
        match self {
            Obstacle::InUse(holders) | Obstacle::BeingWritten(holders) => holders,
            _ => &[],
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::TooSmall(page) => write!(f, "no whole huge page of {page}"),
            Obstacle::NotCongruent(page) => {
                write!(f, "address and file offset differ modulo {page}: no huge page of the file fits")
            }
            Obstacle::NoThp => f.write_str("the kernel has no transparent huge pages"),
            Obstacle::ThpDisabled => f.write_str("switched off by prctl(PR_SET_THP_DISABLE)"),
            Obstacle::BeingWritten(by) => write!(f, "being written{}: left alone", listed(" by ", by)),
            Obstacle::InUse(by) => write!(f, "in use{}: small pages cannot be dropped", listed(" by ", by)),
            Obstacle::Stays => f.write_str("small pages stay in memory, held by nobody that can be seen"),
            Obstacle::NoLargeFolios(fs) => write!(f, "no huge pages from its file system ({fs})"),
            Obstacle::Fragmented => f.write_str("the kernel found no free huge page for it"),
            Obstacle::MemoryShort { left, need } => {
                write!(f, "needs {} of memory, {} are left", human_bytes(*need), human_bytes(*left))
            }
            Obstacle::NotPrimed => f.write_str("in memory in small pages"),
            Obstacle::NotRead => f.write_str("not in memory"),
            Obstacle::NotOwner => f.write_str("only the owner sees what is in memory without reading it"),
            Obstacle::Changed => f.write_str("changed meanwhile"),
            Obstacle::Failed { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

/// `" by 12 (clang), 14 (clang) and 3 more"`; nothing for nobody.
fn listed(before: &str, holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let named: Vec<String> = holders.iter().take(NAMED).map(|h| format!("{} ({})", h.pid, h.name)).collect();
    let rest = match holders.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{before}{}{rest}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_many_are_named() {
        let holders = |n: u32| (1..=n).map(|pid| Holder { pid, name: "cc\n".into() }).collect();
        let shown = Obstacle::InUse(holders(6)).to_string();
        assert!(shown.contains("1 (cc\\n), 2 (cc\\n), 3 (cc\\n), 4 (cc\\n) and 2 more:"), "{shown}");
        assert_eq!(Obstacle::BeingWritten(vec![]).to_string(), "being written: left alone");
    }
}
