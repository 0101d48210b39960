// SPDX-License-Identifier: Apache-2.0
//! The calling process as a [`Target`]: it makes the system calls itself, while its other threads run on.
//!
//! The code that does this may lie in the very span that it replaces. So a span is replaced by one mremap(2),
//! after all bytes have been prepared: a thread that executes the code meanwhile waits in a page fault and finds
//! the same bytes ([`crate::live`]).
//!
//! Before a call that replaces a mapping, the mapping must still be the one of the plan, and the loader can
//! unmap no object until the call has returned ([`super::loaded`]).

use crate::calls::{Calls, map_again, mremap_call, prot_bits, refused};
use crate::loaded;
use crate::planned::{Planned, has_file};
use crate::ptrace::Error;
use crate::restore::{Compare, NotPutBack, Remap};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::placement::Placement;
use hugelift_core::scratch::Scratch;
use hugelift_core::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use hugelift_linux::proc::mapping::Mappings;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::{memory, pagemap};
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// How many times a mapping is checked again because the loader has unloaded an object since.
const CHECKS: usize = 100;
/// How many of these checks are made without the loader's lock.
const CHECKS_OUTSIDE: usize = 3;
/// How long a check under the loader's lock may take: the loader and each fork wait for it. A fork goes on after a second.
const LONGEST_INSIDE: Duration = Duration::from_millis(300);

/// Why a call was not made.
#[derive(Debug)]
enum NotMade<S> {
    /// The check of the mappings there found a reason.
    Stopped(S),
    /// Something else is mapped there by now, or the code was written to, as by a debugger. All is as before.
    Changed,
    /// The loader could not be kept from unmapping objects, or not for as long as a check takes. All is as before.
    Unheld,
    /// The call would have failed, or has failed, with this errno. All is as before.
    Refused(i32),
    /// The call has failed with this errno, and what it has unmapped could not be restored.
    Lost(i32),
}

impl<S> NotMade<S> {
    /// Returns the fault of a call. It is never [`Fault::Call`]. After that fault the caller checks whether the call has
    /// unmapped its destination, but by then another thread may have mapped memory there.
    fn fault(self, call: &'static str, range: Range, stopped: impl FnOnce(S) -> Fault) -> Fault {
        let text = |errno| Fault::Call { call, range, errno }.to_string();
        match self {
            NotMade::Stopped(why) => stopped(why),
            NotMade::Changed => Fault::Kept("another mapping is there now, or it was written to".into()),
            NotMade::Unheld => {
                Fault::Kept("the dynamic loader could not be kept from unmapping objects meanwhile".into())
            }
            NotMade::Refused(errno) => Fault::Kept(text(errno)),
            NotMade::Lost(errno) => Fault::Lost(format!("{}; memory could not be restored", text(errno))),
        }
    }
}

/// The calling process.
///
/// Data that is written to may only be replaced while the process has one thread. The caller sees to that.
pub struct Own {
    pid: i32,
    planned: Planned,
    /// The memory of ours.
    scratch: Scratch,
    /// Bytes that the next call's arguments point to.
    data: Vec<u8>,
    /// Files that [`Target::map_stored`] maps, by their index. They are closed with this structure.
    files: Vec<File>,
}

impl Own {
    /// Prepares a change of the calling process, which has these mappings; `files` are those that
    /// [`MapStored::entry`] counts.
    pub fn new(mappings: &[Mapping], files: Vec<File>) -> Own {
        let (pid, scratch) = (std::process::id().cast_signed(), Scratch::default());
        Own { pid, planned: Planned::of(mappings), scratch, data: Vec::new(), files }
    }

