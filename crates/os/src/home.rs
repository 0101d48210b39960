// SPDX-License-Identifier: Apache-2.0
//! The way home: what makes it safe to let go of a target at any moment.
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
//! The stub makes one system call and then `rt_sigreturn`; the frame holds the program's
//! own registers and signal mask. So whatever the target was in the middle of when its
//! tracer was killed, it finishes that call and finds its way back to its own next
//! instruction. There is no breakpoint that would kill it.

use crate::arch::{self, FRAME_ALIGN, Regs};
use crate::memory;
use crate::ptrace::{Error, Stopped};
use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;

/// Bytes of zero padding that are wanted: the entry stub, and the stub behind it.
const ROOM: usize = 128;
const STUB_AT: u64 = arch::ENTRY_STUB_BYTES.next_multiple_of(16) as u64;
/// Bytes of the stack that hold arguments of injected system calls.
pub const DATA_BYTES: u64 = 128;

/// Zero padding inside an executable mapping, [`ROOM`] bytes of it.
#[derive(Clone, Copy, Debug)]
pub struct Room(Addr);

impl Room {
    /// Looks at the end of the vdso, then at the end of every executable mapping.
    pub fn find(pid: i32, mappings: &[Mapping]) -> Option<Room> {
        let vdso = |m: &&Mapping| m.is_named("[vdso]");
        let code = |m: &&Mapping| m.prot.exec && m.prot.read && !m.prot.write && m.is_file();
        let mut candidates = mappings.iter().filter(vdso).chain(mappings.iter().filter(code));
        candidates.find_map(|mapping| {
            let room = Addr(mapping.range.end.0 - ROOM as u64);
            let bytes: [u8; ROOM] = memory::read_array(pid, room).ok()?;
            bytes.iter().all(|b| *b == 0).then_some(Room(room))
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

    fn stub(self) -> Addr {
        Addr(self.0.0 + STUB_AT)
    }

    /// Puts `code` where [`Room::entry_stub`] says.
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

/// A target that finds its way home by itself if it is let go.
#[derive(Debug)]
pub struct Home {
    room: Room,
    /// The program's own registers, to be had again at the end.
    pub regs: Regs,
    mask: u64,
    /// Stack pointer from which the stub's `rt_sigreturn` starts.
    sp: Addr,
    /// [`DATA_BYTES`] of the target's stack for arguments.
    pub data: Addr,
    /// A helper that the target itself must wait for on its way.
    reaps: bool,
}

impl Home {
    /// Prepares `target`, whose program is to go on with `regs`. From here on all its
    /// signals wait. If `reap` names a child of the target, the way home leads over a
    /// wait4(2) for it.
    ///
    /// # Errors
    /// The target's memory cannot be written (not dumpable), or it is gone. It is then as
    /// it was but for bytes below its stack pointer.
    pub fn arm(target: &Stopped, regs: Regs, room: Room, reap: Option<i32>) -> Result<Home, Error> {
        let mask = target.signal_mask()?;
        let fp = target.fp_regs();
        let stub = room.stub();

        // From the top down: data, the frame of the program, the frame of wait4.
        let top = Addr(regs.sp().0.wrapping_sub(arch::RED_ZONE)).0 & !(FRAME_ALIGN - 1);
        let data = Addr(top.wrapping_sub(DATA_BYTES));
        let below = |top: Addr, regs: &Regs, mask| {
            let bytes = arch::signal_frame(regs, &fp, mask, Addr(0)).bytes.len() as u64;
            let base = Addr(top.0.wrapping_sub(bytes) & !(FRAME_ALIGN - 1));
            (base, arch::signal_frame(regs, &fp, mask, base))
        };
        let (base, frame) = below(data, &regs, mask);
        let mut frames = vec![(base, frame)];
        if let Some(helper) = reap {
            let next = Addr(base.0 + frames[0].1.sp_at);
            let args = [helper as u64, 0, libc::__WALL as u64, 0, 0, 0];
            let wait = regs.at(Addr(stub.0 + arch::SYSCALL_AT), next).with_syscall(libc::SYS_wait4, args);
            frames.push(below(base, &wait, u64::MAX));
        }
        target.poke(stub, &padded(&arch::STUB))?;
        let mut sp = regs.sp();
        for (base, frame) in &frames {
            memory::write(target.tid(), *base, &frame.bytes).map_err(|source| Error::Os {
                what: "write below the stack pointer",
                tid: target.tid(),
                source,
            })?;
            sp = Addr(base.0 + frame.sp_at);
        }
        let home = Home { room, regs, mask, sp, data, reaps: reap.is_some() };
        target.set_regs(&home.at(arch::RETURN_AT))?;
        target.set_signal_mask(u64::MAX)?;
        Ok(home)
    }

    /// Registers that enter the stub at `offset`.
    pub fn at(&self, offset: u64) -> Regs {
        self.regs.at(Addr(self.room.stub().0 + offset), self.sp)
    }

    /// Puts everything back. The program goes on once its tracer detaches or ends.
    pub fn leave(self, target: &Stopped) -> Result<(), Error> {
        if self.reaps {
            // It must still wait for us: the frames do the rest, and the stub stays.
            return target.set_regs(&self.at(arch::RETURN_AT));
        }
        target.set_signal_mask(self.mask)?;
        target.set_regs(&self.regs)?;
        self.room.clear(target)
    }
}
