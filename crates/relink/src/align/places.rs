// SPDX-License-Identifier: Apache-2.0
//! Where everything goes in the output.

use super::pages::{BASE_PAGE, congruent};
use super::refusal::Stuck;
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::maps::Prot;

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
