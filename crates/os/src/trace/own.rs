// SPDX-License-Identifier: Apache-2.0
//! The calling process as a [`Target`]: it makes the system calls itself, while its other threads run on.
//!
//! The code that does this may lie in the very span that it replaces. So a span is replaced by one mremap(2),
//! after all bytes have been prepared: a thread that executes the code meanwhile waits in a page fault and finds
//! the same bytes ([`crate::trace::live`]).
//!
//! Before a call that replaces a mapping, the mapping must still be the one of the plan, and the loader can
//! unmap no object until the call has returned ([`super::loaded`]).

use crate::proc::{memory, pagemap};
use crate::trace::calls::{Calls, map_again, mremap_call, prot_bits, refused};
use crate::trace::live::files::is_still_mapped;
use crate::trace::loaded;
use crate::trace::ptrace::Error;
use crate::trace::restore::Remap;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::placement::Placement;
use hugelift_core::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// How many times a mapping is looked at again because the loader has unloaded an object since.
const LOOKS: usize = 100;

/// The calling process.
///
/// Data that is written to may only be replaced while the process has one thread. The caller sees to that.
pub struct Own {
    pid: i32,
    /// The private mappings as the plan knows them, less what was replaced.
    planned: Vec<Mapping>,
    /// Bytes that the next call's arguments point to.
    data: Vec<u8>,
    /// Files that [`Target::map_stored`] maps, by their index. They are closed with this structure.
    files: Vec<File>,
}

impl Own {
    /// Prepares a change of the calling process, which has these mappings; `files` are those that
    /// [`MapStored::entry`] counts.
    pub fn new(mappings: &[Mapping], files: Vec<File>) -> Own {
        let planned = mappings.iter().filter(|m| !m.shared).cloned().collect();
        Own { pid: std::process::id().cast_signed(), planned, data: Vec::new(), files }
    }

    /// Returns the mappings of the plan that `over` lies in.
    ///
    /// # Errors
    /// They do not cover it; `fault` says what failed.
    fn mapped_at(&self, over: Range, fault: impl Fn(i32) -> Fault) -> Result<Vec<Mapping>, Fault> {
        let within = |m: &&Mapping| m.range.intersect(over).is_some();
        let mappings: Vec<Mapping> = self.planned.iter().filter(within).cloned().collect();
        let covered: u64 = mappings.iter().filter_map(|m| m.range.intersect(over)).map(Range::len).sum();
        match covered == over.len() {
            true => Ok(mappings),
            false => Err(fault(libc::ESTALE)),
        }
    }

    /// Makes system calls that rest on `over` being mapped as planned: `call` returns a value or a negative
    /// errno. It must not allocate.
    ///
    /// # Errors
    /// The fault of an errno; ESTALE if something else is mapped by now, or the code was written to, as by a
    /// debugger. No call was made then.
    fn while_mapped(
        &self,
        over: Range,
        fault: impl Fn(i32) -> Fault,
        mut call: impl FnMut(bool) -> i64,
    ) -> Result<i64, Fault> {
        let expected = self.mapped_at(over, &fault)?;
        let is_written = expected.iter().any(|m| m.prot.write);
        for _ in 0..LOOKS {
            let seen = loaded::unloads();
            if !expected.iter().all(|m| self.is_unchanged(m, over)) {
                return Err(fault(libc::ESTALE));
            }
            let made = loaded::hold(|unloads| (unloads == seen).then(|| call(is_written)));
            match made.flatten() {
                Some(error @ -4095..0) => return Err(fault(-error as i32)),
                Some(value) => return Ok(value),
                None => {}
            }
        }
        Err(fault(libc::EBUSY))
    }

    /// Returns whether a mapping is still there, and holds what was copied.
    fn is_unchanged(&self, expected: &Mapping, over: Range) -> bool {
        let has_file = expected.is_file() && !expected.is_anonymous_hugetlb() && !expected.prot.write;
        let here = expected.range.intersect(over).unwrap_or_default();
        is_still_mapped(self.pid, expected)
            && !(has_file && pagemap::is_written(self.pid, here).unwrap_or(true))
    }

    /// Takes what was replaced out of the mappings of the plan.
    fn forget(&mut self, over: Range) {
        let rest = |m: Mapping| {
            m.range.minus(over).into_iter().map(move |range| {
                let ahead = if m.is_file() { range.start.0 - m.range.start.0 } else { 0 };
                Mapping { range, offset: m.offset + ahead, ..m.clone() }
            })
        };
        self.planned = std::mem::take(&mut self.planned).into_iter().flat_map(rest).collect();
    }
}

/// Makes a system call in the calling thread, and returns its value or a negative errno.
fn syscall(number: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the callers in this file make memory calls that the plan, or the guard of a scratch range, allows.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => io::Error::last_os_error().raw_os_error().map_or(-1, |errno| i64::from(-errno)),
        value => value,
    }
}

