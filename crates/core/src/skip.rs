// SPDX-License-Identifier: Apache-2.0
//! Why bytes are not on huge pages, as data: each reason has a key, words and a hint.

use crate::addr::{PageSize, Range, human_bytes, size_word};
use crate::attribute::Attribute;
use crate::policy::Backing;
use crate::snapshot::{MemoryLimit, NotStored, Part, ThpOff};
use crate::target::Fault;
use crate::worth::RATIO;
use std::fmt;

/// Bytes that stay as they are, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skip {
    /// Index into [`crate::snapshot::Snapshot::objects`].
    pub object: usize,
    /// The part of that object.
    pub part: Part,
    /// The addresses of the bytes.
    pub range: Range,
    /// Why they stay.
    pub reason: Reason,
}

/// Why a range was not lifted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// `--parts` leaves it out.
    PartNotAsked(Part),
    /// `--object` or `--exclude` leaves it out, or the range of addresses that a program asks for.
    Excluded,
    /// The whole part is smaller than one huge page.
    TooSmall(PageSize),
    /// The first or last huge page reaches beyond the part, but only over unmapped space and
    /// neighbours of the same protection: an outer span could lift it.
    NotAligned(PageSize),
    /// The first or last huge page holds a neighbour of another protection.
    Neighbour(PageSize),
    /// The first or last huge page holds memory that is not lifted, or that belongs to no object.
    Beside(PageSize),
    /// The first or last huge page reaches over space that must stay unmapped: a guard, or room that
    /// the heap or a stack grows into.
    KeptFree(PageSize),
    /// Memory that is writable and executable at once is never touched.
    WritableCode,
    /// The mapping's protection is not what its part should have.
    Protection,
    /// The loader writes relocations into this text.
    TextRelocations,
    /// Code that was written to since it was mapped, as debuggers and uprobes do.
    Patched,
    /// The pool has too few pages.
    PoolShort {
        /// Size of its pages.
        page: PageSize,
        /// Pages that were still available.
        free: u64,
        /// Pages that were wanted.
        need: u64,
        /// Pages in the pool now, in use or not.
        total: u64,
    },
    /// The kernel has no pool of this page size.
    NoPool(PageSize),
    /// A child of fork(2) may lose what is written to pages of the pool of this size
    /// ([`crate::snapshot::Machine::pool_page_is_lost_at_fork`]).
    LostAtFork(PageSize),
    /// The program has asked for something that huge pages, or a copy, would undo.
    Special(Attribute),
    /// The backing cannot be used for this part.
    NotFor(Backing, Part),
    /// It is advised, and becomes huge when it is touched.
    OnTouch,
    /// The backing cannot have pages of this size.
    NoSuchPage(Backing, PageSize),
    /// Transparent huge pages are switched off.
    ThpOff(ThpOff),
    /// The kernel has no transparent huge pages.
    NoThp,
    /// The copy would take too much of the machine's memory.
    MemoryLimit {
        /// Bytes that copies may still take.
        left: u64,
        /// Bytes that were wanted.
        need: u64,
    },
    /// The program may need what a control group's limit leaves.
    GroupLimit {
        /// The limit.
        limit: MemoryLimit,
        /// Bytes that the lift may still take.
        spare: u64,
        /// Bytes that were wanted.
        need: u64,
    },
    /// No gap between the mappings is wide enough for a copy of this many bytes.
    NoAddressSpace(u64),
    /// Its page cache is not in huge folios.
    NotPrimed,
    /// Most of the part's page cache is in huge folios, but this piece is not.
    SmallFolios,
    /// Its address and its offset in the file differ within a huge page.
    NotCongruent(PageSize),
    /// The store has no copy of it.
    NotStored(NotStored),
    /// It was copied for transparent pages of this size, which smaps does not show.
    SmallerPages(PageSize),
    /// It is copied while the program runs, when that is worth its cost.
    CopiedLater,
    /// No sample of the process's code fell on it, or too few.
    Cold,
    /// A step of the lift failed and was undone.
    Failed(Backing, Fault),
    /// It could be lifted, but was not.
    NotLifted,
}

