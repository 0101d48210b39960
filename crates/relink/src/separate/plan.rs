// SPDX-License-Identifier: Apache-2.0
//! How the code is separated: what `layout` chooses, and all other steps follow.

use super::distances::Distances;
use super::extents::{Extent, Extents};
use super::references::Reference;
use super::refusal::Refusal;
use crate::align::tables::Tables;
use hugelift_core::elf::Segment;

/// How the code was separated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// The code and all behind it moved; what lies before it stayed.
    Code,
    /// Everything moved, behind a new ELF header, because the code could not move alone.
    All {
        /// Why it could not.
        why: Box<Refusal>,
    },
    /// Nothing moved, because nothing could. Only the edges of segments did.
    Stay {
        /// Why nothing could move.
        why: Box<Refusal>,
    },
}

/// The distances, and what is inserted into the file for them.
pub(super) struct Plan {
    pub way: Way,
    pub distances: Distances,
    /// Where each segment begins and ends.
    pub extents: Extents,
    /// References of code that must be written anew.
    pub mend: Vec<Reference>,
}

impl Plan {
    /// Returns where the byte at `offset` of the input lies before offsets are aligned.
    pub fn shifted(&self, offset: u64) -> Option<u64> {
        let before = self.extents.paddings.iter().take_while(|padding| padding.at <= offset);
        before.map(|padding| padding.bytes).try_fold(offset, u64::checked_add)
    }

    /// Returns the segments, before and after.
    pub fn loads(&self, tables: &Tables) -> Vec<Load> {
        let both = tables.headers.segments.iter().zip(&self.extents.segments);
        let sizes = |(s, e): (&Segment, &Extent)| Load {
            before: (s.vaddr, s.memsz),
            after: (e.start, e.mem_end.saturating_sub(e.start)),
        };
        both.map(sizes).collect()
    }
}

/// A segment of the program, before and after: its stated address, and its size in memory. Its edges may have moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    pub before: (u64, u64),
    pub after: (u64, u64),
}
