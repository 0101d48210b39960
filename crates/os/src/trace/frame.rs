// SPDX-License-Identifier: Apache-2.0
//! The restore frame: what makes it safe to let go of a target at any moment.
//!
//! Before anything is made to run in the target, two things are put where the program
//! never looks:
//!
//! ```text
//!   [vdso] ............ program's code ......|0 0 0 0 0 0 0 0 0 0|   end of the mapping
//!                                             entry stub | stub
//!
//!   stack  | ... data | frame(s) | red zone |<- sp ... program's stack
//! ```
//!
//! The stub makes one system call and then `rt_sigreturn` (where the entry stub was there can be one
//! that makes many); the frame holds the program's
//! own registers and signal mask. So whatever the target was in the middle of when its
//! tracer was killed, it finishes that call and finds its way back to its own next
//! instruction. There is no breakpoint that would kill it.

use crate::arch::{self, FRAME_ALIGN, Regs};
use crate::proc::memory;
use crate::trace::ptrace::{Error, Stopped};
use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;

/// Bytes of zero padding that are wanted: the entry stub, and the stub behind it.
const ROOM: usize = 128;
const STUB_AT: u64 = arch::ENTRY_STUB_BYTES.next_multiple_of(16) as u64;
/// Bytes of the stack that hold arguments of injected system calls.
pub const DATA_BYTES: u64 = 4096;

/// Zero padding inside an executable mapping, [`ROOM`] bytes of it.
#[derive(Clone, Copy, Debug)]
pub struct CodeCave(Addr);

impl CodeCave {
    /// Looks at the end of the vdso, then at the end of every executable mapping.
    pub fn find(pid: i32, mappings: &[Mapping]) -> Option<CodeCave> {
        let vdso = |m: &&Mapping| m.is_named("[vdso]");
        let code = |m: &&Mapping| m.prot.exec && m.prot.read && !m.prot.write && m.is_file();
        let mut candidates = mappings.iter().filter(vdso).chain(mappings.iter().filter(code));
        candidates.find_map(|mapping| {
            let room = Addr(mapping.range.end.0 - ROOM as u64);
            let bytes: [u8; ROOM] = memory::read_array(pid, room).ok()?;
            bytes.iter().all(|b| *b == 0).then_some(CodeCave(room))
        })
    }

    /// Where the entry stub goes.
    pub fn entry_stub(self) -> Addr {
        self.0
    }

    /// Whether `pc` is inside the entry stub.
    pub fn is_in_entry_stub(self, pc: Addr) -> bool {
        (self.0.0..self.0.0 + STUB_AT).contains(&pc.0)
    }

    /// Where [`arch::BATCH`] goes: nobody comes back to the entry stub.
    fn batch(self) -> Addr {
        self.0
    }

    fn stub(self) -> Addr {
        Addr(self.0.0 + STUB_AT)
    }

    /// Puts `code` where [`CodeCave::entry_stub`] says.
    pub fn write_entry_stub(self, target: &Stopped, code: &[u8]) -> Result<(), Error> {
        target.poke(self.entry_stub(), &padded(code))
    }

    /// Makes it the zeros that it was.
    pub fn clear(self, target: &Stopped) -> Result<(), Error> {
        target.poke(self.0, &[0; ROOM])
    }
}

fn padded(code: &[u8]) -> Vec<u8> {
    let mut code = code.to_vec();
    code.resize(code.len().next_multiple_of(8), 0);
    code
}

/// A target that returns through its restore frame by itself if it is let go.
#[derive(Debug)]
pub struct RestoreFrame {
    room: CodeCave,
    /// The program's own registers, to be had again at the end.
    pub regs: Regs,
    fp: Vec<u8>,
    mask: u64,
    /// Stack pointer from which the stub's `rt_sigreturn` starts.
    sp: Addr,
    /// [`DATA_BYTES`] of the target's stack for arguments.
    pub data: Addr,
    /// Where the restore frame has the program's own program counter.
    pc: Addr,
    /// A child of the target that it must wait for on its way.
    reap: Option<i32>,
    /// A call that completes what the target has begun.
    detour: Option<Call>,
    /// [`arch::BATCH`] is in its place.
    has_batch: bool,
}

/// A system call on the restore frame.
pub type Call = (i64, [u64; 6]);

impl RestoreFrame {
    /// Prepares `target`, whose program is to go on with `regs`. From here on all its
    /// signals wait. If `reap` names a child of the target, the restore frame leads over a
    /// wait4(2) for it.
    ///
    /// # Errors
    /// The target's memory cannot be written (not dumpable), or it is gone. It is then as
    /// it was but for bytes below its stack pointer.
    pub fn arm(
        target: &Stopped,
        regs: Regs,
        room: CodeCave,
        reap: Option<i32>,
    ) -> Result<RestoreFrame, Error> {
        let top = Addr(regs.sp().0.wrapping_sub(arch::RED_ZONE) & !(FRAME_ALIGN - 1));
        let mut home = RestoreFrame {
            room,
            regs,
            fp: target.fp_regs(),
            mask: target.signal_mask()?,
            sp: regs.sp(),
            data: Addr(top.0.wrapping_sub(DATA_BYTES)),
            pc: Addr(0),
            reap,
            detour: None,
            has_batch: false,
        };
        target.poke(room.stub(), &padded(&arch::STUB))?;
        home.write_frames(target, home.wait_for_helper().as_slice())?;
        target.set_regs(&home.at(arch::RETURN_AT))?;
        target.set_signal_mask(u64::MAX)?;
        Ok(home)
    }

