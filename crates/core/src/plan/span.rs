// SPDX-License-Identifier: Apache-2.0
//! What a plan consists of: spans, the attempts to back each, and the steps of an attempt.

use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::policy::Backing;
use crate::skip::Skip;
use crate::snapshot::Part;
#[cfg(doc)]
use crate::snapshot::Snapshot;
use crate::target::MapStored;

/// What to lift, and what not.
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
    /// Index into [`Snapshot::objects`]. An outer span counts for the part that fills most of it.
    pub object: usize,
    /// The part of that object.
    pub part: Part,
    /// Its addresses.
    pub range: Range,
    /// The mapped ranges in it, by address: all of an inner span. The rest becomes zeros.
    pub held: Vec<Range>,
    /// Its protection, which stays.
    pub prot: Prot,
    /// Ways to back it, best first.
    pub attempts: Vec<Attempt>,
}

impl Span {
    /// Returns the ranges in it that are not mapped before the lift.
    pub fn gaps(&self) -> Vec<Range> {
        gaps(self.range, self.held.iter().copied())
    }
}

/// Returns the ranges in `whole` that none of `held` covers.
pub(super) fn gaps(whole: Range, held: impl Iterator<Item = Range>) -> Vec<Range> {
    held.fold(vec![whole], |gaps, held| gaps.into_iter().flat_map(|gap| gap.minus(held)).collect())
}

/// One way to back a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Where the huge pages come from.
    pub backing: Backing,
    /// Their size.
    pub page: PageSize,
    /// The memory is not copied. It becomes huge when it is touched.
    pub in_place: bool,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

impl Attempt {
    /// Returns whether its pages are smaller than those that smaps counts as huge.
    pub fn is_unseen(&self) -> bool {
        let verifies = |step: &Step| matches!(step, Step::Verify { .. });
        self.backing == Backing::Thp && !self.in_place && !self.steps.iter().any(verifies)
    }
}

/// One step of an attempt. All steps but the last work on a scratch range that the program does not
/// use; the last puts the result in place by one system call. Pages in the page cache are in place
/// already and are only mapped. Anonymous memory that the program writes to stays in place and is
/// advised, which a program cannot notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Map fresh memory, readable and writable; from the pool if `hugetlb` names a page size.
    Map {
        /// Scratch.
        range: Range,
        /// `None` for memory that THP may back.
        hugetlb: Option<PageSize>,
    },
    /// Move to huge pages what has been touched so far of memory that stays in place.
    Collapse {
        /// The span.
        range: Range,
    },
    /// Ask for transparent huge pages.
    Advise {
        /// Scratch; or the span itself, which then becomes huge when it is touched.
        range: Range,
    },
    /// Set the NUMA nodes of its pages; pages that exist already move there.
    Bind {
        /// Scratch, or the span where nothing is copied.
        range: Range,
        /// The nodes.
        placement: Placement,
    },
    /// Fault everything in, so that a lack of pages is an error here.
    Populate {
        /// Scratch.
        range: Range,
        /// Size of its pages.
        page: PageSize,
    },
    /// Map a file's pages as the page cache holds them.
    FaultIn {
        /// The span.
        range: Range,
        /// Size of its pages.
        page: PageSize,
    },
    /// Check that huge pages map it.
    Verify {
        /// Scratch, or the span where nothing is copied.
        range: Range,
    },
    /// Create a file on hugetlb pages.
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
    /// Map the store's copy to scratch, with the span's protection, and fault it in.
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
