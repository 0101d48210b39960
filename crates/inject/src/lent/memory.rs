// SPDX-License-Identifier: Apache-2.0
//! The memory of a process whose thread is lent, by a file that was opened before.

use crate::ptrace::{Error, Stopped};
use hugelift_core::addr::Addr;
use hugelift_linux::faultpoint;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Returns whether the program is still there whose memory this is. After execve(2) or its end nothing is read, where an
/// address that is not mapped is an error.
pub(super) fn is_same_program(memory: &File, at: Addr) -> bool {
    !matches!(memory.read_at(&mut [0], at.0), Ok(0))
}

/// Writes to the process, whatever the protection there (see [`Stopped::poke`]).
pub(super) fn poke(stopped: &Stopped, memory: &File, at: Addr, bytes: &[u8]) -> Result<(), Error> {
    faultpoint::pass(stopped.tid());
    match memory.write_all_at(bytes, at.0) {
        Ok(()) => Ok(()),
        Err(_) => stopped.poke_words(at, bytes),
    }
}
