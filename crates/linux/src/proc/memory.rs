// SPDX-License-Identifier: Apache-2.0
//! Reading and writing another process's memory: by process_vm_readv(2), or by
//! `/proc/PID/mem` where a sandbox forbids that call.
//!
//! Bytes that must be written in spite of the target's protections go through
//! `hugelift_inject::ptrace::Stopped::poke`.

use crate::proc::procfs::{ProcError, Process, errno};
use hugelift_core::addr::{Addr, Range};
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// `MADV_COLLAPSE` of Linux 6.1 (`include/uapi/asm-generic/mman-common.h`), which not every C library has.
pub const MADV_COLLAPSE: libc::c_int = 25;

fn iovec(base: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut libc::c_void, iov_len: len }
}

/// Fills `into` from `addr` of process `pid`; returns how many bytes were read, fewer where the memory ends.
///
/// # Errors
/// errno(3): EPERM, ESRCH, EFAULT if not even the first byte is there.
pub fn read(pid: i32, addr: Addr, into: &mut [u8]) -> io::Result<usize> {
    let local = iovec(into.as_mut_ptr() as u64, into.len());
    let remote = iovec(addr.0, into.len());
    // SAFETY: process_vm_readv(2) writes at most local.iov_len bytes to `into`, which
    // lives through the call; the remote address is checked by the kernel.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).or_else(|_| match io::Error::last_os_error() {
        e if is_forbidden(&e) => File::open(mem(pid))?.read_at(into, addr.0),
        e => Err(e),
    })
}

/// Reads the memory of a process without allocating any of its own.
pub struct Reader {
    pid: i32,
    /// `/proc/PID/mem`, where a sandbox forbids process_vm_readv(2).
    mem: Option<File>,
}

impl Reader {
    /// # Errors
    /// errno(3) of open(2), where the call is forbidden.
    pub fn new(process: Process) -> io::Result<Reader> {
        let pid = process.pid().cast_signed();
        // A call that has nothing to read fails only where it is forbidden.
        // SAFETY: no memory is read or written.
        let allowed =
            unsafe { libc::process_vm_readv(pid, std::ptr::null(), 0, std::ptr::null(), 0, 0) } == 0;
        let mem = if allowed { None } else { Some(File::open(process.path("mem"))?) };
        Ok(Reader { pid, mem })
    }

    /// Reads by `/proc/PID/mem` alone, so that memory which a child of fork(2) has too stays one copy. process_vm_readv(2) pins
    /// pages, and for that the kernel first makes them the process's own (`FOLL_PIN`, Linux 5.19).
    ///
    /// # Errors
    /// errno(3) of open(2)
    pub fn without_pins(process: Process) -> io::Result<Reader> {
        Ok(Reader { pid: process.pid().cast_signed(), mem: Some(File::open(process.path("mem"))?) })
    }

    /// Fills `into` from `addr` on; returns how many bytes were read, fewer where the memory ends.
    ///
    /// # Errors
    /// errno(3)
    pub fn read(&self, addr: Addr, into: &mut [u8]) -> Result<usize, i32> {
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        if let Some(mem) = &self.mem {
            return mem.read_at(into, addr.0).map_err(errno);
        }
        let (local, remote) = (iovec(into.as_mut_ptr() as u64, into.len()), iovec(addr.0, into.len()));
        // SAFETY: process_vm_readv(2) writes at most local.iov_len bytes to `into`, which
        // lives through the call; the remote address is checked by the kernel.
        let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        usize::try_from(n).map_err(|_| errno(io::Error::last_os_error()))
    }
}

/// Reads one byte at every `step` bytes of `range` in process `pid`, so that the kernel maps these pages.
///
/// # Errors
/// See [`read`]. The error is about the first page that cannot be read. The pages before it are mapped.
pub fn touch(pid: i32, range: Range, step: u64) -> io::Result<()> {
    // UIO_MAXIOV of Linux.
    const MOST: usize = 1024;
    let all: Vec<_> = (range.start.0..range.end.0).step_by(step as usize).map(|at| iovec(at, 1)).collect();
    let mut bytes = [0u8; MOST];
    for remote in all.chunks(MOST) {
        let local = iovec(bytes.as_mut_ptr() as u64, remote.len());
        // SAFETY: process_vm_readv(2) writes at most local.iov_len bytes to `bytes`, which
        // lives through the call; the remote addresses are checked by the kernel.
        let n = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), remote.len() as u64, 0) };
        // After a short read, reading the first missing byte alone gives the errno.
        for missing in &remote[usize::try_from(n).unwrap_or(0)..] {
            read_array::<1>(pid, Addr(missing.iov_base as u64))?;
        }
    }
    Ok(())
}

/// Returns whether `/proc/PID/mem` may succeed where the call failed: this kernel or sandbox has no such
/// call, or, for a read, the memory may only be executed.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EFAULT))
}

fn mem(pid: i32) -> PathBuf {
    Process::of(pid).path("mem")
}

