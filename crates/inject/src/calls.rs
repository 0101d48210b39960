// SPDX-License-Identifier: Apache-2.0
//! The memory system calls of a [`Target`](hugelift_core::target::Target), made by whatever can make a
//! system call in a process: [`Remote`](crate::remote::Remote), which holds the process stopped, and
//! [`Live`](crate::live::Live), which lends one of its threads for each call; and
//! [`Own`](crate::own::Own), the calling process itself.

use crate::arch;
use crate::frame::Call;
use crate::ptrace::Error;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::{POOL_FILE, Prot};
use hugelift_core::placement::{Nodes, Placement};
use hugelift_core::scratch::Scratch;
use hugelift_core::target::{Fault, FileHandle, Place, Source};
use hugelift_linux::machine::nodes;
use hugelift_linux::proc::memory::{self, MADV_COLLAPSE};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::{mapping, pagemap};
use std::io;

const MADV_POPULATE_WRITE: u64 = 23;
const MFD_HUGE_SHIFT: u32 = 26;
/// The flags for mapping a file whose bytes replace the program's. The pages are faulted in by the same
/// call, as each further call takes two switches to the target and back.
pub(crate) const FILE_COPY: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_POPULATE;
/// How many times an madvise(2) is made: the kernel may interrupt a long populate.
const TRIES: usize = 8;
/// Bytes that are mapped anew at a time: as many as the largest usual huge page has.
const MADE_ANEW: u64 = 2 << 20;
/// Bytes that the slow copy moves at a time: they stay within the second-level cache.
const CHUNK: usize = 256 << 10;

/// A process that can be made to make system calls.
pub(crate) trait Calls {
    /// Returns the process.
    fn pid(&self) -> i32;

    /// Returns the memory of ours in the process.
    fn scratch_mut(&mut self) -> &mut Scratch;

    /// Makes one system call in the process.
    ///
    /// # Errors
    /// [`Error`] if the call could not be made; what the call itself returned, a value or
    /// a negative errno, is the `Ok`.
    fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error>;

    /// Puts bytes where arguments of the next call can point to, and returns their address.
    ///
    /// # Errors
    /// [`Fault::Lost`]
    fn put(&mut self, bytes: &[u8]) -> Result<Addr, Fault>;

    /// Makes a system call whose failure is a [`Fault`].
    fn call(&mut self, call: &'static str, range: Range, number: i64, args: [u64; 6]) -> Result<u64, Fault> {
        match self.syscall(number, args) {
            Ok(value @ -4095..0) => Err(Fault::Call { call, range, errno: -value as i32 }),
            Ok(value) => Ok(value as u64),
            Err(error) => Err(Fault::Lost(error.to_string())),
        }
    }

    /// Does the work of `Target::mmap`.
    fn map(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        let (call, (number, args)) = mmap_call(range, prot, source, place);
        let got = self.call(call, range, number, args)?;
        let mapped = Range::sized(Addr(got), range.len()).unwrap_or_default();
        if mapped == range {
            if place == Place::Free {
                self.scratch_mut().add(range);
            }
            return Ok(());
        }
        // Kernels before 4.17 take the address as a hint.
        self.scratch_mut().add(mapped);
        self.release_all(mapped)?;
        Err(Fault::Call { call, range, errno: libc::EEXIST })
    }

    /// Does the work of `Target::release`.
    fn release_all(&mut self, range: Range) -> Result<(), Fault> {
        let mut result = Ok(());
        for part in self.scratch_mut().within(range) {
            match self.unmap(part) {
                Ok(()) => self.scratch_mut().give_up(part),
                Err(lost @ Fault::Lost(_)) => return Err(lost),
                // The others can be unmapped all the same.
                Err(fault) => result = Err(fault),
            }
        }
        result
    }

    /// munmap(2), of a range that is known to be ours.
    fn unmap(&mut self, range: Range) -> Result<(), Fault> {
        let args = [range.start.0, range.len(), 0, 0, 0, 0];
        self.call("munmap", range, libc::SYS_munmap, args).map(drop)
    }

