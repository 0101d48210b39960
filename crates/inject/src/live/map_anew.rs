// SPDX-License-Identifier: Apache-2.0
//! Maps a file anew from what the page cache has of it now.
//!
//! A page table with small pages stays when these pages are unmapped, and where it is, the kernel maps no huge page
//! (`do_set_pmd` in mm/memory.c). `MADV_DONTNEED` in the process frees it since Linux 6.14 (CONFIG_PT_RECLAIM). In a shared mapping that
//! changes no byte: what the process has written to is in the page cache. From a private mapping it would take pages that the process has
//! written to, so there must be none.

use super::Live;
use super::page_size::outcome;
use super::read_only::{FORBIDDEN, OTHER, WRITTEN};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_linux::proc::pagemap;
use std::rc::Rc;

impl Live {
    /// Has the page tables of this mapping of a file, which may be a part of one, made anew from the page cache when it is next
    /// touched: by huge pages where the page cache has huge ones, and the address fits. A private mapping must not be writable.
    ///
    /// # Errors
    /// [`Fault::Kept`] if it is not such a mapping any more, or was written to; [`Fault::Call`] if madvise(2) fails; [`Fault::Lost`].
    pub fn map_anew(&mut self, expected: &Mapping) -> Result<(), Fault> {
        if !expected.is_file() || !expected.shared && expected.prot.write {
            return Err(Fault::Kept(OTHER.into()));
        }
        let (pid, mappings, range) = (self.pid, Rc::clone(&self.mappings), expected.range);
        let differs = || {
            // In this order: who writes after the first check has made the memory writable before the second.
            let is_written = !expected.shared && pagemap::is_written(pid, range).unwrap_or(true);
            match (is_written, mappings.has_part(expected)) {
                (_, false) => Some(OTHER),
                (true, true) => Some(WRITTEN),
                (false, true) => None,
            }
        };
        let mut why = None;
        let made = self.borrow(|lent| {
            // Should the tracer die from here on, the thread makes the call without a further check.
            why = differs();
            if why.is_some() {
                return Ok(0);
            }
            let args = [range.start.0, range.len(), libc::MADV_DONTNEED as u64, 0, 0, 0];
            let dropped = lent.call_unless(libc::SYS_madvise, args, &mut || {
                why = differs();
                why.map(|_| libc::ESTALE)
            })?;
            if lent.refused().is_some() {
                why = Some(FORBIDDEN);
            }
            Ok(dropped)
        });
        outcome(made, why, range)
    }
}
