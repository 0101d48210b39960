// SPDX-License-Identifier: Apache-2.0
//! Says how much of the private memory of a process huge pages waste, and what came of giving it back.
//!
//! ```text
//!   huge page   [█·····█···········]   2 of 512 base pages hold data
//!   split       [█·····█···········]   · is the zero page now, and takes no memory
//! ```
//!
//! A fault in memory that may be huge takes 2 MB for one byte. What the program has never written, or has cleared, is zeros. Linux
//! 6.12 maps the zero page in their place when it splits a huge page (commit b1f202060afe). A page that reads as zero before reads
//! as zero after, and a write to it takes a new page.

use crate::addr::{Addr, human_bytes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What the base pages of a huge page hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Contents {
    /// All base pages of the huge page.
    pub pages: u64,
    /// The base pages that hold zeros alone.
    pub zeros: u64,
}

impl Contents {
    /// Returns whether most of the huge page is zeros: then the memory is worth more than the TLB entry.
    pub fn is_mostly_zero(self) -> bool {
        self.zeros > self.pages / 2
    }
}

/// The private memory of a process that is on huge pages, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Unused {
    /// All of it that was read.
    pub huge_bytes: u64,
    /// The huge pages that are mostly zeros.
    pub sparse_bytes: u64,
    /// The zeros in these.
    pub zero_bytes: u64,
}

/// Why a huge page stays although most of it is zeros, or why it was not read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// mlock(2): its zeros are to stay in memory.
    Locked,
    /// Faults in it go to a userfaultfd.
    Watched,
    /// Another process has it too, after fork(2). It is not read.
    Shared,
    /// The kernel did not split it: it is in use by a device or by a system call.
    InUse,
    /// The process has unmapped it, or has written to it, meanwhile.
    Changed,
    /// Its pages have memory tags (MTE), which the zero page has not.
    Tagged,
    /// No thread of the process could be borrowed for it.
    NoThread,
    /// The time was used up.
    NoTime,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kept::Locked => "it is locked in memory (mlock)",
            Kept::Watched => "a userfaultfd watches it",
            Kept::Shared => "another process has it too (fork)",
            Kept::InUse => "the kernel did not split it, as a device or a system call uses it",
            Kept::Changed => "the process changed it meanwhile",
            Kept::Tagged => "its pages have memory tags (MTE)",
            Kept::NoThread => {
                "no thread of the process could be borrowed just then; try again, or run hugelift as root (CAP_SYS_NICE)"
            }
            Kept::NoTime => "the time that this may take is used up",
        })
    }
}

/// What came of giving unused memory back. `Display` says it in lines of text.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct GivenBack {
    /// What was found.
    #[serde(flatten)]
    pub found: Unused,
    /// Bytes of the huge pages that were split.
    pub split_bytes: u64,
    /// Bytes of these that take no memory any more, by the pagemap.
    pub freed_bytes: u64,
    /// `Rss` of the process before, by smaps.
    pub rss_bytes_before: u64,
    /// `Rss` of the process afterwards, by smaps.
    pub rss_bytes_after: u64,
    /// Bytes of huge pages that stay, by the reason.
    #[serde(rename = "kept_bytes")]
    pub kept: BTreeMap<Kept, u64>,
    /// Where the time was used up: the next search goes on there.
    #[serde(skip)]
    pub next: Option<Addr>,
}

impl GivenBack {
    /// Takes account of a huge page that stays.
    pub fn keep(&mut self, why: Kept, bytes: u64) {
        *self.kept.entry(why).or_default() += bytes;
    }
}

impl fmt::Display for GivenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unused { huge_bytes, sparse_bytes, .. } = self.found;
        let [freed, split, huge, sparse] =
            [self.freed_bytes, self.split_bytes, huge_bytes, sparse_bytes].map(human_bytes);
        match (huge_bytes, sparse_bytes) {
            (0, _) if !self.kept.is_empty() => f.write_str("nothing was given back")?,
            (0, _) => write!(f, "none of its private memory is on huge pages: nothing to give back")?,
            (_, 1..) if self.split_bytes == 0 => write!(
                f,
                "nothing was given back, although {sparse} of its {huge} on huge pages are mostly zeros"
            )?,
            (_, 0) => write!(f, "nothing to give back: no huge page of its {huge} is mostly zeros")?,
            _ => write!(
                f,
                "{freed} given back: {split} of its {huge} on huge pages were mostly zeros, and are small pages now"
            )?,
        }
        if self.split_bytes > 0 {
            let [before, after] = [self.rss_bytes_before, self.rss_bytes_after].map(human_bytes);
            write!(f, "\nits memory (Rss) was {before} and is {after}")?;
        }
        for (why, bytes) in &self.kept {
            write!(f, "\n{} stays on huge pages: {why}", human_bytes(*bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_split_if_more_than_half_of_it_is_zeros() {
        for (zeros, is_mostly_zero) in [(0, false), (256, false), (257, true), (512, true)] {
            assert_eq!(Contents { pages: 512, zeros }.is_mostly_zero(), is_mostly_zero, "{zeros}");
        }
        assert!(!Contents::default().is_mostly_zero());
    }

    #[test]
    fn what_was_given_back_is_said_with_what_stays() {
        const MB: u64 = 1 << 20;
        let mut given = GivenBack::default();
        assert_eq!(given.to_string(), "none of its private memory is on huge pages: nothing to give back");
        given.found.huge_bytes = 64 * MB;
        assert_eq!(given.to_string(), "nothing to give back: no huge page of its 64 MB is mostly zeros");
        let locked = GivenBack { kept: BTreeMap::from([(Kept::Locked, 2 * MB)]), ..GivenBack::default() };
        assert_eq!(
            locked.to_string(),
            "nothing was given back\n2 MB stays on huge pages: it is locked in memory (mlock)"
        );
        let mut in_use = GivenBack { found: given.found, ..GivenBack::default() };
        in_use.found.sparse_bytes = 8 * MB;
        assert_eq!(
            in_use.to_string(),
            "nothing was given back, although 8 MB of its 64 MB on huge pages are mostly zeros"
        );
        given.found = Unused { huge_bytes: 64 * MB, sparse_bytes: 12 * MB, zero_bytes: 11 * MB };
        (given.split_bytes, given.freed_bytes) = (8 * MB, 7 * MB);
        (given.rss_bytes_before, given.rss_bytes_after) = (90 * MB, 83 * MB);
        given.keep(Kept::Shared, 2 * MB);
        given.keep(Kept::Shared, 2 * MB);
        assert_eq!(
            given.to_string(),
            "7 MB given back: 8 MB of its 64 MB on huge pages were mostly zeros, and are small pages now\n\
             its memory (Rss) was 90 MB and is 83 MB\n\
             4 MB stays on huge pages: another process has it too (fork)"
        );
    }
}