/// Reads exactly `N` bytes at `addr`.
///
/// # Errors
/// See [`read`]; `UnexpectedEof` where the memory ends.
pub fn read_array<const N: usize>(pid: i32, addr: Addr) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if read(pid, addr, &mut bytes)? < N {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Writes all of `bytes` at `addr` of our tracee `pid`, whatever the protection there.
///
/// # Errors
/// errno(3)
pub fn force(pid: i32, addr: Addr, bytes: &[u8]) -> io::Result<()> {
    File::options().write(true).open(mem(pid))?.write_all_at(bytes, addr.0)
}

/// Writes all of `bytes` at `addr` of process `pid`.
///
/// # Errors
/// errno(3); `WriteZero` where the memory ends.
pub fn write(pid: i32, addr: Addr, bytes: &[u8]) -> io::Result<()> {
    let local = iovec(bytes.as_ptr() as u64, bytes.len());
    let remote = iovec(addr.0, bytes.len());
    // SAFETY: process_vm_writev(2) reads local.iov_len bytes of `bytes`, which lives
    // through the call; the remote address is checked by the kernel.
    let n = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    match usize::try_from(n) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => match io::Error::last_os_error() {
            // EFAULT is final: `/proc/PID/mem` would also write where the target itself cannot.
            e if is_forbidden(&e) && e.raw_os_error() != Some(libc::EFAULT) => {
                File::options().write(true).open(mem(pid))?.write_all_at(bytes, addr.0)
            }
            e => Err(e),
        },
    }
}

impl Process {
    /// Reads its memory at `addr` into `buffer`; returns how many bytes from `addr` on were mapped, at least
    /// one. Memory that a child of fork(2) has too stays one copy, if `/proc/PID/mem` can be opened.
    ///
    /// # Errors
    /// [`ProcError::Memory`] if not even the first byte can be read.
    pub fn read_memory(self, addr: Addr, buffer: &mut [u8]) -> Result<usize, ProcError> {
        let bytes = buffer.len();
        let failed = |errno| match errno {
            Errno::ESRCH => ProcError::Vanished { pid: self.pid(), path: self.path("mem").into() },
            _ => ProcError::Memory { pid: self.pid(), addr, bytes, errno },
        };
        if bytes == 0 {
            return Ok(0);
        }
        if let Ok(got @ 1..) = Reader::without_pins(self)
            .map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
            .and_then(|memory| memory.read(addr, buffer))
        {
            return Ok(got);
        }
        match read(self.pid().cast_signed(), addr, buffer) {
            Ok(0) => Err(failed(Errno::EIO)),
            Ok(got) => Ok(got),
            Err(e) => Err(failed(errno(&e))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::base_page;
    use crate::proc::pagemap;
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn touched_pages_are_mapped_up_to_the_first_hole() {
        let own = std::process::id().cast_signed();
        // More than fit into one call, and a hole behind them.
        let (page, count) = (base_page().bytes(), 1500);
        let length = std::num::NonZeroUsize::new((count * page) as usize).unwrap();
        let (prot, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
        // SAFETY: mmap(2) at an address of the kernel's choice; unmapped below, and used by nothing else.
        let start = unsafe { mmap_anonymous(None, length, prot, flags) }.unwrap();
        let all = Range::sized(Addr(start.as_ptr() as u64), count * page).unwrap();
        let half = Range { end: Addr(all.start.0 + 1200 * page), ..all };
        // SAFETY: the second part of that mapping.
        unsafe { munmap(start.byte_add((half.len()) as usize), (all.len() - half.len()) as usize) }.unwrap();
        let pagemap = pagemap::open(own).unwrap();
        touch(own, half, page).unwrap();
        for at in 0..1200 {
            let one = Range::sized(Addr(half.start.0 + at * page), page).unwrap();
            match pagemap::first_present(&pagemap, one) {
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOTTY), "before Linux 6.7"),
                found => assert_eq!(found.unwrap(), Some(one.start), "page {at}"),
            }
        }
        assert!(touch(own, all, page).is_err());
        // SAFETY: what is left of the mapping.
        unsafe { munmap(start, half.len() as usize) }.unwrap();
    }

    #[test]
    fn memory_is_read_up_to_its_end() {
        let text = *b"known bytes";
        let mut got = [0; 11];
        let addr = Addr(text.as_ptr() as usize as u64);
        assert_eq!(Process::OWN.read_memory(addr, &mut got).unwrap(), 11);
        assert_eq!(got, text);
        let error = Process::OWN.read_memory(Addr(16), &mut got).unwrap_err();
        assert!(matches!(error, ProcError::Memory { addr: Addr(16), bytes: 11, .. }), "{error}");
    }

    #[test]
    fn a_process_that_is_gone_has_no_memory() {
        let error = Process::new(1 << 23).read_memory(Addr(4096), &mut [0; 8]).unwrap_err();
        assert!(matches!(error, ProcError::Vanished { .. }), "{error}");
    }
}
