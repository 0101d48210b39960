// SPDX-License-Identifier: Apache-2.0
//! The restore frame: a signal frame from which rt_sigreturn(2) brings the program back, so that the
//! target survives its tracer's death at any moment.
//!
//! Two things are written into the target before it runs anything for hugelift. The first is code, in
//! the *code cave*: zero padding at the end of the vdso, or of another executable mapping.
//!
//! ```text
//!   code cave:  | entry stub; later the batch code |  stub: syscall; mov rt_sigreturn; syscall |
//!                                                           ^ pc
//! ```
//!
//! The second is frames of the kind that the kernel writes for a signal handler (`struct rt_sigframe`),
//! below the program's stack pointer and its red zone. The program's own frame holds its registers, its
//! floating-point state and its signal mask:
//!
//! ```text
//!   lower addresses                                              higher addresses
//!   | program's frame          | data             | red zone | program's stack
//!   ^ sp in the stub             for arguments of            ^ sp in the program
//!                                injected calls
//! ```
//!
//! To make a system call, the tracer sets pc, sp, and the call's registers as shown. The system call
//! returns to the next instruction of the stub: rt_sigreturn, which loads all registers from the frame
//! at sp. The tracer stops the target in between, and sets its registers for the next call. If the
//! tracer is killed, the kernel lets the target go on: it finishes its call, and rt_sigreturn takes it
//! to the program's next instruction. No breakpoint is used: without a tracer it would kill the program.
//!
//! *Chained frames.* If the program must not go on before other calls are made (a wait4(2) for the
//! helper, a call that discards its SIGCHLD), each such call has a frame of its own. Its pc is the
//! stub's system call, its registers are the call's number and arguments, its sp is the next frame, and
//! it blocks all signals:
//!
//! ```text
//!   | frame of call 1 | frame of call 2 | program's frame | data | red zone | program's stack
//!   ^ sp in the stub
//!
//!   stub: rt_sigreturn -> frame 1: pc = stub's syscall, makes call 1, sp = frame 2
//!   stub: rt_sigreturn -> frame 2: pc = stub's syscall, makes call 2, sp = program's frame
//!   stub: rt_sigreturn -> program's frame: the program's next instruction
//! ```

use crate::arch::{self, FRAME_ALIGN, Regs};
use crate::caves::executable;
use crate::ptrace::{Error, Stopped};
use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;
use hugelift_linux::proc::memory;

/// Size of a code cave: the entry stub, and the stub after it.
const CAVE_BYTES: usize = 128;
/// Offset of the stub in the cave.
const STUB_AT: u64 = arch::ENTRY_STUB_BYTES.next_multiple_of(16) as u64;
/// Bytes of the stack that hold arguments of injected system calls.
pub const DATA_BYTES: u64 = 4096;

/// `CAVE_BYTES` of zero padding inside an executable mapping.
#[derive(Clone, Copy, Debug)]
pub struct CodeCave(Addr);

impl CodeCave {
    /// Searches for zeros at the end of the vdso, then of each executable mapping of a file.
    pub fn find(pid: i32, mappings: &[Mapping]) -> Option<CodeCave> {
        executable(mappings).find_map(|mapping| {
            let cave = Addr(mapping.range.end.0 - CAVE_BYTES as u64);
            let bytes: [u8; CAVE_BYTES] = memory::read_array(pid, cave).ok()?;
            bytes.iter().all(|b| *b == 0).then_some(CodeCave(cave))
        })
    }

    /// Returns the address of the entry stub.
    pub fn entry_stub(self) -> Addr {
        self.0
    }

    /// Returns whether `pc` is inside the entry stub.
    pub fn is_in_entry_stub(self, pc: Addr) -> bool {
        (self.0.0..self.0.0 + STUB_AT).contains(&pc.0)
    }

    /// Returns the address of [`arch::BATCH`]. It lies where the entry stub was, which is not executed again.
    fn batch(self) -> Addr {
        self.0
    }

    /// Returns the address of [`arch::STUB`].
    fn stub(self) -> Addr {
        Addr(self.0.0 + STUB_AT)
    }

    /// Writes `code` to [`CodeCave::entry_stub`].
    pub fn write_entry_stub(self, target: &Stopped, code: &[u8]) -> Result<(), Error> {
        target.poke(self.entry_stub(), &padded(code))
    }

    /// Writes back the zeros that the cave held.
    pub fn clear(self, target: &Stopped) -> Result<(), Error> {
        target.poke(self.0, &[0; CAVE_BYTES])
    }
}

/// Returns `code` in whole words, as [`Stopped::poke`] takes it.
fn padded(code: &[u8]) -> Vec<u8> {
    let mut code = code.to_vec();
    code.resize(code.len().next_multiple_of(8), 0);
    code
}

/// The code and the frames by which a target returns to its program without a tracer.
#[derive(Debug)]
pub struct RestoreFrame {
    cave: CodeCave,
    /// The program's own registers, with which it goes on at the end.
    pub regs: Regs,
    fp: Vec<u8>,
    mask: u64,
    /// The stack pointer at which the stub's rt_sigreturn finds the first frame.
    sp: Addr,
    /// [`DATA_BYTES`] of the target's stack for arguments.
    pub data: Addr,
    /// The word of the program's frame that holds the program counter.
    pc_slot: Addr,
    /// The helper's pid, if the target is its parent and must wait for it.
    reap: Option<i32>,
    /// [`arch::BATCH`] is in its place.
    has_batch: bool,
}

/// The number and the arguments of a system call.
pub type Call = (i64, [u64; 6]);