    /// Makes system calls that rest on `over` being mapped as planned: `call` gets the mappings there, and returns a
    /// value or a negative errno. `check` reads what is mapped there before the call. If a shared object is unloaded
    /// after it, `check` is called again. Neither may allocate.
    ///
    /// # Errors
    /// No call was made.
    fn while_mapped<S>(
        &self,
        over: Range,
        mut check: impl FnMut() -> Result<(), S>,
        mut call: impl FnMut(&[Mapping]) -> i64,
    ) -> Result<i64, NotMade<S>> {
        let expected = self.planned.all_at(over).ok_or(NotMade::Changed)?;
        let mut took = Duration::ZERO;
        for n in 0..CHECKS {
            // The check takes long. But where objects are unloaded all the time, the loader has to wait for it.
            let is_inside = n >= CHECKS_OUTSIDE;
            if is_inside && took > LONGEST_INSIDE {
                // A fork would not wait to the end, and its child would find the loader's lock taken for ever.
                return Err(NotMade::Unheld);
            }
            let seen = loaded::unloads().ok_or(NotMade::Unheld)?;
            let mappings = Mappings::open(Process::OWN).map_err(|_| NotMade::Changed)?;
            let is_unchanged = |m: &Mapping| mappings.has(m) && !self.is_written(m, over);
            if !expected.iter().all(is_unchanged) {
                return Err(NotMade::Changed);
            }
            if !is_inside {
                let began = Instant::now();
                check().map_err(NotMade::Stopped)?;
                took = began.elapsed();
            }
            let made = loaded::hold(|unloads| {
                (unloads == seen).then(|| {
                    if is_inside {
                        check().map_err(NotMade::Stopped)?;
                    }
                    // Another thread may have made it writable during the check.
                    match expected.iter().all(|m| mappings.answers(m).unwrap_or(true)) {
                        true => Ok(call(&expected)),
                        false => Err(NotMade::Changed),
                    }
                })
            });
            if let Some(done) = made.ok_or(NotMade::Unheld)? {
                return done;
            }
        }
        Err(NotMade::Unheld)
    }

    /// Moves `from` over `over`, unless `check` finds a reason against it. Data may have been written to since it was
    /// copied, by this very code, so it is copied again, and nothing is written between that and the move.
    ///
    /// What a failed call may have unmapped is restored here, where nobody else can take the addresses.
    fn move_checked<S>(
        &mut self,
        from: Range,
        over: Range,
        check: impl FnMut() -> Result<(), S>,
    ) -> Result<(), NotMade<S>> {
        let pid = self.pid;
        let (number, args) = mremap_call(from, over.start);
        let mut is_lost = false;
        let made = self.while_mapped(over, check, |mappings| {
            let mut replace = || {
                // fork(3) waits while this runs, so its child does not inherit a copy that is not in its place yet.
                let advised = advise(from, libc::MADV_DOFORK);
                if advised < 0 {
                    return advised;
                }
                match syscall(number, args) {
                    error @ ..0 => {
                        advise(from, libc::MADV_DONTFORK);
                        is_lost = !restored(pid, from, over, mappings);
                        error
                    }
                    value => value,
                }
            };
            match mappings.iter().any(|m| m.prot.write) {
                false => replace(),
                true => without_signals(|| match copy_by_kernel(pid, over, from.start) {
                    error @ ..0 => error,
                    _ => replace(),
                }),
            }
        })?;
        match made {
            error @ ..0 if is_lost => Err(NotMade::Lost(-error as i32)),
            error @ ..0 => Err(NotMade::Refused(-error as i32)),
            _ => {
                self.scratch.give_up(from);
                self.planned.forget(over);
                Ok(())
            }
        }
    }

