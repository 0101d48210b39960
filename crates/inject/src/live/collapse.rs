// SPDX-License-Identifier: Apache-2.0
//! Collapses memory of a running process into huge pages, and splits huge pages.
//!
//! *From outside*, by process_madvise(2), if that is allowed (CAP_SYS_NICE): no thread is stopped. The kernel first empties the page
//! lists of all CPUs and finds a huge page, which takes seconds on a machine that is busy or short of memory.
//!
//! *By a borrowed thread* otherwise, which is stopped for so long.

use super::Live;
use crate::calls::{Calls as _, refused};
use hugelift_core::addr::Range;
use hugelift_core::target::Fault;
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pidfd::process_madvise;
use std::io;

/// How often a call is made while pages of the block are in use.
const TRIES: usize = 8;

impl Live {
    /// Makes memory cold by a borrowed thread (`MADV_COLD`). The kernel splits a huge page of which `range` is a part.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn make_cold(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_COLD)", range, libc::MADV_COLD as u64)
    }

    /// Collapses a range, from outside if that is possible.
    ///
    /// # Errors
    /// As of [`Target::collapse`](hugelift_core::target::Target::collapse).
    pub(super) fn collapse_somehow(&mut self, range: Range) -> Result<(), Fault> {
        match self.collapse_outside(range) {
            None => self.collapse_all(range),
            Some(done) => done.map_err(|error| refused("process_madvise(MADV_COLLAPSE)", range, &error)),
        }
    }

    /// Collapses a range from outside; `None` if the kernel does not allow this process to.
    pub(super) fn collapse_outside(&self, range: Range) -> Option<io::Result<()>> {
        let process = self.process.as_ref()?;
        let advise = |range| process_madvise(process, range, MADV_COLLAPSE);
        let is_in_use = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
        advise(None).ok()?;
        for _ in 1..TRIES {
            match advise(Some(range)) {
                Err(error) if is_in_use(&error) => {}
                done => return Some(done.map(drop)),
            }
        }
        Some(advise(Some(range)).map(drop))
    }
}
