// SPDX-License-Identifier: Apache-2.0
//! What prevents pages of a file from being huge in the page cache.

use crate::addr::{PageSize, human_bytes};
use crate::advice::separate;
use crate::pressure::Pressure;
use crate::printable::{Untrusted, quoted_path};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// A process that has a file mapped or open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: Untrusted,
}

/// Why a process that was asked to give up what it maps of a data file keeps small pages of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// It may write to its private mapping, and then has pages of its own.
    PrivateWritable,
    /// It maps them at two places. `MADV_PAGEOUT` takes pages that are mapped once.
    MappedTwice,
    /// It maps them where no huge page of the file fits, and would gain nothing.
    Misplaced,
    /// It has locked them, or touches them all the time; or they were read anew, and no huge page was free.
    Unknown,
}

/// At most this many holders are named.
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
    /// These processes have the file open for writing.
    BeingWritten(Vec<Holder>),
    /// These processes map its small pages, which therefore cannot be dropped.
    InUse(Vec<Holder>),
    /// Of the processes that are visible this one alone maps its small pages, and it did not give them up when it was asked to.
    Kept([Holder; 1], Keeps),
    /// Its small pages stay in memory, and no visible process maps them.
    Stays,
    /// This file system gave small pages although huge ones were free.
    NoLargeFolios(String),
    /// The kernel found no free huge page: memory is fragmented, maybe only for a moment.
    Fragmented,
    /// The pages would not fit into the memory that is left.
    MemoryShort {
        /// Bytes that were available.
        left: u64,
        /// Bytes that were needed.
        need: u64,
    },
    /// More of data files would be read into memory than was allowed.
    OverBudget {
        /// Bytes that may still be read.
        left: u64,
        /// Bytes that were needed.
        need: u64,
    },
    /// The machine, or a control group, is short of memory. What is not in memory is not read.
    Pressure(Pressure),
    /// It is in memory in small pages. Used by checks that change nothing.
    NotPrimed,
    /// It is not in memory. Used by checks that change nothing.
    NotRead,
    /// Only its owner can see which of its pages are in memory without reading them.
    NotOwner,
    /// The file was changed while it was primed.
    Changed,
    /// A system call failed.
    Failed {
        /// Name of the call.
        call: &'static str,
        /// The kernel's answer.
        error: String,
    },
}