impl Reason {
    /// Returns a stable word for programs that read the report.
    pub fn key(&self) -> &'static str {
        match self {
            Reason::PartNotAsked(_) => "part-not-asked",
            Reason::Excluded => "excluded",
            Reason::TooSmall(_) => "too-small",
            Reason::NotAligned(_) => "not-aligned",
            Reason::Neighbour(_) => "neighbour-protection",
            Reason::Beside(_) => "neighbour-not-lifted",
            Reason::KeptFree(_) => "kept-free",
            Reason::WritableCode => "writable-code",
            Reason::Protection => "protection",
            Reason::TextRelocations => "text-relocations",
            Reason::Patched => "patched",
            Reason::PoolShort { .. } => "pool-short",
            Reason::NoPool(_) => "no-pool",
            Reason::LostAtFork(_) => "lost-at-fork",
            Reason::Special(_) => "special-memory",
            Reason::NotFor(..) => "not-for-this-part",
            Reason::OnTouch => "on-touch",
            Reason::NoSuchPage(..) => "no-such-page-size",
            Reason::ThpOff(_) => "thp-off",
            Reason::NoThp => "no-thp",
            Reason::MemoryLimit { .. } => "memory-short",
            Reason::GroupLimit { .. } => "memory-limit",
            Reason::NoAddressSpace(_) => "no-address-space",
            Reason::NotPrimed => "not-primed",
            Reason::SmallFolios => "small-folios",
            Reason::NotCongruent(_) => "not-congruent",
            Reason::NotStored(_) => "not-stored",
            Reason::SmallerPages(_) => "smaller-pages",
            Reason::CopiedLater => "copied-later",
            Reason::Cold => "cold",
            Reason::Failed(_, Fault::NotHuge { .. }) => "fragmented",
            Reason::Failed(..) => "failed",
            Reason::NotLifted => "not-lifted",
        }
    }

    /// Returns whether the machine or the request is the cause, not the layout of the program: that
    /// is worth a line on stderr.
    pub fn is_remediable(&self) -> bool {
        matches!(
            self,
            Reason::PoolShort { .. }
                | Reason::NoPool(_)
                | Reason::LostAtFork(_)
                | Reason::NoSuchPage(..)
                | Reason::NotFor(..)
                | Reason::ThpOff(_)
                | Reason::NoThp
                | Reason::MemoryLimit { .. }
                | Reason::GroupLimit { .. }
                | Reason::NotPrimed
                | Reason::NotCongruent(_)
                | Reason::NotStored(_)
                | Reason::Special(Attribute::Unread)
                | Reason::Failed(..)
        )
    }

    /// Returns whether it is about the first or last huge page of a part, so that another base could
    /// change it.
    pub fn is_of_an_edge(&self) -> bool {
        matches!(self, Reason::NotAligned(_) | Reason::Neighbour(_) | Reason::Beside(_) | Reason::KeptFree(_))
    }

    /// Returns whether code with this reason would be lifted if it had huge pages of its own.
    pub fn is_cured_by_own_pages(&self) -> bool {
        self.page_of_its_own().is_some()
    }

    /// Returns the size of the huge pages that such code would need.
    pub(crate) fn page_of_its_own(&self) -> Option<PageSize> {
        match self {
            Reason::TooSmall(page) | Reason::Neighbour(page) | Reason::Beside(page) => Some(*page),
            _ => None,
        }
    }

    /// Joins this reason with `other` of the same kind: what was needed adds up, and what was
    /// available is what the first of them found.
    pub fn and(&self, other: &Reason) -> Reason {
        match (self, other) {
            (
                Reason::PoolShort { page, free, need, total },
                Reason::PoolShort { free: also_free, need: also, .. },
            ) => Reason::PoolShort {
                page: *page,
                free: *free.max(also_free),
                need: need.saturating_add(*also),
                total: *total,
            },
            (Reason::MemoryLimit { left, need }, Reason::MemoryLimit { left: also_left, need: also }) => {
                Reason::MemoryLimit { left: *left.max(also_left), need: need.saturating_add(*also) }
            }
            (
                Reason::GroupLimit { limit, spare, need },
                Reason::GroupLimit { spare: other, need: also, .. },
            ) => {
                let (spare, need) = (*spare.max(other), need.saturating_add(*also));
                Reason::GroupLimit { limit: limit.clone(), spare, need }
            }
            _ => self.clone(),
        }
    }

    /// Returns what the user can do, where that is the same for every program. [`Reason::hint_for`] also
    /// returns the advice that contains names.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Reason::NotFor(..) | Reason::LostAtFork(_) => "use --data-backing thp".into(),
            Reason::PoolShort { page, free, need, total } => {
                grow_pool(*page, total.saturating_add(need.saturating_sub(*free)))
            }
            Reason::NoSuchPage(Backing::Thp, page) => format!(
                "echo madvise > /sys/kernel/mm/transparent_hugepage/hugepages-{}kB/enabled (Linux 6.8)",
                page.bytes() >> 10
            ),
            Reason::NoPool(_) | Reason::NoSuchPage(..) => "ls /sys/kernel/mm/hugepages".into(),
            Reason::ThpOff(ThpOff::Never) => {
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".into()
            }
            Reason::ThpOff(ThpOff::Process) => {
                "start it without prctl(PR_SET_THP_DISABLE), or use --backing hugetlb".into()
            }
            Reason::NoThp => "use --backing hugetlb".into(),
            Reason::MemoryLimit { .. } => "free memory, or lift less: --object, --parts".into(),
            Reason::GroupLimit { limit, need, .. } if limit.left / 2 >= *need => {
                format!("hugelift run --spare {}M, if the program can do without it", need.div_ceil(1 << 20))
            }
            Reason::GroupLimit { limit, need, .. } => {
                let used = limit.bytes.saturating_sub(limit.left);
                // 2 MB more, as usage varies a little from start to start.
                let enough = used.saturating_add(need.saturating_mul(2)).div_ceil(1 << 20) + 2;
                let spare = need.div_ceil(1 << 20);
                format!("echo {enough}M > {}, then hugelift run --spare {spare}M", limit.source)
            }
            Reason::NotStored(not) => return not.hint.clone(),
            Reason::Special(Attribute::Unread) => {
                "run hugelift as the user of the process, or copy the file to a disk of this machine".into()
            }
            Reason::Failed(_, fault) => return fault.hint(),
            // Advice on these contains names, or there is none: Reason::hint_for.
            Reason::PartNotAsked(_)
            | Reason::NotPrimed
            | Reason::SmallFolios
            | Reason::NotCongruent(_)
            | Reason::CopiedLater
            | Reason::Cold
            | Reason::NotAligned(_)
            | Reason::NotLifted
            | Reason::Excluded
            | Reason::Special(_)
            | Reason::OnTouch
            | Reason::SmallerPages(_)
            | Reason::TooSmall(_)
            | Reason::Neighbour(_)
            | Reason::Beside(_)
            | Reason::KeptFree(_)
            | Reason::NoAddressSpace(_)
            | Reason::WritableCode
            | Reason::Protection
            | Reason::TextRelocations
            | Reason::Patched => return None,
        })
    }
}

