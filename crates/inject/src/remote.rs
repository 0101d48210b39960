// SPDX-License-Identifier: Apache-2.0
//! The process under ptrace as a [`Target`]: changes it by system calls that it makes itself.

use crate::arch::{COPY_AT, Regs, SYSCALL_AT};
use crate::auxv_slots::AuxvSlots;
use crate::calls::{Calls, refused};
use crate::frame::RestoreFrame;
use crate::inject::{self, End, Ending};
use crate::ptrace::{Error, Stopped};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Prot;
use hugelift_core::placement::Placement;
use hugelift_core::scratch::Scratch;
use hugelift_core::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::{ProcError, Process, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;

const MADV_POPULATE_READ: u64 = 22;

/// A stopped process with its [`RestoreFrame`].
#[derive(Debug)]
pub struct Remote {
    /// The process.
    pub pid: i32,
    /// `None` once control of it is lost.
    pub(crate) stopped: Option<Stopped>,
    pub(crate) restore_frame: RestoreFrame,
    /// Entries of the auxiliary vector of a process that is at its execve(2).
    pub(crate) auxv_slots: AuxvSlots,
    /// Files of the store that may be opened in it.
    pub(crate) stored: Vec<File>,
    /// The memory of ours in it.
    pub(crate) scratch: Scratch,
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
            scratch: Scratch::default(),
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
        let ran = inject::run(stopped, regs, End::SyscallExit, &mut self.foreign_sigurg);
        let result = ran.and_then(|(stopped, ending)| {
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
}

impl Calls for Remote {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn scratch_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        self.run_stub(&self.restore_frame.at(SYSCALL_AT).with_syscall(number, args))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Addr, Fault> {
        let stopped = self.stopped.as_ref().ok_or(Error::Vanished(self.pid));
        let written = stopped.and_then(|s| self.restore_frame.write_data(s, bytes));
        written.map(|()| self.restore_frame.data).map_err(|e| Fault::Lost(e.to_string()))
    }
}

impl Target for Remote {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        self.map(range, prot, source, place)
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

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        self.move_over(from, to)
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
        self.collapse_all(range)
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.count_huge(range)
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        self.make_memfd(page, bytes)
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        self.map_copies(copies)
    }

    fn move_all(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        self.move_mappings(moves)
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.close_file(file)
    }
}