impl RestoreFrame {
    /// Writes the stub and the frames for `target`, whose program is to go on with `regs`. From here on
    /// all signals of the target are blocked. If `reap` names a child of the target, a wait4(2) for it is
    /// chained.
    ///
    /// # Errors
    /// The target's memory cannot be written (not dumpable), or the target is gone. Only bytes below
    /// its stack pointer may then have changed.
    pub fn arm(
        target: &Stopped,
        regs: Regs,
        cave: CodeCave,
        reap: Option<i32>,
    ) -> Result<RestoreFrame, Error> {
        let top = Addr(regs.sp().0.wrapping_sub(arch::RED_ZONE) & !(FRAME_ALIGN - 1));
        let mut frame = RestoreFrame {
            cave,
            regs,
            fp: target.fp_regs(),
            mask: target.signal_mask()?,
            sp: regs.sp(),
            data: Addr(top.0.wrapping_sub(DATA_BYTES)),
            pc_slot: Addr(0),
            reap,
            has_batch: false,
        };
        target.poke(cave.stub(), &padded(&arch::STUB))?;
        frame.write_frames(target, frame.wait_for_helper().as_slice())?;
        target.set_regs(&frame.at(arch::RETURN_AT))?;
        target.set_signal_mask(u64::MAX)?;
        Ok(frame)
    }

    /// Returns the wait4(2) for the helper, if the target must wait for it.
    fn wait_for_helper(&self) -> Option<Call> {
        self.reap.map(|pid| (libc::SYS_wait4, [pid as u64, 0, libc::__WALL as u64, 0, 0, 0]))
    }

    /// Writes the program's frame below [`RestoreFrame::data`], and below it the frames of `calls`, the
    /// last one first: the target makes the calls in their order, then returns to the program.
    fn write_frames(&mut self, target: &Stopped, calls: &[Call]) -> Result<(), Error> {
        let mut below = self.data;
        let mut push = |regs: &Regs, mask| {
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
        let (program, mut sp) = push(&self.regs, self.mask)?;
        self.pc_slot = Addr(program.0 + arch::FRAME_PC);
        let syscall = Addr(self.cave.stub().0 + arch::SYSCALL_AT);
        for (number, args) in calls.iter().rev() {
            (_, sp) = push(&self.regs.at(syscall, sp).with_syscall(*number, *args), u64::MAX)?;
        }
        self.sp = sp;
        Ok(())
    }

    /// Returns registers that enter the stub at `offset`.
    pub fn at(&self, offset: u64) -> Regs {
        self.regs.at(Addr(self.cave.stub().0 + offset), self.sp)
    }

    /// Writes [`arch::BATCH`], if it is not there yet, and returns registers that make the calls listed at
    /// `list`. A target that has its restore frame is never in the entry stub that the code replaces.
    ///
    /// # Errors
    /// The target's memory cannot be written, or the target is gone.
    pub fn at_batch(&mut self, target: &Stopped, list: Addr) -> Result<Regs, Error> {
        if !self.has_batch {
            target.poke(self.cave.batch(), &padded(&arch::BATCH))?;
            self.has_batch = true;
        }
        Ok(self.regs.at(self.cave.batch(), self.sp).with_batch(list))
    }

    /// Returns the address of the word, in the program's frame, that holds the program counter.
    pub fn pc_slot(&self) -> Addr {
        self.pc_slot
    }

    /// Writes arguments of a system call to [`RestoreFrame::data`].
    ///
    /// # Errors
    /// The target's memory cannot be written, or the target is gone.
    pub fn write_data(&self, target: &Stopped, bytes: &[u8]) -> Result<(), Error> {
        let tid = target.tid();
        memory::write(tid, self.data, bytes).map_err(|source| Error::Os {
            what: "write arguments to the stack",
            tid,
            source,
        })
    }

    /// Writes the arguments of an rt_sigtimedwait(2), and returns the call: it removes `signal` from the
    /// pending signals, if it is pending, and does not wait.
    fn discard_signal(&self, target: &Stopped, signal: i32) -> Result<Call, Error> {
        let mut bytes = [0; 24]; // the set, and a struct timespec of zero
        bytes[..8].copy_from_slice(&(1u64 << (signal - 1)).to_le_bytes());
        self.write_data(target, &bytes)?;
        Ok((libc::SYS_rt_sigtimedwait, [self.data.0, 0, self.data.0 + 8, 8, 0, 0]))
    }

    /// Returns whether the target waits for the helper's end before it returns to the program.
    pub fn waits(&self) -> bool {
        self.reap.is_some()
    }

    /// Prepares a target that [`RestoreFrame::waits`] to return to the program once its tracer has ended.
    /// The stub and the frames stay in the target.
    ///
    /// The helper's end raises SIGCHLD, as its parent has called execve(2) since the helper was forked. The
    /// signal is discarded unless one was pending already.
    pub fn leave(mut self, target: &Stopped, sigchld_pending: bool) -> Result<(), Error> {
        let mut calls: Vec<Call> = self.wait_for_helper().into_iter().collect();
        if !sigchld_pending {
            calls.push(self.discard_signal(target, libc::SIGCHLD)?);
        }
        self.write_frames(target, &calls)?;
        target.set_regs(&self.at(arch::RETURN_AT))
    }

    /// Gives the program its signal mask and registers back, and clears the code cave. The program goes
    /// on where it was once its tracer lets it.
    pub fn restore(self, target: &Stopped) -> Result<(), Error> {
        target.set_signal_mask(self.mask)?;
        target.set_regs(&self.regs)?;
        self.cave.clear(target)
    }
}
