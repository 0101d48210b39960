// SPDX-License-Identifier: Apache-2.0
//! The process under ptrace as a [`Target`]: changes it by system calls that it makes itself.

use crate::arch::{self, COPY_AT, Regs, SYSCALL_AT};
use crate::proc::memory::{self, MADV_COLLAPSE};
use crate::proc::pagemap;
use crate::proc::procfs::{ProcError, Process, Status};
use crate::trace::auxv_slots::AuxvSlots;
use crate::trace::frame::{Call, RestoreFrame};
use crate::trace::inject::{End, Ending};
use crate::trace::ptrace::{Error, Stopped};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Prot;
use hugelift_core::placement::{Nodes, Placement};
use hugelift_core::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io;

const MADV_POPULATE_READ: u64 = 22;
const MADV_POPULATE_WRITE: u64 = 23;
const MFD_HUGE_SHIFT: u32 = 26;
/// The flags for mapping a file whose bytes replace the program's. The pages are faulted in by the same
/// call, as each further call takes two switches to the target and back.
pub(crate) const FILE_COPY: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_POPULATE;
/// How many times an madvise(2) is made: the kernel may interrupt a long populate.
const TRIES: usize = 8;
/// Bytes that the slow copy moves at a time: they stay within the second-level cache.
const CHUNK: usize = 256 << 10;

/// A stopped process with its [`RestoreFrame`].
#[derive(Debug)]
pub struct Remote {
    pub(crate) pid: i32,
    /// `None` once control of it is lost.
    pub(crate) stopped: Option<Stopped>,
    pub(crate) restore_frame: RestoreFrame,
    /// Entries of the auxiliary vector of a process that is at its execve(2).
    pub(crate) auxv_slots: AuxvSlots,
    /// Files of the store that may be opened in it.
    pub(crate) stored: Vec<File>,
    /// The SIGCONT by which it stopped itself at its entry point is still pending.
    pub(crate) has_own_sigcont: bool,
    /// The status when the target was stopped, if it was read.
    status: Option<Status>,
    /// Another process has sent SIGURG while a batch ran.
    pub(crate) foreign_sigurg: bool,
}

impl Remote {
    /// Takes over `stopped`, in which `restore_frame` was written.
    pub fn new(stopped: Stopped, restore_frame: RestoreFrame) -> Remote {
        Remote {
            pid: stopped.tid(),
            stopped: Some(stopped),
            restore_frame,
            auxv_slots: AuxvSlots::default(),
            stored: Vec::new(),
            has_own_sigcont: false,
            foreign_sigurg: false,
            status: None,
        }
    }

    /// Sets the entries of the target's auxiliary vector that [`hugelift_core::relocate`] changes.
    pub fn set_auxv_slots(&mut self, auxv_slots: AuxvSlots) {
        self.auxv_slots = auxv_slots;
    }

    /// Sets the target's status, so that it need not be read again.
    pub fn set_status(&mut self, status: Status) {
        self.status = Some(status);
    }

    /// Returns the target's status when it was stopped.
    ///
    /// # Errors
    /// See [`Process::status`].
    pub fn status(&self) -> Result<Status, ProcError> {
        self.status.map_or_else(|| Process::new(self.pid.cast_unsigned()).status(), Ok)
    }

    /// Gives the program its registers and signals back, and remains its tracer.
    ///
    /// # Errors
    /// The target is gone.
    pub fn release(mut self) -> Result<Stopped, Error> {
        self.settle_signals()?;
        let stopped = self.stopped.ok_or(Error::Vanished(self.pid))?;
        self.restore_frame.restore(&stopped)?;
        Ok(stopped)
    }

    /// Sets the files that [`Target::map_stored`] maps, by their index.
    pub fn offer_stored(&mut self, files: Vec<File>) {
        self.stored = files;
    }