    /// mprotect(2)
    fn protect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        let args = [range.start.0, range.len(), prot_bits(prot), 0, 0, 0];
        match self.call("mprotect", range, libc::SYS_mprotect, args) {
            Err(fault @ Fault::Call { errno: libc::EACCES | libc::EPERM, .. }) if prot.exec => {
                self.make_code(range, prot, fault)
            }
            done => done.map(drop),
        }
    }

    /// Makes scratch memory executable where memory may not become so, but be mapped so (PR_SET_MDWE, and the seccomp filter
    /// of systemd's `MemoryDenyWriteExecute=`): maps it anew, and writes its bytes from outside.
    ///
    /// # Errors
    /// `refused`, the fault of mprotect(2), if that is forbidden too or there are no huge pages.
    fn make_code(&mut self, range: Range, prot: Prot, refused: Fault) -> Result<(), Fault> {
        // Pages of a pool have a file, and cannot be written by others on some kernels.
        let is_plain =
            mapping::at(self.pid(), range.start).is_ok_and(|m| m.range.covers(range) && !m.is_file());
        // A memory policy would be lost.
        let placed = nodes::are_several().then(|| nodes::with_own_policy(Process::of(self.pid())));
        let is_placed = placed.is_some_and(|all| all.is_ok_and(|all| all.contains(&range.start)));
        if !is_plain || is_placed || self.scratch_mut().within(range) != [range] {
            return Err(refused);
        }
        let huge = self.count_huge(range)?;
        let mut at = range.start;
        while at < range.end {
            let piece = Range { start: at, end: range.end.min(Addr(at.0 + MADE_ANEW)) };
            match self.make_piece(piece, prot) {
                Err(Fault::Call { .. }) => return Err(refused),
                made => made?,
            }
            at = piece.end;
        }
        match self.count_huge(range)? {
            now if now < huge => Err(Fault::NotHuge { got: now, want: huge }),
            _ => Ok(()),
        }
    }

    /// Maps a piece of scratch memory anew with this protection, and with its bytes.
    fn make_piece(&mut self, piece: Range, prot: Prot) -> Result<(), Fault> {
        let pid = self.pid();
        let mut bytes = vec![0; piece.len() as usize];
        let read = memory::read(pid, piece.start, &mut bytes);
        if read.map_err(|e| refused("read", piece, &e))? < bytes.len() {
            return Err(Fault::Call { call: "read", range: piece, errno: libc::EFAULT });
        }
        let (call, (number, args)) = mmap_call(piece, prot, Source::Anonymous, Place::Over);
        self.call(call, piece, number, args)?;
        self.madvise("madvise(MADV_HUGEPAGE)", piece, libc::MADV_HUGEPAGE as u64)?;
        if self.hides_copies() {
            self.madvise("madvise(MADV_DONTFORK)", piece, libc::MADV_DONTFORK as u64)?;
        }
        self.write_anyway(piece.start, &bytes).map_err(|e| refused("write", piece, &e))
    }

    /// Returns whether no child inherits a copy before it is in its place: other threads may fork meanwhile.
    fn hides_copies(&self) -> bool {
        false
    }

    /// Writes from outside to memory that the process may write to itself.
    fn memory_write(&self, at: Addr, bytes: &[u8]) -> io::Result<()> {
        memory::write(self.pid(), at, bytes)
    }

    /// Writes to memory of ours in the process, whatever its protection.
    fn write_anyway(&self, at: Addr, bytes: &[u8]) -> io::Result<()> {
        memory::force(self.pid(), at, bytes)
    }

    /// mremap(2) with `MREMAP_FIXED`.
    fn move_over(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let (number, args) = mremap_call(from, to);
        self.call("mremap", from, number, args)?;
        self.scratch_mut().give_up(from);
        Ok(())
    }

    /// mbind(2)
    fn bind_to(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        const MPOL_MF_MOVE: u64 = 1 << 1;
        const MPOL_DEFAULT: u64 = 0;
        let (mode, nodes) = placement.map_or((MPOL_DEFAULT, Nodes::default()), Placement::mode);
        let mask = self.put(&nodes.mask().to_ne_bytes())?;
        // The kernel reads one bit less than `maxnode` says.
        let (mask, bits) = if nodes.is_empty() { (0, 0) } else { (mask.0, u64::from(u64::BITS) + 1) };
        let args = [range.start.0, range.len(), mode, mask, bits, MPOL_MF_MOVE];
        self.call("mbind", range, libc::SYS_mbind, args).map(drop)
    }

    /// Makes every page resident and writable.
    fn populate_all(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        match self.madvise("madvise(MADV_POPULATE_WRITE)", range, MADV_POPULATE_WRITE) {
            Err(Fault::Call { errno: libc::EINVAL | libc::ENOSYS, .. }) => self.touch(range, page),
            other => other,
        }
    }

    /// madvise(2) with `MADV_COLLAPSE`.
    fn collapse_all(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_COLLAPSE)", range, MADV_COLLAPSE as u64)
    }

    /// Returns the bytes that huge pages map.
    fn count_huge(&mut self, range: Range) -> Result<u64, Fault> {
        pagemap::huge_bytes_at_least(self.pid(), range).map_err(|e| match e.kind() {
            // The message names the line of smaps.
            io::ErrorKind::InvalidData => Fault::Lost(e.to_string()),
            _ => refused("pagemap and smaps", range, &e),
        })
    }

    /// Creates an unnamed file on hugetlb pages.
    fn make_memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        const CALL: &str = "memfd_create(MFD_HUGETLB)";
        let range = Range::sized(Addr(0), bytes).unwrap_or_default();
        // Beyond the limit ftruncate(2) would also send SIGXFSZ to the program.
        if largest_file(self.pid()).is_some_and(|limit| limit < bytes) {
            return Err(Fault::Call { call: "ftruncate", range, errno: libc::EFBIG });
        }
        let name = self.put(POOL_FILE.to_bytes_with_nul())?;
        let flags =
            u64::from(libc::MFD_CLOEXEC | libc::MFD_HUGETLB) | u64::from(page.log2()) << MFD_HUGE_SHIFT;
        let args = [name.0, flags, 0, 0, 0, 0];
        let fd = self.call(CALL, range, libc::SYS_memfd_create, args)?;
        let file = FileHandle(fd as i32);
        let sized = self.call("ftruncate", range, libc::SYS_ftruncate, [fd, bytes, 0, 0, 0, 0]);
        if let Err(fault) = sized {
            self.close_file(file)?;
            return Err(fault);
        }
        Ok(file)
    }

    /// close(2)
    fn close_file(&mut self, file: FileHandle) -> Result<(), Fault> {
        let args = [file.0 as u64, 0, 0, 0, 0, 0];
        self.call("close", Range::default(), libc::SYS_close, args).map(drop)
    }

    /// Makes an madvise(2), and makes it again if it was interrupted.
    fn madvise(&mut self, call: &'static str, range: Range, advice: u64) -> Result<(), Fault> {
        let args = [range.start.0, range.len(), advice, 0, 0, 0];
        for _ in 1..TRIES {
            match self.call(call, range, libc::SYS_madvise, args) {
                Err(Fault::Call { errno: libc::EINTR | libc::EAGAIN, .. }) => {}
                other => return other.map(drop),
            }
        }
        self.call(call, range, libc::SYS_madvise, args).map(drop)
    }

    /// Faults fresh pages in without `MADV_POPULATE_WRITE`: writes a zero to each from outside. Where the
    /// target itself would get SIGBUS, this returns an error.
    fn touch(&self, range: Range, page: PageSize) -> Result<(), Fault> {
        for at in (range.start.0..range.end.0).step_by(page.bytes() as usize) {
            self.memory_write(Addr(at), &[0]).map_err(|e| refused("touch", range, &e))?;
        }
        Ok(())
    }

    /// Copies without `MADV_POPULATE_READ`, through a buffer of this process: so a page that cannot be read
    /// is an error instead of a signal.
    fn copy_through(&self, from: Range, to: Addr) -> Result<(), Fault> {
        let mut buffer = vec![0; CHUNK.min(from.len() as usize)];
        let mut at = 0;
        while at < from.len() {
            let want = buffer.len().min((from.len() - at) as usize);
            let n = memory::read(self.pid(), Addr(from.start.0 + at), &mut buffer[..want])
                .and_then(|n| if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) })
                .map_err(|e| refused("read", from, &e))?;
            self.memory_write(Addr(to.0 + at), &buffer[..n]).map_err(|e| refused("write", from, &e))?;
            at += n as u64;
        }
        Ok(())
    }
}

