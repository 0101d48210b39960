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
mod pages;
mod places;
mod refusal;
pub(crate) mod tables;
mod verify;

pub(crate) use pages::{BASE_PAGE, base_of};
pub use places::{Edit, Layout, Move, Placed};
pub use refusal::{Refusal, Stuck};
pub use verify::{Difference, verify};

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Segment;
use pages::congruent;
use tables::Tables;

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
