// SPDX-License-Identifier: Apache-2.0
//! Maps the same pages of a file by huge pages or by small ones. Nothing is copied: the page tables alone change, which takes
//! less than a millisecond for 64 MB.

use super::read_only::{FORBIDDEN, OTHER, WRITTEN};
use super::{Live, Pages};
use crate::planned::has_file;
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_linux::proc::pagemap;
use std::rc::Rc;

/// `MADV_POPULATE_READ` (Linux 5.14), which is not in the C library of every target.
const POPULATE_READ: u64 = 22;

impl Live {
    /// Maps the pages of this private mapping of a file, which may be a part of one, by pages of the other size: drops them from the page tables
    /// (`MADV_DONTNEED`, which for such a mapping brings the file's bytes back), and maps them again. That is done only if
    /// the mapping cannot be written to and none of its pages was: their bytes would be lost. It is checked when the lent
    /// thread has entered the kernel for the call. The mapping keeps the advice for such pages (`MADV_HUGEPAGE` or
    /// `MADV_NOHUGEPAGE`).
    ///
    /// # Errors
    /// [`Fault::Kept`] if it is not such a mapping any more; [`Fault::Call`] if madvise(2) fails; [`Fault::Lost`].
    pub fn map_by(&mut self, expected: &Mapping, pages: Pages) -> Result<(), Fault> {
        if expected.prot.write || expected.shared || !has_file(expected) {
            return Err(Fault::Kept(OTHER.into()));
        }
        let (pid, mappings, range) = (self.pid, Rc::clone(&self.mappings), expected.range);
        let advice = match pages {
            Pages::Huge => libc::MADV_HUGEPAGE,
            Pages::Small => libc::MADV_NOHUGEPAGE,
        };
        let madvise = |advice: u64| (libc::SYS_madvise, [range.start.0, range.len(), advice, 0, 0, 0]);
        let mut why = None;
        let made = self.borrow(|lent| {
            // A mapping that stays as it is keeps its advice, too.
            why = match (mappings.has_part(expected), pagemap::is_written(pid, range)) {
                (false, _) => Some(OTHER),
                (true, Ok(false)) => None,
                (true, _) => Some(WRITTEN),
            };
            if why.is_some() {
                return Ok(0);
            }
            let (number, args) = madvise(advice as u64);
            let advised = lent.call(number, args)?;
            let (number, args) = madvise(libc::MADV_DONTNEED as u64);
            let dropped = match advised {
                0 => lent.call_unless(number, args, &mut || {
                    // In this order: who writes after the first check has made the memory writable before the second.
                    why = match (pagemap::is_written(pid, range), mappings.has_part(expected)) {
                        (_, false) => Some(OTHER),
                        (Ok(false), true) => None,
                        _ => Some(WRITTEN),
                    };
                    why.map(|_| libc::ESTALE)
                })?,
                refused => refused,
            };
            if lent.refused().is_some() {
                why = Some(FORBIDDEN);
            }
            if dropped == 0 {
                // Where the kernel does not know it, each page is mapped when it is touched.
                let (number, args) = madvise(POPULATE_READ);
                lent.call(number, args)?;
            }
            Ok(dropped)
        });
        match (made, why) {
            (Err(why), _) if why.is_final() => Err(Fault::Lost(why.to_string())),
            (Err(why), _) => Err(Fault::Kept(format!("no thread of it could be borrowed: {why}"))),
            (Ok(_), Some(why)) => Err(Fault::Kept(why.into())),
            (Ok(errno @ -4095..0), None) => Err(Fault::Call { call: "madvise", range, errno: -errno as i32 }),
            (Ok(_), None) => Ok(()),
        }
    }
}
