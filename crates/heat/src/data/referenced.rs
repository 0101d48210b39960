// SPDX-License-Identifier: Apache-2.0
//! Clears the accessed bits of a process (`/proc/PID/clear_refs`), and reads later in smaps how much of each mapping has one
//! again.
//!
//! What the kernel does (fs/proc/task_mmu.c of Linux 6.12): writing 1 clears the bits in the page tables, and also what the
//! kernel has noted about each page for its own use. The TLBs are not emptied, so that a page whose entry stays there gets no
//! new bit: the sums are lower bounds. When memory runs short meanwhile, the kernel takes pages for unused that are in use.
//! So this way is taken only if it is asked for.

use hugelift_core::heat::data::areas::{Areas, Piece};
use hugelift_core::heat::data::count::{Seen, count};
use hugelift_core::heat::data::{DataInUse, Method};
use hugelift_linux::proc::procfs::{Process, help_with_access};
use nix::errno::Errno;
use std::io::{self, Write as _};

/// What is said if it is not asked for.
pub const NOT_ASKED: &str = "not asked for: inspect --heat TIME --data clears and counts them, a lower bound for each mapping; \
                             if memory is short meanwhile, the kernel may take pages in use for unused ones";

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel lacks it.
    #[error("this kernel has no /proc/PID/clear_refs (CONFIG_PROC_PAGE_MONITOR)")]
    Lacking,
    /// Anything else.
    #[error("/proc/{0}/clear_refs: {1}; {help}", help = help_with_access())]
    Os(u32, Errno),
}

/// A process whose accessed bits are cleared.
#[derive(Debug)]
pub struct Cleared {
    process: Process,
}

impl Cleared {
    /// Clears them.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(process: Process) -> Result<Cleared, Refused> {
        let clear =
            || std::fs::OpenOptions::new().write(true).open(process.path("clear_refs"))?.write_all(b"1");
        clear().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if process.stat().is_ok() => Refused::Lacking,
            _ => Refused::Os(process.pid(), Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        })?;
        Ok(Cleared { process })
    }

    /// Returns how much of each mapping was touched since. A mapping that holds several parts counts as the largest one.
    ///
    /// # Errors
    /// smaps cannot be read; the text says why.
    pub fn finish(self, areas: &Areas) -> Result<DataInUse, String> {
        let usage = self.process.smaps().map_err(|error| error.to_string())?;
        let seen: Vec<(Piece, Seen)> = usage
            .iter()
            .filter_map(|usage| {
                let (range, hugetlb) = (usage.mapping.range, usage.hugetlb());
                let place = areas.place_of(range)?;
                let resident = usage.rss.saturating_add(hugetlb);
                Some((
                    Piece { range, place },
                    Seen { resident, watched: usage.rss, touched: usage.referenced, samples: None },
                ))
            })
            .collect();
        Ok(count(areas, Method::Referenced, None, seen.iter().map(|(piece, seen)| (piece, *seen))))
    }
}
