// SPDX-License-Identifier: Apache-2.0
//! What the segments of a separated file gain, and what memory that costs.

use super::extents::Source;
use super::plan::Plan;
use crate::align::{self, Layout, tables::Tables};
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::maps::Prot;

/// One `PT_LOAD`, before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gain {
    /// Its protection.
    pub prot: Prot,
    /// Stated address in the original.
    pub address_before: Addr,
    /// Stated address in the copy, where its padding begins.
    pub address_after: Addr,
    /// Bytes of the original in its file part.
    pub bytes: u64,
    /// Bytes of padding at its start and its end, which its huge pages hold too.
    pub padding: u64,
    /// Bytes of constants beside its code, which have become executable.
    pub constants: u64,
    /// Bytes in whole huge pages that `align` would give.
    pub huge_before: u64,
    /// Bytes in whole huge pages, padding included.
    pub huge_after: u64,
}

impl Gain {
    /// Returns the padding that lies in whole huge pages: memory that the page cache holds for nothing, once a
    /// machine.
    pub fn cost(&self) -> u64 {
        self.padding.min(self.huge_after)
    }

    /// Returns the bytes of the original in whole huge pages.
    pub fn content(&self) -> u64 {
        self.huge_after.saturating_sub(self.cost()).saturating_sub(self.constants).min(self.bytes)
    }
}

/// Compares what the original and the copy can have.
pub(super) fn gains(
    tables: &Tables,
    plan: &Plan,
    layout: &Layout,
    bytes: &[u8],
    page: PageSize,
) -> Vec<Gain> {
    let offsets = align::layout(bytes, page).ok();
    let before = |vaddr: u64| {
        let placed = offsets.as_ref()?.segments.iter().find(|s| s.vaddr.0 == vaddr)?;
        Some(placed.huge_after(page))
    };
    let source = Source { bytes, tables, page };
    let segments = tables.headers.segments.iter().zip(&layout.segments).enumerate();
    segments
        .map(|(i, (s, placed))| Gain {
            prot: s.prot,
            address_before: Addr(s.vaddr),
            address_after: placed.vaddr,
            bytes: s.filesz,
            padding: plan.extents.padding_in(i),
            constants: plan.extents.constants_in(&source, i),
            huge_before: before(s.vaddr).unwrap_or(0),
            huge_after: placed.huge_after(page),
        })
        .collect()
}
