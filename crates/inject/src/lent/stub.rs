// SPDX-License-Identifier: Apache-2.0
//! The code that a stopped thread runs, and where it is.

use crate::arch::{self, Regs};
use crate::caves::Caves;
use crate::filter::{Refusal, Way};
use hugelift_core::addr::Addr;
use hugelift_core::seccomp::Filters;

/// The code of a stopped thread: what it does if the tracer dies, and where it is.
#[derive(Debug)]
pub(crate) enum Stub<'a> {
    /// It ends the call that is loaded, and goes on. In a cave within reach.
    Lent(&'a mut Caves),
    /// It ends the call that is loaded, sets the word, and goes on.
    Leading(Slot),
    /// It waits until the word is set, and goes on.
    Waiting(Slot),
}

/// A place for code in a mapping that was made for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// The place, of [`arch::SLOT_BYTES`].
    pub(crate) at: Addr,
    /// The word that threads wait for, at the beginning of a page that can be written to.
    pub(crate) word: Addr,
}

impl Stub<'_> {
    /// Returns where the code of a thread is to be that goes on at `pc`.
    pub(super) fn within_reach(&self, pc: Addr) -> Option<Addr> {
        match self {
            Stub::Lent(caves) => caves.within_reach(pc),
            Stub::Leading(slot) | Stub::Waiting(slot) => Some(slot.at),
        }
    }

    /// Takes a cave out of the choice in which another thread has put something else, or nothing.
    pub(super) fn lose(&mut self, cave: Addr) {
        if let Stub::Lent(caves) = self {
            caves.lose(cave);
        }
    }

    /// Returns the address of the bytes that arguments can point to.
    pub(super) fn data(&self) -> Addr {
        /// Behind the word.
        const AHEAD: u64 = 64;
        match self {
            Stub::Lent(caves) => caves.data(),
            Stub::Leading(slot) | Stub::Waiting(slot) => Addr(slot.word.0 + AHEAD),
        }
    }

    /// Returns the code for this place, of a multiple of 8 bytes.
    pub(super) fn code(&self, at: Addr, later: &Regs, mask: u64) -> Option<Vec<u8>> {
        let (mut code, bytes) = match self {
            Stub::Lent(_) => (arch::lent_stub(at, later, mask)?, arch::LENT_STUB_BYTES),
            Stub::Leading(Slot { word, .. }) => (arch::leading_stub(*word, later, mask)?, arch::SLOT_BYTES),
            Stub::Waiting(Slot { word, .. }) => (arch::waiting_stub(*word, later, mask)?, arch::SLOT_BYTES),
        };
        code.resize(bytes, 0);
        Some(code)
    }

    /// Returns code for this place that makes one call, also where the code of a thread that waits makes none.
    pub(super) fn calling_code(&self, at: Addr, later: &Regs, mask: u64) -> Option<Vec<u8>> {
        match self {
            Stub::Lent(_) | Stub::Leading(_) => self.code(at, later, mask),
            Stub::Waiting(_) => {
                let mut code = arch::lent_stub(at, later, mask)?;
                code.resize(arch::SLOT_BYTES, 0);
                Some(code)
            }
        }
    }

    /// Returns registers that run the code. If the tracer dies, a thread that does not wait makes a call without
    /// effect, and goes on with its own registers.
    pub(super) fn entered(&self, at: Addr, regs: &Regs) -> Regs {
        let entered = regs.at(at, regs.sp());
        match self {
            Stub::Lent(_) | Stub::Leading(_) => entered.with_syscall(libc::SYS_getpid, [0; 6]),
            Stub::Waiting(_) => entered,
        }
    }

    /// Checks the calls that the code makes beside the calls of every lift.
    pub(super) fn check(&self, filters: &Filters) -> Result<(), Refusal> {
        match self {
            Stub::Lent(_) => Ok(()),
            Stub::Leading(_) | Stub::Waiting(_) => Way::CopyOfWritten.check(filters),
        }
    }
}
