// SPDX-License-Identifier: Apache-2.0
//! Why a file, or a segment of it, is not re-laid.

use hugelift_core::addr::{Addr, PageSize, human_bytes};
use hugelift_core::elf::ElfError;
use std::fmt;

/// Why a segment with a whole huge page stays incongruent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// It holds the ELF header, which starts every file, and its address is not a multiple of the page.
    Header,
    /// Another segment has the same bytes of the file at an incongruent address.
    Shared,
    /// The object's first address, which loaders align, is not a multiple of the page.
    Base(Addr),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Header => f.write_str("it holds the ELF header, which must start the file"),
            Stuck::Shared => f.write_str("another segment contains some of the same bytes of the file"),
            Stuck::Base(at) => write!(f, "the object is linked for {at}, not a multiple of the page size"),
        }
    }
}

/// Why a file is not re-laid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Not an ELF file that hugelift reads.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// `ET_REL`.
    #[error("an object file or a kernel module: no program maps such a file")]
    Object,
    /// `ET_CORE`.
    #[error("a core dump")]
    Core,
    /// Headers point behind the end.
    #[error("{what} ends at {end:#x}, the file at {len:#x}: it is cut off, or holds only debug information")]
    Short {
        /// The piece that is cut off.
        what: String,
        /// Where it should end.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// UPX, or `sstrip`.
    #[error("it has no section table, like packed programs, which may read their own file by offset")]
    NoSections,
    /// By prelink(8).
    #[error("it is prelinked (it has a section .gnu.prelink_undo); first: prelink --undo")]
    Prelinked,
    /// Something is appended, and would move.
    #[error(
        "{} behind the end of its ELF part (\"{starts}\"…): a program that reads them by their offset, \
         as self-extracting programs do, would not find them",
        human_bytes(*bytes)
    )]
    Payload {
        /// Number of bytes.
        bytes: u64,
        /// The first of them, escaped.
        starts: String,
    },
    /// No huge page fits into any segment.
    #[error("nothing to gain: its largest segment has {}, and no whole page of {page}", human_bytes(*largest))]
    TooSmall {
        /// Bytes of the largest segment.
        largest: u64,
        /// The size wanted.
        page: PageSize,
    },
    /// `p_vaddr` and `p_offset` differ within a page, which no loader accepts.
    #[error("segment at {vaddr}: its address and its file offset {offset:#x} differ within a page")]
    Torn {
        /// Its stated address.
        vaddr: Addr,
        /// Its offset in the file.
        offset: u64,
    },
    /// None of the large segments can be made congruent.
    #[error("segment at {vaddr} cannot be aligned: {why}")]
    Stuck {
        /// The largest such segment.
        vaddr: Addr,
        /// Why.
        why: Stuck,
    },
    /// Their segment would have another distance between address and offset than the first segment.
    #[error("its program headers are not at the start and would move: Linux before 5.18 would not find them")]
    ProgramHeaders,
    /// A header table overlaps something else.
    #[error("damaged ELF file: {what} overlaps another header table or a section")]
    Clash {
        /// Which.
        what: &'static str,
    },
    /// Offsets beyond 2^63.
    #[error("it would not fit into a file")]
    TooLarge,
}