    /// Returns whether a mapping of a file no longer holds the file's bytes, which were copied.
    fn is_written(&self, expected: &Mapping, over: Range) -> bool {
        let here = expected.range.intersect(over).unwrap_or_default();
        has_file(expected) && !expected.prot.write && pagemap::is_written(self.pid, here).unwrap_or(true)
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

/// Makes an madvise(2), and returns its value or a negative errno. It allocates nothing.
fn advise(range: Range, advice: i32) -> i64 {
    syscall(libc::SYS_madvise, [range.start.0, range.len(), advice as u64, 0, 0, 0])
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

/// Maps anew what a failed mremap(2) has unmapped of `over`, with the bytes of its copy, and returns whether all is as
/// before. The call usually leaves its destination alone; msync(2) with MS_ASYNC fails where nothing is mapped, and does
/// nothing else: another thread may have given the memory another protection by now, which it must keep.
fn restored(pid: i32, copy: Range, over: Range, mappings: &[Mapping]) -> bool {
    const NEW: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    mappings.iter().filter_map(|m| Some((m.range.intersect(over)?, prot_bits(m.prot)))).all(|(here, prot)| {
        if syscall(libc::SYS_msync, [here.start.0, here.len(), libc::MS_ASYNC as u64, 0, 0, 0]) == 0 {
            return true;
        }
        let from = Addr(copy.start.0 + (here.start.0 - over.start.0));
        let args = [here.start.0, here.len(), prot_bits(Prot::RW), NEW as u64, u64::MAX, 0];
        syscall(libc::SYS_mmap, args) as u64 == here.start.0
            && Range::sized(from, here.len()).is_some_and(|from| copy_by_kernel(pid, from, here.start) >= 0)
            && syscall(libc::SYS_mprotect, [here.start.0, here.len(), prot, 0, 0, 0]) == 0
    })
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

    fn scratch_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn hides_copies(&self) -> bool {
        true
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
        // Nothing keeps the addresses, and if mapping a file over the span failed, it would have unmapped the code that
        // undoes it.
        if place == Place::Over {
            return Err(Fault::Lost("a span of the calling process is replaced by mremap(2) alone".into()));
        }
        self.map(range, prot, source, place)?;
        // A child that another thread forks meanwhile would share its huge pages, which the next write then
        // splits.
        self.madvise("madvise(MADV_DONTFORK)", range, libc::MADV_DONTFORK as u64)
    }

    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn release(&mut self, range: Range) -> Result<(), Fault> {
        self.release_all(range)
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        self.protect(range, prot)
    }

    /// Moves a copy over what it replaces.
    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let fault = |why: NotMade<Infallible>| why.fault("mremap", from, |never| match never {});
        let over = Range::sized(to, from.len()).ok_or_else(|| fault(NotMade::Refused(libc::EINVAL)))?;
        self.move_checked(from, over, || Ok(())).map_err(fault)
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

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.close_file(file)
    }
}

impl Remap for Own {
    fn map_again(&mut self, page: Range, page_offset: u64, offset: u64, len: u64) -> Result<Range, Fault> {
        const CALL: &str = "mremap(MREMAP_DONTUNMAP)";
        let failed = |errno| Fault::Call { call: CALL, range: page, errno };
        let ahead = offset.checked_sub(page_offset).ok_or_else(|| failed(libc::EINVAL))?;
        let again = |_: &[Mapping]| {
            let made: Result<i64, Infallible> =
                map_again(page, ahead, len, |number, args| Ok(syscall(number, args)));
            let at = made.unwrap_or_else(|never| match never {});
            if let Some(range) = u64::try_from(at).ok().and_then(|at| Range::sized(Addr(at), len)) {
                // If this fails, a child inherits pages of the file that it does not use.
                advise(range, libc::MADV_DONTFORK);
            }
            at
        };
        let made = self.while_mapped(page, || Ok::<(), Infallible>(()), again);
        match made.map_err(|why| why.fault(CALL, page, |never| match never {}))? {
            error @ ..0 => Err(failed(-error as i32)),
            at => {
                let mapped = Range::sized(Addr(at as u64), len).ok_or_else(|| failed(libc::EINVAL))?;
                self.scratch.add(mapped);
                Ok(mapped)
            }
        }
    }

    /// Compares just before the move, so that nothing else can take the place of the copy in between.
    fn put_back(&mut self, mapped: Range, over: Range) -> Result<(), NotPutBack> {
        let mut compare = Compare::new(Process::OWN).map_err(NotPutBack::Unreadable)?;
        let check = || match compare.first_difference(over, mapped) {
            Ok(None) => Ok(()),
            Ok(Some(at)) => Err(Ok(at)),
            Err(errno) => Err(Err(errno)),
        };
        self.move_checked(mapped, over, check).map_err(|why| match why {
            NotMade::Stopped(Ok(at)) => NotPutBack::Differs(at),
            NotMade::Stopped(Err(errno)) => NotPutBack::Unreadable(io::Error::from_raw_os_error(errno)),
            why => NotPutBack::Fault(why.fault("mremap", mapped, |_| Fault::Kept(String::new()))),
        })
    }

    fn map_file(&mut self, file: File, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault> {
        let range = Range::sized(Addr(0), len).unwrap_or_default();
        let (flags, fd) = (libc::MAP_PRIVATE as u64, file.as_raw_fd() as u64);
        let args = [0, len, prot_bits(prot), flags, fd, offset];
        let at = self.call("mmap of a file", range, libc::SYS_mmap, args)?;
        let failed = Fault::Call { call: "mmap of a file", range, errno: libc::EINVAL };
        let mapped = Range::sized(Addr(at), len).ok_or(failed)?;
        self.scratch.add(mapped);
        // If this fails, a child inherits pages of the file that it does not use.
        advise(mapped, libc::MADV_DONTFORK);
        Ok(mapped)
    }
}

#[cfg(test)]
mod tests;
