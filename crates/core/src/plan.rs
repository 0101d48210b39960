// SPDX-License-Identifier: Apache-2.0
//! The plan: which spans to lift, in which ways, in which steps; and for everything else
//! the reason. A pure function of a [`Snapshot`] and a [`Policy`].
//!
//! ```text
//!   text of an object, huge pages of 2 MB:
//!     ...|··|================|================|=====···|...
//!        edge          inner span                    edge
//!   ^                                                     ^
//!   outer span: the whole page, if nothing forbids it, else a skip
//! ```

use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::policy::{Backing, Policy};
use crate::skip::Skip;
use crate::snapshot::{Machine, Part, Snapshot};
use crate::target::MapStored;

mod outer;
mod planner;
mod steps;
#[cfg(test)]
pub(crate) mod tests;

/// What to do, and what not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Ranges to lift.
    pub spans: Vec<Span>,
    /// Ranges to leave, with reasons.
    pub skips: Vec<Skip>,
}

/// A huge-page-aligned range chosen for lifting: whole huge pages inside one part (inner), or one
/// that parts fill only partly (outer).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Index into [`Snapshot::objects`]; of an outer span, whose part fills most of it.
    pub object: usize,
    /// Which part of it.
    pub part: Part,
    /// Where.
    pub range: Range,
    /// What of it is mapped, by address: all of an inner span. The rest becomes zeros.
    pub held: Vec<Range>,
    /// Protection, kept.
    pub prot: Prot,
    /// Ways to back it, best first.
    pub attempts: Vec<Attempt>,
}

impl Span {
    /// What of it is not mapped before the lift.
    pub fn gaps(&self) -> Vec<Range> {
        gaps(self.range, self.held.iter().copied())
    }
}

/// What of `whole` none of `held` covers.
fn gaps(whole: Range, held: impl Iterator<Item = Range>) -> Vec<Range> {
    held.fold(vec![whole], |gaps, held| gaps.into_iter().flat_map(|gap| gap.minus(held)).collect())
}

/// One way to back a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Where the huge pages come from.
    pub backing: Backing,
    /// Their size.
    pub page: PageSize,
    /// The memory stays, and its huge pages come as it is touched.
    pub in_place: bool,
    /// How to get there.
    pub steps: Vec<Step>,
}

impl Attempt {
    /// Its pages are smaller than those that smaps tells of.
    pub fn is_unseen(&self) -> bool {
        let verifies = |step: &Step| matches!(step, Step::Verify { .. });
        self.backing == Backing::Thp && !self.in_place && !self.steps.iter().any(verifies)
    }
}

/// One step of an attempt. All before the last work on a scratch range, away from the
/// program; the last puts the result in place in one system call. What the page cache holds is
/// in place already: it is only mapped. Anonymous memory that the program writes to stays in
/// place: it is advised, which no program can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Map fresh memory, readable and writable; from the pool if `hugetlb` names a page size.
    Map {
        /// Scratch.
        range: Range,
        /// `None` for memory that THP may back.
        hugetlb: Option<PageSize>,
    },
    /// Put on huge pages what has been touched so far of memory that stays where it is.
    Collapse {
        /// The span.
        range: Range,
    },
    /// Ask for transparent huge pages.
    Advise {
        /// Scratch; or the span itself, whose huge pages then come as it is touched.
        range: Range,
    },
    /// Say on which NUMA nodes its pages are to lie; those that are there already move.
    Bind {
        /// Scratch, or the span where nothing is copied.
        range: Range,
        /// Which nodes.
        placement: Placement,
    },
    /// Fault everything in, so that a lack shows as an error.
    Populate {
        /// Scratch.
        range: Range,
        /// Size of its pages.
        page: PageSize,
    },
    /// Map a file's pages, as the page cache has them.
    FaultIn {
        /// The span.
        range: Range,
        /// Size of its pages.
        page: PageSize,
    },
    /// Check that huge pages came.
    Verify {
        /// Scratch, or the span where nothing is copied.
        range: Range,
    },
    /// Make a file on hugetlb pages.
    CreateFile {
        /// Length.
        bytes: u64,
        /// Size of its pages.
        page: PageSize,
    },
    /// Map that file shared, readable and writable.
    MapFile {
        /// Scratch.
        range: Range,
    },
    /// Map a copy in the store to scratch, with the span's protection, faulted in.
    MapStored(MapStored),
    /// Copy the program's bytes.
    Copy {
        /// The span.
        from: Range,
        /// Scratch.
        to: Addr,
    },
    /// Give the copy the span's protection.
    Protect {
        /// Scratch.
        range: Range,
        /// The span's protection.
        prot: Prot,
    },
    /// Move the copy over the span.
    Move {
        /// Scratch.
        from: Range,
        /// The span's start.
        to: Addr,
    },
    /// Map the file over the span (kernels that cannot move hugetlb mappings).
    Replace {
        /// The span.
        range: Range,
        /// Its protection.
        prot: Prot,
        /// Where the file is mapped writable.
        scratch: Addr,
    },
}

/// Plans the lift of `snapshot` as `policy` asks: spans and skips by object and address.
/// Together they hold every byte of [`Snapshot::extents`] once.
pub fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    planner::plan(snapshot, policy)
}

/// What of `snapshot` a store could hold for all processes: the whole huge pages of every part
/// that `policy` would have lifted, with their object and what it is of it.
pub fn shareable(snapshot: &Snapshot, policy: &Policy) -> Vec<(usize, Part, Range)> {
    planner::shareable(snapshot, policy)
}

/// The spans of text and rodata that `plan` copies, for this process alone.
pub fn copied(plan: &Plan) -> impl Iterator<Item = &Span> {
    let copies = |span: &&Span| {
        let first = span.attempts.first();
        let is_copy =
            first.is_some_and(|a| matches!(a.backing, Backing::Thp | Backing::Hugetlb) && !a.in_place);
        is_copy && !span.part.is_writable()
    };
    plan.spans.iter().filter(copies)
}

/// The bytes of `range` that whole pages of `page` cover.
pub fn liftable_bytes(range: Range, page: PageSize) -> u64 {
    range.inner(page).map_or(0, Range::len)
}

/// Whether `found` of `whole` bytes are so nearly all that the rest is not worth a copy.
pub fn is_nearly_all(found: u64, whole: u64) -> bool {
    whole > 0 && found >= whole - whole / 10
}

/// The page size that a backing uses when the user names none.
pub fn usual_page(machine: &Machine, backing: Backing) -> Option<PageSize> {
    match backing {
        Backing::Hugetlb => usual_pool(machine),
        Backing::Thp | Backing::Pagecache | Backing::Shared => machine.thp_page,
    }
}

/// The size that one PMD entry maps costs least. Where that is too large to be of use (512 MB
/// on 64 kB base pages), who filled a pool of smaller pages meant them to be used.
fn usual_pool(machine: &Machine) -> Option<PageSize> {
    let offered = || machine.pools.iter().map(|p| p.page);
    let stocked = || machine.pools.iter().filter(|p| p.available() > 0).map(|p| p.page);
    match machine.thp_page {
        Some(pmd) => {
            let best = stocked().filter(|p| *p <= pmd).max();
            best.or_else(|| offered().find(|p| *p == pmd)).or_else(|| offered().min())
        }
        None => stocked().min().or_else(|| offered().min()),
    }
}
