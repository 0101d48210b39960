// SPDX-License-Identifier: Apache-2.0
//! Memory that is mapped in a process while data of it is replaced: pages with a slot of code for each thread, which
//! the tracer alone writes to, and a page with the word that the threads wait for.
//!
//! It is unmapped when all threads have been let go by the tracer. If the tracer dies, it stays: when the last
//! thread has left it is not known.

use super::Live;
use super::written::Came;
use crate::arch;
use crate::trace::lent::{NotLent, Slot};
use crate::trace::threads;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::target::Fault;
use std::io;

/// Bytes of a page, on the architectures where such memory is mapped.
const PAGE: u64 = 4096;

/// The slots that are there beyond the threads that are known: a half more, and a few.
const MORE: usize = 16;

/// The memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    code: Range,
    word: Addr,
}

impl Region {
    /// Returns a slot: the first is the leader's.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        let each = (PAGE as usize) / arch::SLOT_BYTES;
        let at = (index / each) as u64 * PAGE + ((index % each) * arch::SLOT_BYTES) as u64;
        (at < self.code.len()).then_some(Slot { at: Addr(self.code.start.0 + at), word: self.word })
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
        self.memory_write(region.word, &value.to_ne_bytes())
    }

    fn map_region(&mut self, slots: usize) -> Result<Result<Region, Came>, Fault> {
        const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        const RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        const RX: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let len = (slots.div_ceil(PAGE as usize / arch::SLOT_BYTES) as u64) * PAGE;
        let made = self.borrow(|lent| {
            let map = |len: u64, prot: u64| [0, len, prot, ANONYMOUS, u64::MAX, 0];
            let word = lent.call(libc::SYS_mmap, map(PAGE, RW))?;
            if word < 0 {
                return Ok(Err(word));
            }
            let code = lent.call(libc::SYS_mmap, map(len, RX))?;
            if code < 0 {
                lent.call(libc::SYS_munmap, [word as u64, PAGE, 0, 0, 0, 0])?;
                return Ok(Err(code));
            }
            // A child of fork(2) has no use for it. If it gets it nevertheless, no harm is done.
            for (at, len) in [(word, PAGE), (code, len)] {
                lent.call(libc::SYS_madvise, [at as u64, len, libc::MADV_DONTFORK as u64, 0, 0, 0])?;
            }
            Ok(Ok((word, code)))
        });
        Ok(match made {
            Ok(Ok((word, code))) => {
                let region = Region {
                    code: Range::sized(Addr(code as u64), len).unwrap_or_default(),
                    word: Addr(word as u64),
                };
                self.written.region = Some(region);
                Ok(region)
            }
            Ok(Err(errno)) => {
                let why = io::Error::from_raw_os_error(-errno as i32);
                Err(Came::Never(format!("no code can be mapped in which its threads wait (mmap: {why})")))
            }
            Err(why) => return Live::came_of(why).map(Err),
        })
    }

    /// Unmaps the region, if nobody can be in it. Without a thread that could do so it stays for the next time.
    pub(super) fn unmap_region(&mut self) {
        let Some(Region { code, word }) = self.written.region else { return };
        let done = self.borrow(|lent| {
            lent.call(libc::SYS_munmap, [code.start.0, code.len(), 0, 0, 0, 0])?;
            lent.call(libc::SYS_munmap, [word.0, PAGE, 0, 0, 0, 0])
        });
        match done {
            Ok(_) => self.written.region = None,
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