    /// Makes one system call in the target.
    ///
    /// # Errors
    /// [`Error`] if the call could not be made; what the call itself returned, a value or
    /// a negative errno, is the `Ok`.
    pub fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        self.run_stub(&self.restore_frame.at(SYSCALL_AT).with_syscall(number, args))
    }

    /// Notes that the SIGCONT by which the target stopped itself at its entry point is pending. The first
    /// batch discards it, at the latest one before the target goes on.
    pub fn drain_sigcont(&mut self) {
        self.has_own_sigcont = true;
    }

    /// Discards the SIGCONT of the entry stub, and sends a SIGURG again that was taken from another
    /// process.
    fn settle_signals(&mut self) -> Result<(), Error> {
        if self.has_own_sigcont {
            let batch = self.batch();
            self.make(batch)?;
        }
        if self.foreign_sigurg {
            // The process is our tracee, so the pid is its own.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGURG);
        }
        Ok(())
    }

    /// Makes the target exit with `status` (exit_group(2)).
    pub fn exit(mut self, status: i32) {
        // An error is expected: the target ends in the call.
        let _ = self.syscall(libc::SYS_exit_group, [status as u64, 0, 0, 0, 0, 0]);
    }

    /// Gives the program its registers and signals back, and lets it run on. A program that must wait for
    /// its tracer runs on when that ends.
    pub fn leave(mut self) -> Result<(), Error> {
        self.settle_signals()?;
        let stopped = self.stopped.ok_or(Error::Vanished(self.pid))?;
        if self.restore_frame.waits() {
            let status = Process::new(self.pid.cast_unsigned()).status().unwrap_or_default();
            let sigchld = 1 << (libc::SIGCHLD - 1);
            return self.restore_frame.leave(&stopped, status.pending & sigchld != 0);
        }
        self.restore_frame.restore(&stopped)?;
        // The end of this process would detach as well, but only after the kernel has freed its memory.
        stopped.detach(0)
    }

    /// Lets the target run the stub with `regs` up to the end of its system call, and returns the call's
    /// result; `-EFAULT` if the stub's copy could not read or write memory.
    fn run_stub(&mut self, regs: &Regs) -> Result<i64, Error> {
        let began = std::time::Instant::now();
        let stopped = self.stopped.take().ok_or(Error::Vanished(self.pid))?;
        let result = self.inject(stopped, regs, End::SyscallExit).and_then(|(stopped, ending)| {
            let value = match ending {
                Ending::Complete => stopped.regs()?.map_or(i64::from(-libc::EIO), |r| r.result()),
                Ending::Fault => i64::from(-libc::EFAULT),
            };
            self.stopped = Some(stopped);
            Ok(value)
        });
        tracing::trace!(call = ?regs.call(), ?result, elapsed = ?began.elapsed(), "injected");
        result
    }

    /// Makes a system call whose failure is a [`Fault`].
    pub(crate) fn call(
        &mut self,
        call: &'static str,
        range: Range,
        number: i64,
        args: [u64; 6],
    ) -> Result<u64, Fault> {
        match self.syscall(number, args) {
            Ok(value @ -4095..0) => Err(Fault::Call { call, range, errno: -value as i32 }),
            Ok(value) => Ok(value as u64),
            Err(error) => Err(Fault::Lost(error.to_string())),
        }
    }

    /// See [`RestoreFrame::set_completion`].
    pub(crate) fn set_completion(&mut self, call: Option<Call>) -> Result<(), Fault> {
        let stopped = self.stopped.as_ref().ok_or(Error::Vanished(self.pid));
        stopped
            .and_then(|s| self.restore_frame.set_completion(s, call))
            .map_err(|e| Fault::Lost(e.to_string()))
    }

    /// Writes arguments of a call to [`RestoreFrame::data`].
    fn write_data(&self, bytes: &[u8]) -> Result<(), Fault> {
        let stopped = self.stopped.as_ref().ok_or(Error::Vanished(self.pid));
        stopped.and_then(|s| self.restore_frame.write_data(s, bytes)).map_err(|e| Fault::Lost(e.to_string()))
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
            memory::write(self.pid, Addr(at), &[0]).map_err(|e| refused("touch", range, &e))?;
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
            let n = memory::read(self.pid, Addr(from.start.0 + at), &mut buffer[..want])
                .and_then(|n| if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) })
                .map_err(|e| refused("read", from, &e))?;
            memory::write(self.pid, Addr(to.0 + at), &buffer[..n]).map_err(|e| refused("write", from, &e))?;
            at += n as u64;
        }
        Ok(())
    }
}