/// Returns an mmap(2), and what it is called.
pub(crate) fn mmap_call(range: Range, prot: Prot, source: Source, place: Place) -> (&'static str, Call) {
    const PRIVATE_ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (call, flags, fd, offset) = match source {
        Source::Anonymous => ("mmap", PRIVATE_ANON, -1, 0),
        Source::Hugetlb(page) => {
            let size = (page.log2() as i32) << libc::MAP_HUGE_SHIFT;
            ("mmap(MAP_HUGETLB)", PRIVATE_ANON | libc::MAP_HUGETLB | size, -1, 0)
        }
        Source::Shared(file) => ("mmap of a hugetlb file", libc::MAP_SHARED, file.0, 0),
        Source::Private(file, offset) => ("mmap of a file", FILE_COPY, file.0, offset),
    };
    let fixed = match place {
        Place::Free | Place::Back => libc::MAP_FIXED_NOREPLACE,
        Place::Over => libc::MAP_FIXED,
    };
    let flags = (flags | fixed) as u64;
    let args = [range.start.0, range.len(), prot_bits(prot), flags, fd as i64 as u64, offset];
    (call, (libc::SYS_mmap, args))
}

/// Returns the mremap(2) that moves `from` over what is at `to`.
pub(crate) fn mremap_call(from: Range, to: Addr) -> Call {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    (libc::SYS_mremap, [from.start.0, from.len(), from.len(), flags, to.0, 0])
}

