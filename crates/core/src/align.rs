// SPDX-License-Identifier: Apache-2.0
//! Re-lays an ELF file so that it can have huge pages in the page cache: `hugelift align`.
//!
//! The kernel maps a huge page of the page cache where the address and the offset in the file are the
//! same modulo the size of the huge page. Linkers make them the same modulo 4 kB (or
//! `-z max-page-size`). This module changes only the *file offsets*, by padding between the segments.
//! Addresses and the bytes of code and data stay, and so do symbols, relocations, unwind tables and
//! debug information.
//!
//! ```text
//! before   [ headers, rodata ][ text ][ data ][ symbols ][ section table ]
//! after    [ headers, rodata ]   [ text ]   [ data ][ symbols ][ section table ]
//!                             hole       hole
//! ```
//!
//! [`layout`] computes where everything goes and which header fields change; [`verify`] compares two
//! files. [`Layout::write`] writes the output to memory; writing files is left to the caller.
//!
//! Sources: elf(5); the System V ABI, chapter 5, "Program Header" (`p_align`); Linux
//! `fs/binfmt_elf.c` (`maximum_alignment`: since 5.10 it aligns a PIE program to the largest
//! `p_align`); glibc `elf/dl-map-segments.h` (the same for shared objects since 2.35).

mod edits;
mod groups;
pub(crate) mod tables;
mod verify;

pub use verify::{Difference, verify};

use crate::addr::{Addr, PageSize, Range, human_bytes};
use crate::elf::{ElfError, Segment};
use crate::maps::Prot;
use std::fmt;
use tables::Tables;

/// Bytes of the input and their offset in the output, which may be the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Offset in the input.
    pub from: u64,
    /// Offset in the output: never less than `from`, and more by whole pages of 4 kB.
    pub to: u64,
    /// Number of bytes.
    pub len: u64,
}

/// New bytes of a header table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// Offset in the output.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

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

/// One `PT_LOAD`, before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Its protection.
    pub prot: Prot,
    /// Stated address.
    pub vaddr: Addr,
    /// Bytes in the file.
    pub filesz: u64,
    /// Bytes of its whole huge pages, if the object is loaded at a multiple of a huge page.
    pub whole: u64,
    /// Offset in the input.
    pub from: u64,
    /// Offset in the output.
    pub to: u64,
    /// `p_align` in the input.
    pub align_from: u64,
    /// `p_align` in the output.
    pub align_to: u64,
    /// Why it could not be made congruent; only set if it has a whole huge page.
    pub stuck: Option<Stuck>,
}

impl Placed {
    /// Returns whether address and offset agreed modulo `page` in the input.
    pub fn congruent_before(&self, page: PageSize) -> bool {
        congruent(self.from, self.vaddr.0, page.bytes())
    }

    /// Returns the bytes that can be huge in the page cache of the output.
    pub fn huge_after(&self, page: PageSize) -> u64 {
        if congruent(self.to, self.vaddr.0, page.bytes()) { self.whole } else { 0 }
    }
}

/// Where everything goes in the output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Size of the huge pages.
    pub page: PageSize,
    /// `ET_DYN`: the loader must align the base, as `p_align` demands.
    pub relocatable: bool,
    /// The moves, ascending and disjoint. The output has zeros between them.
    pub moves: Vec<Move>,
    /// The new header tables, disjoint.
    pub edits: Vec<Edit>,
    /// Length of the output, in bytes.
    pub bytes: u64,
    /// The `PT_LOAD`s, by address.
    pub segments: Vec<Placed>,
}

impl Layout {
    /// Returns whether the output is the input, byte for byte.
    pub fn is_identity(&self) -> bool {
        !self.moved() && self.segments.iter().all(|s| s.align_from == s.align_to)
    }

    /// Returns whether anything but `p_align` changes.
    pub fn moved(&self) -> bool {
        self.moves.iter().any(|m| m.from != m.to)
    }

    /// Returns whether the input's address was a multiple of the page size already, because it is fixed
    /// or because `p_align` demanded it.
    pub fn base_aligned_before(&self) -> bool {
        !self.relocatable || self.segments.iter().any(|s| s.align_from >= self.page.bytes())
    }

    /// Returns how many bits of the load address are no longer random, as there are fewer multiples of
    /// a huge page: 9 for 2 MB. It is 0 if the address is fixed, or `p_align` was as large before.
    pub fn aslr_bits_lost(&self) -> u32 {
        let largest = |of: fn(&Placed) -> u64| {
            self.segments.iter().map(of).max().unwrap_or(0).max(BASE_PAGE).checked_ilog2().unwrap_or(0)
        };
        if !self.relocatable {
            return 0;
        }
        largest(|s| s.align_to).saturating_sub(largest(|s| s.align_from))
    }

