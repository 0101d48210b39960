// SPDX-License-Identifier: Apache-2.0
//! A process that has a data file mapped, and gives its pages up so that they can be read in anew.
//!
//! `MADV_PAGEOUT` (process_madvise(2)) unmaps pages of a file and drops them. It changes nothing that a process sees: what it
//! touches again comes from the file. The kernel does that for pages that no other process maps
//! (`madvise_cold_or_pageout_pte_range` in mm/madvise.c), to root and to the owner of the file with CAP_SYS_NICE, and not for locked
//! memory.

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::prime::Holder;
use hugelift_core::shared_memory::is_congruent;
use hugelift_linux::proc::pidfd::process_madvise;
use std::io;
use std::os::fd::OwnedFd;

/// A process and its mappings of one file.
#[derive(Debug)]
pub struct MappedBy {
    pid: u32,
    process: OwnedFd,
    /// Where it maps the file, and from which offset on.
    mappings: Vec<(Range, u64)>,
}

impl MappedBy {
    /// Takes those `mappings` of a file by this process that can have huge pages of `page`: at others it would
    /// gain nothing. Private memory that it may write to is left out, as its own pages would be written to swap space. Returns `None`
    /// if nothing is left.
    ///
    /// # Errors
    /// errno(3) of fcntl(2), `F_DUPFD_CLOEXEC`.
    pub fn new(
        (pid, process): (u32, &OwnedFd),
        mappings: &[Mapping],
        page: PageSize,
    ) -> io::Result<Option<MappedBy>> {
        let fitting = mappings.iter().filter(|one| fits(one, page) && (one.shared || !one.prot.write));
        let mappings: Vec<_> = fitting.map(|mapping| (mapping.range, mapping.offset)).collect();
        if mappings.is_empty() {
            return Ok(None);
        }
        Ok(Some(MappedBy { pid, process: process.try_clone()?, mappings }))
    }

    /// Returns whether nobody else holds pages.
    pub(super) fn is_the_only(&self, holders: &[Holder]) -> bool {
        holders.iter().all(|holder| holder.pid == self.pid)
    }

    /// Has the process give up what it has mapped of the huge page at `offset` of the file. What the kernel refuses stays mapped.
    pub(super) fn give_up(&self, offset: u64, page: PageSize) {
        for range in self.mappings.iter().filter_map(|mapping| mapped(*mapping, offset, page.bytes())) {
            let done = process_madvise(&self.process, Some(range), libc::MADV_PAGEOUT);
            tracing::trace!(?done, %range, "pageout");
        }
    }
}

/// Returns whether huge pages of a file fit where it is mapped.
pub fn fits(mapping: &Mapping, page: PageSize) -> bool {
    is_congruent(mapping.range, mapping.offset, page)
}

/// Returns where a mapping shows `len` bytes from `offset` on, as far as it does.
fn mapped((range, first): (Range, u64), offset: u64, len: u64) -> Option<Range> {
    let start = offset.max(first);
    let end = offset.saturating_add(len).min(first.saturating_add(range.len()));
    let at = |offset: u64| range.start.0.checked_add(offset.checked_sub(first)?).map(Addr);
    (start < end).then(|| Range::new(at(start)?, at(end)?)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_1_the_bytes_of_a_file_are_found_where_they_are_mapped() {
        const MB: u64 = 1 << 20;
        let range = |start, end| Range { start: Addr(start), end: Addr(end) };
        let mapping = (range(0x1000_0000, 0x1000_0000 + 5 * MB), 4 * MB);
        assert_eq!(mapped(mapping, 4 * MB, 2 * MB), Some(range(0x1000_0000, 0x1020_0000)));
        assert_eq!(mapped(mapping, 8 * MB, 2 * MB), Some(range(0x1040_0000, 0x1050_0000)));
        assert_eq!((mapped(mapping, 2 * MB, 2 * MB), mapped(mapping, 10 * MB, 2 * MB)), (None, None));
        assert_eq!(mapped(mapping, u64::MAX - MB, 2 * MB), None);
    }
}
