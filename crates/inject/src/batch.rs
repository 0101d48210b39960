// SPDX-License-Identifier: Apache-2.0
//! Makes several system calls of the target in one round trip: a stop of the target costs far more than
//! most calls.
//!
//! ```text
//!   data:  | what arguments point to | number, 6 arguments | ... | tgkill(self, SIGURG) | -1 |
//!                                      ^ BATCH walks this list; each result replaces its number
//! ```
//!
//! The last call sends SIGURG, which stops a traced target. A target whose tracer is gone ignores it (or
//! runs the program's handler, if there is one), makes all calls, and returns through its restore frame.

use crate::arch;
use crate::frame::{Call, DATA_BYTES};
use crate::inject::{self, BATCH_END, End};
use crate::ptrace::Error;
use crate::remote::Remote;
use hugelift_core::addr::Addr;
use hugelift_core::target::Fault;
use hugelift_linux::proc::memory;
use std::io;

/// Words of an entry of the list: the number of a call and its arguments.
const CALL_WORDS: u64 = 7;
/// Size of an entry of the list.
pub(crate) const CALL_BYTES: u64 = 8 * CALL_WORDS;

/// System calls to be made, and the bytes that their arguments point to.
#[derive(Debug)]
pub struct Batch {
    base: Addr,
    data: Vec<u8>,
    calls: Vec<Call>,
}

/// The data of a batch after its calls: their results, and the bytes that they wrote.
#[derive(Debug)]
pub struct BatchResults {
    base: Addr,
    bytes: Vec<u8>,
    list: u64,
}

impl Batch {
    /// Returns an empty batch whose data begins at `base` in the target.
    pub fn new(base: Addr) -> Batch {
        Batch { base, data: Vec::new(), calls: Vec::new() }
    }

    /// Adds `bytes` that an argument points to; returns their address in the target.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> u64 {
        let at = self.base.0 + self.data.len() as u64;
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        at
    }

    /// Adds a call; returns its index.
    pub fn add_call(&mut self, number: i64, args: [u64; 6]) -> usize {
        self.calls.push((number, args));
        self.calls.len() - 1
    }

    /// Returns the data, and the offset of the list in it.
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
    /// Returns the result of call `n`: a value, or a negative errno.
    pub fn result(&self, n: usize) -> i64 {
        self.word(self.base.0 + self.list + CALL_BYTES * n as u64) as i64
    }

    /// Returns the word at `addr`, an address that [`Batch::add_bytes`] returned, or one after it.
    pub fn word(&self, addr: u64) -> u64 {
        let at = addr.wrapping_sub(self.base.0) as usize;
        let bytes = self.bytes.get(at..).and_then(|b| b.first_chunk());
        // A result that could not be read counts as a failed call.
        bytes.map_or(-i64::from(libc::EFAULT) as u64, |b| u64::from_ne_bytes(*b))
    }
}

impl Remote {
    /// Returns a new batch. Its first call discards the target's own SIGCONT, if that is pending.
    pub(crate) fn batch(&mut self) -> Batch {
        let mut batch = Batch::new(self.restore_frame.data);
        if std::mem::take(&mut self.has_own_sigcont) {
            // rt_sigtimedwait(2) removes the signal if it is pending, and with this time does not wait.
            let set = batch.add_bytes(&(1u64 << (libc::SIGCONT - 1)).to_ne_bytes());
            let no_time = batch.add_bytes(&[0; 16]);
            batch.add_call(libc::SYS_rt_sigtimedwait, [set, 0, no_time, 8, 0, 0]);
        }
        batch
    }

    /// Makes all calls of `batch` in their order, whatever each returns.
    ///
    /// # Errors
    /// The calls could not be made, or not all of them.
    pub(crate) fn make(&mut self, mut batch: Batch) -> Result<BatchResults, Error> {
        let began = std::time::Instant::now();
        let (pid, tid) = (self.pid as u64, self.pid);
        let last = batch.add_call(libc::SYS_tgkill, [pid, pid, BATCH_END as u64, 0, 0, 0]) as u64;
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
        stopped.set_signal_mask(!(1 << (BATCH_END - 1)))?;
        let end = End::BatchSignal(Addr(base.0 + list + CALL_BYTES * last));
        let (stopped, _) = inject::run(stopped, &regs, end, &mut self.foreign_sigurg)?;
        // The target leaves the list, which the arguments of other calls will overwrite.
        stopped.set_regs(&self.restore_frame.at(arch::RETURN_AT))?;
        stopped.set_signal_mask(u64::MAX)?;
        let got = memory::read(tid, base, &mut bytes).map_err(os("read what system calls returned"))?;
        bytes.truncate(got);
        self.stopped = Some(stopped);
        tracing::trace!(calls = last, elapsed = ?began.elapsed(), "made");
        Ok(BatchResults { base, bytes, list })
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
        let (path, buffer) = (batch.add_bytes(b"odd\0"), batch.add_bytes(&[0; 16]));
        assert_eq!((path, buffer), (0x7000, 0x7008));
        assert_eq!((batch.add_call(3, [1, 2, 3, 4, 5, 6]), batch.add_call(5, [buffer; 6])), (0, 1));
        let (mut bytes, list) = batch.into_bytes();
        assert_eq!((bytes.len() as u64, list), (24 + 2 * CALL_BYTES + 8, 24));
        assert_eq!(bytes[bytes.len() - 8..], [0xff; 8]);
        // These are the results that the target's code would write.
        let mut put = |at: u64, word: i64| bytes[at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
        put(list, 42);
        put(list + CALL_BYTES, -2);
        put(8, 7);
        let made = BatchResults { base, bytes, list };
        assert_eq!((made.result(0), made.result(1), made.word(buffer)), (42, -2, 7));
        assert!(made.result(99) < 0, "a call that was not made has failed");
    }
}