    fn wait_for_helper(&self) -> Option<Call> {
        self.reap.map(|pid| (libc::SYS_wait4, [pid as u64, 0, libc::__WALL as u64, 0, 0, 0]))
    }

    /// Leads the restore frame over `call`, from the next call that the target is made to do on; or
    /// over none, from now on. What lies nearer to the program is written as it is there, so that
    /// the target is safe meanwhile.
    ///
    /// # Errors
    /// The target's memory cannot be written, or it is gone.
    pub fn set_detour(&mut self, target: &Stopped, call: Option<Call>) -> Result<(), Error> {
        if call != self.detour {
            self.detour = call;
            let calls: Vec<Call> = call.into_iter().chain(self.wait_for_helper()).collect();
            self.write_frames(target, &calls)?;
            if call.is_none() {
                // Off the frame that the next detour is written over.
                target.set_regs(&self.at(arch::RETURN_AT))?;
            }
        }
        Ok(())
    }

    /// Writes the frames of a restore frame that leads over `calls`, in their order:
    ///
    /// ```text
    ///   sp -> | frame: first call | ... | frame: the program | data | red zone | stack
    /// ```
    fn write_frames(&mut self, target: &Stopped, calls: &[Call]) -> Result<(), Error> {
        let mut below = self.data;
        let mut lay = |regs: &Regs, mask| {
            let len = arch::signal_frame(regs, &self.fp, mask, Addr(0)).bytes.len() as u64;
            let base = Addr(below.0.wrapping_sub(len) & !(FRAME_ALIGN - 1));
            let frame = arch::signal_frame(regs, &self.fp, mask, base);
            memory::write(target.tid(), base, &frame.bytes).map_err(|source| Error::Os {
                what: "write below the stack pointer",
                tid: target.tid(),
                source,
            })?;
            below = base;
            Ok::<_, Error>((base, Addr(base.0 + frame.sp_at)))
        };
        let (program, mut sp) = lay(&self.regs, self.mask)?;
        self.pc = Addr(program.0 + arch::FRAME_PC);
        let stub = Addr(self.room.stub().0 + arch::SYSCALL_AT);
        for (number, args) in calls.iter().rev() {
            (_, sp) = lay(&self.regs.at(stub, sp).with_syscall(*number, *args), u64::MAX)?;
        }
        self.sp = sp;
        Ok(())
    }

    /// Registers that enter the stub at `offset`.
    pub fn at(&self, offset: u64) -> Regs {
        self.regs.at(Addr(self.room.stub().0 + offset), self.sp)
    }

    /// Registers that make the calls listed at `list`. The code for it is put in its place, where a
    /// target with a restore frame is not.
    ///
    /// # Errors
    /// The target's memory cannot be written, or it is gone.
    pub fn at_batch(&mut self, target: &Stopped, list: Addr) -> Result<Regs, Error> {
        if !self.has_batch {
            target.poke(self.room.batch(), &padded(&arch::BATCH))?;
            self.has_batch = true;
        }
        Ok(self.regs.at(self.room.batch(), self.sp).with_batch(list))
    }

    /// The word of the target's stack that says where the program goes on.
    pub fn pc_slot(&self) -> Addr {
        self.pc
    }

    /// Writes arguments of a system call to [`RestoreFrame::data`].
    ///
    /// # Errors
    /// The target's memory cannot be written, or it is gone.
    pub fn write_data(&self, target: &Stopped, bytes: &[u8]) -> Result<(), Error> {
        let tid = target.tid();
        memory::write(tid, self.data, bytes).map_err(|source| Error::Os {
            what: "write arguments to the stack",
            tid,
            source,
        })
    }

    /// Writes the arguments of a call that takes `signal` off the pending ones, if it is
    /// there (rt_sigtimedwait(2)).
    ///
    /// # Errors
    /// The target's memory cannot be written, or it is gone.
    pub fn take_signal(&self, target: &Stopped, signal: i32) -> Result<Call, Error> {
        let mut bytes = [0; 24]; // the set, and a struct timespec of zero
        bytes[..8].copy_from_slice(&(1u64 << (signal - 1)).to_le_bytes());
        self.write_data(target, &bytes)?;
        Ok((libc::SYS_rt_sigtimedwait, [self.data.0, 0, self.data.0 + 8, 8, 0, 0]))
    }

    /// Whether the restore frame leads over the helper's end.
    pub fn waits(&self) -> bool {
        self.reap.is_some()
    }

    /// Lets a target that [`RestoreFrame::waits`] go home once its tracer ends.
    pub fn leave(mut self, target: &Stopped, sigchld_pending: bool) -> Result<(), Error> {
        // It must still wait for us: the frames do the rest, and the stub stays. Our end
        // raises SIGCHLD, as the parent of ours has meanwhile called exec.
        let mut calls: Vec<Call> = self.wait_for_helper().into_iter().collect();
        if !sigchld_pending {
            calls.push(self.take_signal(target, libc::SIGCHLD)?);
        }
        self.write_frames(target, &calls)?;
        target.set_regs(&self.at(arch::RETURN_AT))
    }

    /// Puts everything back: the program goes on where it was once its tracer lets it.
    pub fn restore(self, target: &Stopped) -> Result<(), Error> {
        target.set_signal_mask(self.mask)?;
        target.set_regs(&self.regs)?;
        self.room.clear(target)
    }
}
