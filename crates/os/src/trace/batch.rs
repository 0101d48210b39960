// SPDX-License-Identifier: Apache-2.0
//! Several system calls of the target in one round trip: a stop of the target costs far more than
//! most of its calls.
//!
//! ```text
//!   data:  | arguments in memory | number, 6 arguments | ... | kill(self, SIGURG) | -1 |
//!                                  ^ code walks the list; each result replaces its number
//! ```
//!
//! The last call stops a target that is traced, and does nothing to one that is not (where the
//! program has a handler for SIGURG, it runs): one whose tracer is gone makes all its calls, and
//! goes home.

use crate::arch::{self, Regs};
use crate::proc::memory;
use crate::trace::frame::{Call, DATA_BYTES};
use crate::trace::ptrace::{Error, Resume, Stop, Stopped};
use crate::trace::remote::Remote;
use hugelift_core::addr::Addr;
use hugelift_core::target::Fault;
use std::io;

/// A signal that is ignored by default, and that hardly anybody sends.
const DONE: i32 = libc::SIGURG;
const CALL_WORDS: u64 = 7;
/// What one call takes of the list.
pub(crate) const CALL_BYTES: u64 = 8 * CALL_WORDS;

/// Calls to be made, with what their arguments point to.
#[derive(Debug)]
pub struct Batch {
    base: Addr,
    data: Vec<u8>,
    calls: Vec<Call>,
}

/// What came of a batch.
#[derive(Debug)]
pub struct BatchResults {
    base: Addr,
    bytes: Vec<u8>,
    list: u64,
}

impl Batch {
    /// One whose data begins at `base` of the target's memory.
    pub fn new(base: Addr) -> Batch {
        Batch { base, data: Vec::new(), calls: Vec::new() }
    }

    /// Lays `bytes` out for an argument; returns where they will be.
    pub fn lay(&mut self, bytes: &[u8]) -> u64 {
        let at = self.base.0 + self.data.len() as u64;
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        at
    }

    /// Adds a call; returns its number.
    pub fn add(&mut self, number: i64, args: [u64; 6]) -> usize {
        self.calls.push((number, args));
        self.calls.len() - 1
    }

    /// The bytes to be laid out, and where in them the list is.
    fn into_bytes(mut self) -> (Vec<u8>, u64) {
        let list = self.data.len() as u64;
        for (number, args) in self.calls {
            self.data.extend(number.to_ne_bytes());
            self.data.extend(args.iter().flat_map(|word| word.to_ne_bytes()));
        }
        self.data.extend((-1i64).to_ne_bytes());
        (self.data, list)
    }
}

impl BatchResults {
    /// What call `n` returned: a value, or a negative errno.
    pub fn result(&self, n: usize) -> i64 {
        self.word(self.base.0 + self.list + CALL_BYTES * n as u64) as i64
    }

    /// The word that is at `addr` now, which [`Batch::lay`] returned.
    pub fn word(&self, addr: u64) -> u64 {
        let at = addr.wrapping_sub(self.base.0) as usize;
        let bytes = self.bytes.get(at..).and_then(|b| b.first_chunk());
        // What is not there was not done.
        bytes.map_or(-i64::from(libc::EFAULT) as u64, |b| u64::from_ne_bytes(*b))
    }
}

impl Remote {
    /// A new batch, which first of all does what is still to be done.
    pub(crate) fn batch(&mut self) -> Batch {
        let mut batch = Batch::new(self.restore_frame.data);
        if std::mem::take(&mut self.drains) {
            // rt_sigtimedwait(2) takes the signal off if it is there, and does not wait.
            let set = batch.lay(&(1u64 << (libc::SIGCONT - 1)).to_ne_bytes());
            let at_once = batch.lay(&[0; 16]);
            batch.add(libc::SYS_rt_sigtimedwait, [set, 0, at_once, 8, 0, 0]);
        }
        batch
    }