/// Maps `len` bytes of the file of an existing mapping at an address of the kernel's choice, by system calls that
/// `call` makes, and returns where, or a negative errno. `page` is a page of that mapping; the bytes begin
/// `ahead` bytes behind the page's own in the file.
///
/// The kernel joins two mappings of one file only if both came from the same open(2). So nothing is opened: the
/// page is mapped a second time (`MREMAP_DONTUNMAP`), and that mapping grows.
pub(crate) fn map_again<E>(
    page: Range,
    ahead: u64,
    len: u64,
    mut call: impl FnMut(i64, [u64; 6]) -> Result<i64, E>,
) -> Result<i64, E> {
    const MREMAP_DONTUNMAP: u64 = 4;
    let failed = |errno: i32| Ok(i64::from(-errno));
    let Some(whole) = ahead.checked_add(len) else { return failed(libc::EOVERFLOW) };
    let may_move = libc::MREMAP_MAYMOVE as u64;
    let flags = may_move | MREMAP_DONTUNMAP;
    let again = call(libc::SYS_mremap, [page.start.0, page.len(), page.len(), flags, 0, 0])?;
    if again < 0 {
        return Ok(again);
    }
    let grown = call(libc::SYS_mremap, [again as u64, page.len(), whole, may_move, 0, 0])?;
    if grown < 0 {
        call(libc::SYS_munmap, [again as u64, page.len(), 0, 0, 0, 0])?;
        return Ok(grown);
    }
    if ahead > 0 {
        call(libc::SYS_munmap, [grown as u64, ahead, 0, 0, 0, 0])?;
    }
    Ok(grown.wrapping_add(ahead.cast_signed()))
}

/// Returns how large a file process `pid` may write (`ulimit -f`).
fn largest_file(pid: i32) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: prlimit(2) writes to a live structure; a null pointer changes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            pid,
            libc::RLIMIT_FSIZE as libc::c_int,
            std::ptr::null::<libc::rlimit64>(),
            &raw mut limit,
        )
    };
    (result == 0).then_some(limit.rlim_cur)
}

/// Returns the fault for an error of access to the target's memory.
pub(crate) fn refused(call: &'static str, range: Range, error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(libc::ESRCH) => Fault::Lost("the process vanished".into()),
        errno => Fault::Call { call, range, errno: errno.unwrap_or(libc::EIO) },
    }
}

/// Returns `prot` as mmap(2) and mprotect(2) take it.
pub(crate) fn prot_bits(prot: Prot) -> u64 {
    let bit = |on, bit: i32| if on { bit as u64 } else { 0 };
    let bti = if prot.bti { arch::PROT_BTI } else { 0 };
    bit(prot.read, libc::PROT_READ)
        | bit(prot.write, libc::PROT_WRITE)
        | bit(prot.exec, libc::PROT_EXEC)
        | bti
}
