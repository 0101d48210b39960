// SPDX-License-Identifier: Apache-2.0
//! Maps a region ([`Region`]) in a process while data of it is replaced.
//!
//! It is unmapped when all threads have been let go by the tracer. If the tracer dies, it stays: when the last
//! thread has left it is not known.

use super::Live;
use super::came::Came;
use super::region::Region;
use crate::calls::Calls as _;
use crate::threads;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Prot;
use hugelift_core::target::Fault;
use std::io;

/// The slots that are there beyond the threads that are known: a half more, and a few.
const MORE: usize = 16;

impl Live {
    /// Returns a region with enough slots, in which nobody waits yet.
    ///
    /// # Errors
    /// The inner error says why there is none.
    pub(super) fn region(&mut self) -> Result<Result<Region, Came>, Fault> {
        let gone = |e: String| Fault::Lost(e);
        let count = threads::list(self.pid).map_err(|e| gone(e.to_string()))?.len();
        let known = self.written.region.filter(|region| region.slot(count + count / 4).is_some());
        let region = match known {
            Some(region) => region,
            None => {
                self.unmap_region();
                if self.written.region.is_some() {
                    return Ok(Err(Came::NotNow("no thread of it could be borrowed just now".into())));
                }
                match self.map_region(count + count / 2 + MORE)? {
                    Ok(region) => region,
                    Err(came) => return Ok(Err(came)),
                }
            }
        };
        // Whoever waited for it was let go by the tracer.
        self.set_word(region, 0).map_err(|e| gone(e.to_string()))?;
        Ok(Ok(region))
    }

    /// Sets the word. Threads that wait for it by themselves see it at the next wake-up.
    pub(super) fn set_word(&self, region: Region, value: u32) -> io::Result<()> {
        self.memory_write(region.word.start, &value.to_ne_bytes())
    }

    /// Maps a region. Each call borrows a thread anew, so that none is stopped for long.
    fn map_region(&mut self, slots: usize) -> Result<Result<Region, Came>, Fault> {
        const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        const RX: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let args = [0, Region::bytes(slots), RX, ANONYMOUS, u64::MAX, 0];
        let at = match self.call("mmap", Range::default(), libc::SYS_mmap, args) {
            Ok(at) => at,
            Err(fault) => return refused(fault).map(Err),
        };
        let region = Region::at(Addr(at), slots);
        self.written.region = Some(region);
        self.scratch.add(region.whole());
        match self.protect(region.word, Prot::RW) {
            Ok(()) => Ok(Ok(region)),
            Err(fault) => {
                self.unmap_region();
                refused(fault).map(Err)
            }
        }
    }

    /// Unmaps the region, if nobody can be in it. Without a thread that could do so it stays for the next time.
    pub(super) fn unmap_region(&mut self) {
        let Some(region) = self.written.region else { return };
        match self.release_all(region.whole()) {
            Ok(()) => self.written.region = None,
            Err(why) => tracing::debug!(%why, "the code of stopped threads stays mapped"),
        }
    }
}

/// Returns what an attempt came to whose call failed.
fn refused(fault: Fault) -> Result<Came, Fault> {
    match fault {
        Fault::Call { errno: libc::EBUSY, .. } => {
            Ok(Came::NotNow("no thread of it could be borrowed just now".into()))
        }
        Fault::Call { call, errno, .. } => {
            let why = io::Error::from_raw_os_error(errno);
            Ok(Came::Never(format!("no code can be mapped in which its threads wait ({call}: {why})")))
        }
        other => Err(other),
    }
}