impl Obstacle {
    /// Returns its name in JSON.
    pub fn key(&self) -> &'static str {
        match self {
            Obstacle::TooSmall(_) => "too-small",
            Obstacle::NotCongruent(_) => "not-congruent",
            Obstacle::NoThp => "no-thp",
            Obstacle::ThpDisabled => "thp-off",
            Obstacle::BeingWritten(_) => "being-written",
            Obstacle::InUse(_) => "in-use",
            Obstacle::Kept(..) => "kept-by-process",
            Obstacle::Stays => "stays-in-memory",
            Obstacle::NoLargeFolios(_) => "no-large-folios",
            Obstacle::Fragmented => "fragmented",
            Obstacle::MemoryShort { .. } => "memory-short",
            Obstacle::OverBudget { .. } => "over-budget",
            Obstacle::Pressure(_) => "memory-pressure",
            Obstacle::NotPrimed => "not-primed",
            Obstacle::NotRead => "not-read",
            Obstacle::NotOwner => "not-owner",
            Obstacle::Changed => "changed",
            Obstacle::Failed { .. } => "failed",
        }
    }

    /// Returns what the user can do about it for `file`. A copy in its place helps only if it is `replaceable`.
    pub fn hint_for(&self, file: &Path, replaceable: bool) -> Option<String> {
        let file = quoted_path(file);
        let or_replace = |way: String| if replaceable { way } else { String::new() };
        let hint = match self {
            Obstacle::TooSmall(_) if !replaceable => return None,
            Obstacle::TooSmall(_) => separate(&file),
            Obstacle::BeingWritten(_) | Obstacle::Changed => {
                format!("when it is complete: hugelift prime {file}")
            }
            Obstacle::NotCongruent(_) => {
                let copy = format!("hugelift prime --replace {file} puts a re-laid copy in its place; or, ");
                format!(
                    "{}for a position-independent program, hugelift run --backing pagecache moves the code to \
                     where it fits",
                    or_replace(copy)
                )
            }
            // A copy of a data file in its place would help nobody.
            Obstacle::InUse(by) if !replaceable && by.len() == 1 => {
                let pid = by.first().map_or(0, |holder| holder.pid);
                format!("as root: hugelift attach --parts files {pid} takes them while the process runs")
            }
            Obstacle::InUse(_) => {
                format!(
                    "end these processes; then run, before anything else maps the file: hugelift prime {file}{}",
                    or_replace(format!("; or hugelift prime --replace {file}"))
                )
            }
            Obstacle::Kept([by], _) => {
                format!(
                    "end process {}; then run, before anything else maps the file: hugelift prime {file}",
                    by.pid
                )
            }
            Obstacle::Stays => {
                format!(
                    "try again: hugelift prime {file}; if that does not help: echo 1 > /proc/sys/vm/drop_caches"
                )
            }
            Obstacle::NoLargeFolios(_) => {
                "keep the file on ext4 (Linux 6.16 or newer), XFS, or tmpfs mounted with huge=always".into()
            }
            Obstacle::Fragmented => {
                format!("echo 1 > /proc/sys/vm/compact_memory; then hugelift prime {file}")
            }
            Obstacle::Pressure(_) => format!("when memory is not short any more: hugelift prime {file}"),
            Obstacle::NotPrimed | Obstacle::NotRead => format!("hugelift prime {file}"),
            Obstacle::NotOwner => format!("as the file's owner or as root: hugelift prime {file}"),
            Obstacle::OverBudget { need, .. } => {
                format!(
                    "with a budget of its own: hugelift prime --budget {}M {file}",
                    need.div_ceil(1 << 20)
                )
            }
            Obstacle::ThpDisabled => "start hugelift from a process without PR_SET_THP_DISABLE".into(),
            _ => return None,
        };
        Some(hint)
    }

    /// Returns whether a re-laid copy of the file would not have this obstacle.
    pub fn is_cured_by_copy(&self) -> bool {
        Obstacle::key_is_cured_by_copy(self.key())
    }

    /// Returns whether a re-laid copy of the file would not have the obstacle of this [`Obstacle::key`].
    pub fn key_is_cured_by_copy(key: &str) -> bool {
        ["not-congruent", "in-use", "stays-in-memory"].contains(&key)
    }

    /// Returns the processes that it names.
    pub fn holders(&self) -> &[Holder] {
        match self {
            Obstacle::InUse(holders) | Obstacle::BeingWritten(holders) => holders,
            Obstacle::Kept(holder, _) => holder,
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
            Obstacle::Kept(by, why) => {
                let why = match why {
                    Keeps::PrivateWritable => "has a private mapping of it that it may write to",
                    Keeps::MappedTwice => "maps it more than once",
                    Keeps::Misplaced => "maps it where no huge page fits",
                    Keeps::Unknown => {
                        "has locked it (mlock) or touches it all the time; or no huge page was free"
                    }
                };
                write!(f, "in small pages{}, which {why}", listed(" of ", by))
            }
            Obstacle::Stays => {
                f.write_str("small pages stay in memory, although no visible process maps them")
            }
            Obstacle::NoLargeFolios(fs) => write!(f, "no huge pages from its file system ({fs})"),
            Obstacle::Fragmented => f.write_str("the kernel found no free huge page for it"),
            Obstacle::MemoryShort { left, need } => {
                write!(f, "needs {} of memory, {} are left", human_bytes(*need), human_bytes(*left))
            }
            Obstacle::OverBudget { left, need } => write!(
                f,
                "{} would be read into memory, and the budget for data files has {} left",
                human_bytes(*need),
                human_bytes(*left)
            ),
            Obstacle::Pressure(pressure) => write!(f, "not read, as memory is short: {pressure}"),
            Obstacle::NotPrimed => f.write_str("in memory in small pages"),
            Obstacle::NotRead => f.write_str("not in memory"),
            Obstacle::NotOwner => f.write_str("only the owner sees what is in memory without reading it"),
            Obstacle::Changed => f.write_str("the file was changed while it was primed"),
            Obstacle::Failed { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

/// Returns text such as `" by 12 (clang), 14 (clang) and 3 more"`; empty if there are no holders.
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