    /// Returns the output.
    ///
    /// # Panics
    /// Panics if `input` is not the file that the layout was computed from.
    pub fn write(&self, input: &[u8]) -> Vec<u8> {
        let size = |n: u64| usize::try_from(n).expect("a layout of a file in memory");
        let mut out = vec![0; size(self.bytes)];
        for m in &self.moves {
            out[size(m.to)..size(m.to + m.len)].copy_from_slice(&input[size(m.from)..size(m.from + m.len)]);
        }
        for edit in &self.edits {
            out[size(edit.at)..][..edit.bytes.len()].copy_from_slice(&edit.bytes);
        }
        out
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

/// The smallest base page that programs are linked for.
pub(crate) const BASE_PAGE: u64 = 4096;

pub(crate) fn congruent(a: u64, b: u64, modulus: u64) -> bool {
    a.wrapping_sub(b) & (modulus - 1) == 0
}

/// Computes where everything in the file `bytes` goes, so that address and file offset agree modulo
/// `page` in each `PT_LOAD` that holds a whole huge page of that size.
///
/// The layout of a file that was re-laid before is the identity.
///
/// # Errors
/// Returns a [`Refusal`] if the file cannot or must not be re-laid.
pub fn layout(bytes: &[u8], page: PageSize) -> Result<Layout, Refusal> {
    let tables = Tables::parse(bytes)?;
    let wholes: Vec<u64> = tables.headers.segments.iter().map(|s| whole(s, page)).collect();
    if wholes.iter().all(|&w| w == 0) {
        let largest = tables.headers.segments.iter().map(|s| s.filesz).max().unwrap_or(0);
        return Err(Refusal::TooSmall { largest, page });
    }
    let largest = |stuck: &dyn Fn(usize) -> Option<Stuck>| {
        let i = (0..wholes.len()).max_by_key(|&i| wholes[i])?;
        Some(Refusal::Stuck { vaddr: Addr(tables.headers.segments[i].vaddr), why: stuck(i)? })
    };
    let base = Addr(tables.headers.first_page(BASE_PAGE));
    if tables.headers.relocatable && !base.is_aligned(page) {
        return largest(&|_| Some(Stuck::Base(base))).map_or(Err(Refusal::TooLarge), Err);
    }
    let plan = groups::place(bytes, &tables, &wholes, page)?;
    let segments: Vec<Placed> =
        tables.headers.segments.iter().zip(&wholes).map(|(s, &w)| placed(s, w, &plan, page)).collect();
    if segments.iter().all(|s| s.whole == 0 || s.stuck.is_some()) {
        return largest(&|i| segments[i].stuck).map_or(Err(Refusal::TooLarge), Err);
    }
    let edits = edits::edits(&tables, &plan.moves, &segments)?;
    let relocatable = tables.headers.relocatable;
    let layout = Layout { page, relocatable, moves: plan.moves, edits, bytes: plan.bytes, segments };
    match plan.payload {
        Some((bytes, starts)) if layout.moved() => Err(Refusal::Payload { bytes, starts }),
        _ => Ok(layout),
    }
}

fn placed(s: &Segment, whole: u64, plan: &groups::Plan, page: PageSize) -> Placed {
    let mut to = groups::moved(&plan.moves, s.offset);
    if s.filesz == 0 {
        // It has no bytes in the file, but loaders check its offset against its `p_align`.
        let shift = (to - s.offset).checked_next_multiple_of(groups::kept(s));
        to = shift.and_then(|shift| s.offset.checked_add(shift)).unwrap_or(s.offset);
    }
    let stuck = match congruent(to, s.vaddr, page.bytes()) {
        _ if whole == 0 => None,
        true => None,
        false if s.offset == 0 => Some(Stuck::Header),
        false => Some(Stuck::Shared),
    };
    let raise = whole > 0 && stuck.is_none();
    Placed {
        prot: s.prot,
        vaddr: Addr(s.vaddr),
        filesz: s.filesz,
        whole,
        from: s.offset,
        to,
        align_from: s.align,
        align_to: if raise { s.align.max(page.bytes()) } else { s.align },
        stuck,
    }
}

/// Returns the bytes of a segment in whole huge pages; its mapping consists of whole base pages.
fn whole(segment: &Segment, page: PageSize) -> u64 {
    let base = base_of(page);
    let start = Addr(segment.vaddr / base * base);
    let end = segment.vaddr.checked_add(segment.filesz).and_then(|end| end.checked_next_multiple_of(base));
    end.and_then(|end| Range::new(start, Addr(end))?.inner(page)).map_or(0, Range::len)
}

/// Returns the base page of machines that have huge pages of size `page`: one table of the last level maps a huge
/// page, and has as many entries of 8 bytes as fit into a base page. Larger huge pages are those of a higher level.
pub(crate) fn base_of(page: PageSize) -> u64 {
    let bases = [BASE_PAGE, 0x4000, 0x10000];
    bases.into_iter().find(|base| base * (base / 8) >= page.bytes()).unwrap_or(BASE_PAGE)
}