    /// Makes all calls of `batch`, in their order, whatever each returns.
    ///
    /// # Errors
    /// They could not be made, or not all of them.
    pub(crate) fn make(&mut self, mut batch: Batch) -> Result<BatchResults, Error> {
        let began = std::time::Instant::now();
        let (pid, tid) = (self.pid as u64, self.pid);
        let last = batch.add(libc::SYS_tgkill, [pid, pid, DONE as u64, 0, 0, 0]) as u64;
        let base = batch.base;
        let (mut bytes, list) = batch.into_bytes();
        let os = |what| move |source| Error::Os { what, tid, source };
        if bytes.len() as u64 > DATA_BYTES {
            let source = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(os("write system calls to the stack")(source));
        }
        let stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        memory::write(tid, base, &bytes).map_err(os("write system calls to the stack"))?;
        let regs = self.restore_frame.at_batch(&stopped, Addr(base.0 + list))?;
        let end = Addr(base.0 + list + CALL_BYTES * last);
        let stopped = self.walk(stopped, &regs, end)?;
        let got = memory::read(tid, base, &mut bytes).map_err(os("read what system calls returned"))?;
        bytes.truncate(got);
        self.stopped = Some(stopped);
        tracing::trace!(calls = last, elapsed = ?began.elapsed(), "made");
        Ok(BatchResults { base, bytes, list })
    }

    /// Runs the target with `regs` until it stops itself by the call at `end`.
    fn walk(&mut self, stopped: Stopped, regs: &Regs, end: Addr) -> Result<Stopped, Error> {
        stopped.set_signal_mask(!(1 << (DONE - 1)))?;
        stopped.set_regs(regs)?;
        let mut running = stopped.resume(Resume::Cont, 0)?;
        loop {
            let (stopped, stop) = running.wait()?;
            let signal = match stop {
                Stop::Signal(DONE) => {
                    let ours = stopped.signal_origin()? == (libc::SI_TKILL, self.pid);
                    // Somebody else's is handed on when we are done.
                    self.urgent |= !ours;
                    if stopped.regs()?.is_some_and(|r| r.in_batch() == end) {
                        // Off the list, whose place is for other arguments from now on.
                        stopped.set_regs(&self.restore_frame.at(arch::RETURN_AT))?;
                        stopped.set_signal_mask(u64::MAX)?;
                        return Ok(stopped);
                    }
                    0
                }
                // Only SIGSTOP comes through the mask; it takes effect when we are done.
                Stop::Signal(signal) => signal,
                Stop::Group(_) | Stop::Trap | Stop::Syscall => 0,
                Stop::Exec => return Err(Error::Unexpected { tid: self.pid, status: 0 }),
            };
            running = stopped.resume(Resume::Cont, signal)?;
        }
    }
}

/// Returns the same fault for each of `count` steps.
pub(crate) fn fail(count: usize, fault: &Fault) -> Vec<Result<(), Fault>> {
    vec![Err(fault.clone()); count]
}

/// Returns the error that a system call has returned, if it has.
pub(crate) fn errno(result: i64) -> Option<i32> {
    (-4095..0).contains(&result).then_some(-result as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_before_the_list_and_results_are_found_in_it() {
        let base = Addr(0x7000);
        let mut batch = Batch::new(base);
        let (path, room) = (batch.lay(b"odd\0"), batch.lay(&[0; 16]));
        assert_eq!((path, room), (0x7000, 0x7008));
        assert_eq!((batch.add(3, [1, 2, 3, 4, 5, 6]), batch.add(5, [room; 6])), (0, 1));
        let (mut bytes, list) = batch.into_bytes();
        assert_eq!((bytes.len() as u64, list), (24 + 2 * CALL_BYTES + 8, 24));
        assert_eq!(bytes[bytes.len() - 8..], [0xff; 8]);
        // As the target's code does it.
        let mut put = |at: u64, word: i64| bytes[at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
        put(list, 42);
        put(list + CALL_BYTES, -2);
        put(8, 7);
        let made = BatchResults { base, bytes, list };
        assert_eq!((made.result(0), made.result(1), made.word(room)), (42, -2, 7));
        assert!(made.result(99) < 0, "what was not made has failed");
    }
}