/// Copies within the process by process_vm_readv(2), which reports memory that is gone as an error. Returns the
/// bytes copied or a negative errno. It allocates nothing and writes to no memory but `to`.
fn copy_by_kernel(pid: i32, from: Range, to: Addr) -> i64 {
    let mut done = 0;
    while done < from.len() {
        let iovec = |at: u64| libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: (from.len() - done) as usize,
        };
        let (local, remote) = (iovec(to.0 + done), iovec(from.start.0 + done));
        let (local, remote) = ((&raw const local) as u64, (&raw const remote) as u64);
        match syscall(libc::SYS_process_vm_readv, [pid as u64, local, 1, remote, 1, 0]) {
            0 => return i64::from(-libc::EFAULT),
            error @ ..0 => return error,
            bytes => done += bytes as u64,
        }
    }
    done.cast_signed()
}

/// Runs `work` while no signal handler can run in this thread.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    const BYTES: u64 = 8; // the kernel's sigset_t
    let (all, mut old) = (u64::MAX, 0_u64);
    let mask =
        |how: i32, set: u64, old: u64| syscall(libc::SYS_rt_sigprocmask, [how as u64, set, old, BYTES, 0, 0]);
    mask(libc::SIG_SETMASK, (&raw const all) as u64, (&raw mut old) as u64);
    let result = work();
    mask(libc::SIG_SETMASK, (&raw const old) as u64, 0);
    result
}

impl Calls for Own {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        Ok(syscall(number, args))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Addr, Fault> {
        self.data = bytes.to_vec();
        Ok(Addr(self.data.as_ptr() as u64))
    }
}

impl Target for Own {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        // If mapping a file over the span failed, it would have unmapped the code that undoes it.
        if place == Place::Over && source != Source::Anonymous {
            return Err(Fault::Lost("a span of the calling process is replaced by mremap(2) alone".into()));
        }
        self.map(range, prot, source, place)?;
        // A child that another thread forks meanwhile would share its huge pages, which the next write then
        // splits.
        match place {
            Place::Over => Ok(()),
            Place::Free => self.madvise("madvise(MADV_DONTFORK)", range, libc::MADV_DONTFORK as u64),
        }
    }

    fn munmap(&mut self, range: Range) -> Result<(), Fault> {
        self.unmap(range)
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        self.protect(range, prot)
    }

    /// Moves a copy over what it replaces. Data may have been written to since it was copied, by this very
    /// code, so it is copied again, and nothing is written between that and the move.
    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let fault = |errno| Fault::Call { call: "mremap", range: from, errno };
        let over = Range::sized(to, from.len()).ok_or_else(|| fault(libc::EINVAL))?;
        self.madvise("madvise(MADV_DOFORK)", from, libc::MADV_DOFORK as u64)?;
        let pid = self.pid;
        let (number, args) = mremap_call(from, to);
        self.while_mapped(over, fault, |is_written| match is_written {
            false => syscall(number, args),
            true => without_signals(|| match copy_by_kernel(pid, over, from.start) {
                error @ ..0 => error,
                _ => syscall(number, args),
            }),
        })?;
        self.forget(over);
        Ok(())
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_HUGEPAGE)", range, libc::MADV_HUGEPAGE as u64)
    }

    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        self.bind_to(range, placement)
    }

    fn populate(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        self.populate_all(range, page)
    }

    fn fault_in(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        memory::touch(self.pid, range, page.bytes()).map_err(|e| refused("process_vm_readv", range, &e))
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        match copy_by_kernel(self.pid, from, to) {
            // Memory that may only be executed, or a sandbox: by /proc/PID/mem.
            ..0 => self.copy_through(from, to),
            _ => Ok(()),
        }
    }

    fn collapse(&mut self, range: Range) -> Result<(), Fault> {
        self.collapse_all(range)
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.count_huge(range)
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        self.make_memfd(page, bytes)
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        let mut map = |copy: &MapStored| {
            let bad = Fault::Call { call: "mmap of a file", range: copy.range, errno: libc::EBADF };
            let file = FileHandle(self.files.get(copy.entry).ok_or(bad)?.as_raw_fd());
            self.mmap(copy.range, copy.prot, Source::Private(file, copy.offset), Place::Free)
        };
        copies.iter().map(&mut map).collect()
    }

    fn move_all(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        moves.iter().map(|(from, to)| self.mremap(*from, *to)).collect()
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.close_file(file)
    }
}

impl Remap for Own {
    fn map_again(&mut self, page: Range, page_offset: u64, offset: u64, len: u64) -> Result<Range, Fault> {
        let fault = |errno| Fault::Call { call: "mremap(MREMAP_DONTUNMAP)", range: page, errno };
        let ahead = offset.checked_sub(page_offset).ok_or_else(|| fault(libc::EINVAL))?;
        let again = |_| {
            let made: Result<i64, Infallible> =
                map_again(page, ahead, len, |number, args| Ok(syscall(number, args)));
            made.unwrap_or_else(|never| match never {})
        };
        let at = self.while_mapped(page, fault, again)?;
        Range::sized(Addr(at as u64), len).ok_or_else(|| fault(libc::EINVAL))
    }

    fn map_file(&mut self, file: File, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault> {
        let range = Range::sized(Addr(0), len).unwrap_or_default();
        let (flags, fd) = (libc::MAP_PRIVATE as u64, file.as_raw_fd() as u64);
        let args = [0, len, prot_bits(prot), flags, fd, offset];
        let at = self.call("mmap of a file", range, libc::SYS_mmap, args)?;
        Range::sized(Addr(at), len).ok_or(Fault::Call { call: "mmap of a file", range, errno: libc::EINVAL })
    }
}

#[cfg(test)]
mod tests;
