// SPDX-License-Identifier: Apache-2.0
//! Memory that is mapped in a process while data of it is replaced: pages with a slot of code for each thread, which
//! the tracer alone writes to, and a page with the word that the threads wait for.
//!
//! It is unmapped when all threads have been let go by the tracer. If the tracer dies, it stays: when the last
//! thread has left it is not known.

use super::Live;
use super::written::Came;
use crate::arch;
use crate::trace::calls::Calls as _;
use crate::trace::lent::{NotLent, Slot};
use crate::trace::threads;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Prot;
use hugelift_core::target::Fault;
use std::io;

/// Bytes of a page, on the architectures where such memory is mapped.
const PAGE: u64 = 4096;

/// The slots that are there beyond the threads that are known: a half more, and a few.
const MORE: usize = 16;

/// The memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The slots.
    code: Range,
    /// The page behind them, which begins with the word.
    word: Range,
}

impl Region {
    /// Returns a slot: the first is the leader's.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        let each = (PAGE as usize) / arch::SLOT_BYTES;
        let at = (index / each) as u64 * PAGE + ((index % each) * arch::SLOT_BYTES) as u64;
        (at < self.code.len()).then_some(Slot { at: Addr(self.code.start.0 + at), word: self.word.start })
    }
}

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
        let len = slots.div_ceil(PAGE as usize / arch::SLOT_BYTES) as u64 * PAGE;
        let args = [0, len + PAGE, RX, ANONYMOUS, u64::MAX, 0];
        let at = match self.call("mmap", Range::default(), libc::SYS_mmap, args) {
            Ok(at) => at,
            Err(fault) => return refused(fault).map(Err),
        };
        let part = |start: u64, len: u64| Range::sized(Addr(start), len).unwrap_or_default();
        let region = Region { code: part(at, len), word: part(at + len, PAGE) };
        self.written.region = Some(region);
        self.scratch.add(Range { start: region.code.start, end: region.word.end });
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
        let Some(Region { code, word }) = self.written.region else { return };
        match self.release_all(Range { start: code.start, end: word.end }) {
            Ok(()) => self.written.region = None,
            Err(why) => tracing::debug!(%why, "the code of stopped threads stays mapped"),
        }
    }

    /// Returns what an attempt came to for which no thread could be borrowed.
    ///
    /// # Errors
    /// The process is gone, or no longer under control.
    pub(super) fn came_of(why: NotLent) -> Result<Came, Fault> {
        if why.is_final() { Err(Fault::Lost(why.to_string())) } else { Ok(super::data::not_now(why)) }
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