/// Returns the command that sets the size of a pool.
fn grow_pool(page: PageSize, pages: u64) -> String {
    format!("hugelift pool set {}={pages}", size_word(page.bytes()))
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PartNotAsked(part) => write!(f, "{part} was not asked for"),
            Reason::Excluded => f.write_str("excluded by a pattern"),
            Reason::TooSmall(page) => write!(f, "too small: less than one page of {page}"),
            Reason::NotAligned(page) => write!(f, "not aligned: less than a whole page of {page} at an end"),
            Reason::Neighbour(page) => {
                write!(f, "shares its page of {page} with memory of another protection")
            }
            Reason::Beside(page) => {
                write!(f, "shares its page of {page} with memory that is not lifted")
            }
            Reason::KeptFree(page) => {
                write!(f, "the rest of its page of {page} must stay free: a guard, or room to grow")
            }
            Reason::WritableCode => f.write_str("is writable and executable at once"),
            Reason::Protection => f.write_str("its protection is not the one that its segment states"),
            Reason::TextRelocations => f.write_str("the loader writes relocations into this text"),
            Reason::Patched => {
                f.write_str("holds a breakpoint, a uprobe or other code written since the program started")
            }
            Reason::PoolShort { page, free, need, .. } => {
                write!(f, "hugetlb pool of {page} pages: free {free}, need {need}")
            }
            Reason::NoPool(page) => write!(f, "the kernel has no hugetlb pool of {page} pages"),
            Reason::LostAtFork(page) => {
                write!(
                    f,
                    "a child that it forks may read zeros instead of data on pool pages of {page} (Linux 6.12)"
                )
            }
            Reason::Special(attribute) => attribute.fmt(f),
            Reason::NotFor(backing, part) => write!(f, "{backing} cannot back {part}"),
            Reason::SmallerPages(page) => {
                write!(f, "copied for pages of {page}; smaps does not show how many of them it got")
            }
            Reason::OnTouch => f.write_str("not touched yet: becomes huge when it is"),
            Reason::NoSuchPage(backing, page) => {
                write!(f, "this kernel has no pages of {page} for the backing {backing}")
            }
            Reason::ThpOff(ThpOff::Never) => {
                f.write_str("/sys/kernel/mm/transparent_hugepage/enabled is 'never'")
            }
            Reason::ThpOff(ThpOff::Process) => {
                f.write_str("transparent huge pages are off for this process (PR_SET_THP_DISABLE)")
            }
            Reason::NoThp => f.write_str("this kernel has no transparent huge pages"),
            Reason::MemoryLimit { left, need } => {
                let (left, need) = (human_bytes(*left), human_bytes(*need));
                write!(f, "memory: copies may take {left} (half of what is available), need {need}")
            }
            Reason::GroupLimit { limit, spare, need } => {
                let (spare, need, left) = (human_bytes(*spare), human_bytes(*need), human_bytes(limit.left));
                write!(f, "memory limit: {limit}, and the program may need the {left} left of it")?;
                write!(f, ": {spare} spare, need {need}")
            }
            Reason::NoAddressSpace(need) => {
                write!(f, "no gap of {} in its address space", human_bytes(*need))
            }
            Reason::NotPrimed => f.write_str("its page cache is not in huge folios"),
            Reason::SmallFolios => f.write_str("this piece of its page cache is not in huge folios"),
            Reason::NotCongruent(page) => {
                write!(f, "its address and its offset in the file differ within a page of {page}")
            }
            Reason::NotStored(not) => write!(f, "shared: {}", not.why),
            Reason::CopiedLater => write!(
                f,
                "copied while it runs, once it has used {RATIO} times the CPU time that the copy takes"
            ),
            Reason::Cold => f.write_str("too few samples fell on it while the process was sampled"),
            Reason::Failed(backing, fault) => write!(f, "{backing}: {fault}"),
            Reason::NotLifted => f.write_str("could be lifted"),
        }
    }
}