/// Returns the mremap(2) that moves `from` over what is at `to`.
pub(crate) fn mremap_call(from: Range, to: Addr) -> Call {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    (libc::SYS_mremap, [from.start.0, from.len(), from.len(), flags, to.0, 0])
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

impl Target for Remote {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
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
            Place::Free => libc::MAP_FIXED_NOREPLACE,
            Place::Over => libc::MAP_FIXED,
        };
        let flags = (flags | fixed) as u64;
        let args = [range.start.0, range.len(), prot_bits(prot), flags, fd as i64 as u64, offset];
        let got = self.call(call, range, libc::SYS_mmap, args)?;
        if got != range.start.0 {
            // Kernels before 4.17 take the address as a hint.
            if let Some(elsewhere) = Range::sized(Addr(got), range.len()) {
                self.munmap(elsewhere)?;
            }
            return Err(Fault::Call { call, range, errno: libc::EEXIST });
        }
        Ok(())
    }

    fn munmap(&mut self, range: Range) -> Result<(), Fault> {
        let args = [range.start.0, range.len(), 0, 0, 0, 0];
        self.call("munmap", range, libc::SYS_munmap, args).map(drop)
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        let args = [range.start.0, range.len(), prot_bits(prot), 0, 0, 0];
        self.call("mprotect", range, libc::SYS_mprotect, args).map(drop)
    }

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let (number, args) = mremap_call(from, to);
        self.call("mremap", from, number, args).map(drop)
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_HUGEPAGE)", range, libc::MADV_HUGEPAGE as u64)
    }

    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        const MPOL_MF_MOVE: u64 = 1 << 1;
        const MPOL_DEFAULT: u64 = 0;
        let (mode, nodes) = placement.map_or((MPOL_DEFAULT, Nodes::default()), Placement::mode);
        self.write_data(&nodes.mask().to_ne_bytes())?;
        // The kernel reads one bit less than `maxnode` says.
        let (mask, bits) =
            if nodes.is_empty() { (0, 0) } else { (self.restore_frame.data.0, u64::from(u64::BITS) + 1) };
        let args = [range.start.0, range.len(), mode, mask, bits, MPOL_MF_MOVE];
        self.call("mbind", range, libc::SYS_mbind, args).map(drop)
    }

    fn populate(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        match self.madvise("madvise(MADV_POPULATE_WRITE)", range, MADV_POPULATE_WRITE) {
            Err(Fault::Call { errno: libc::EINVAL | libc::ENOSYS, .. }) => self.touch(range, page),
            other => other,
        }
    }

    /// Reads the pages from outside, so that the target need not run.
    fn fault_in(&mut self, range: Range, page: PageSize) -> Result<(), Fault> {
        memory::touch(self.pid, range, page.bytes()).map_err(|e| refused("process_vm_readv", range, &e))
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        // To fault the source in beforehand is faster than page by page, and shows what cannot be read.
        // Then the target copies its own bytes, on its own CPU.
        match self.madvise("madvise(MADV_POPULATE_READ)", from, MADV_POPULATE_READ) {
            Ok(()) => {}
            Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
            Err(_) => return self.copy_through(from, to),
        }
        let regs = self.restore_frame.at(COPY_AT).with_copy(from.start, to, from.len(), libc::SYS_getpid);
        match self.run_stub(&regs) {
            Ok(0..) => Ok(()),
            Ok(value) => Err(Fault::Call { call: "copy", range: from, errno: -value as i32 }),
            Err(error) => Err(Fault::Lost(error.to_string())),
        }
    }

    fn collapse(&mut self, range: Range) -> Result<(), Fault> {
        self.madvise("madvise(MADV_COLLAPSE)", range, MADV_COLLAPSE as u64)
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        pagemap::huge_bytes_at_least(self.pid, range).map_err(|e| match e.kind() {
            // The message names the line of smaps.
            io::ErrorKind::InvalidData => Fault::Lost(e.to_string()),
            _ => refused("pagemap and smaps", range, &e),
        })
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        const CALL: &str = "memfd_create(MFD_HUGETLB)";
        let range = Range::sized(Addr(0), bytes).unwrap_or_default();
        // Beyond the limit ftruncate(2) would also send SIGXFSZ to the program.
        if largest_file(self.pid).is_some_and(|limit| limit < bytes) {
            return Err(Fault::Call { call: "ftruncate", range, errno: libc::EFBIG });
        }
        self.write_data(b"hugelift\0")?;
        let flags =
            u64::from(libc::MFD_CLOEXEC | libc::MFD_HUGETLB) | u64::from(page.log2()) << MFD_HUGE_SHIFT;
        let args = [self.restore_frame.data.0, flags, 0, 0, 0, 0];
        let fd = self.call(CALL, range, libc::SYS_memfd_create, args)?;
        let file = FileHandle(fd as i32);
        let sized = self.call("ftruncate", range, libc::SYS_ftruncate, [fd, bytes, 0, 0, 0, 0]);
        if let Err(fault) = sized {
            self.close(file)?;
            return Err(fault);
        }
        Ok(file)
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        self.map_copies(copies)
    }

    fn move_all(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        self.move_mappings(moves)
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        let args = [file.0 as u64, 0, 0, 0, 0, 0];
        self.call("close", Range::default(), libc::SYS_close, args).map(drop)
    }
}
