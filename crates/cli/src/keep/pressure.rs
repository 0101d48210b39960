// SPDX-License-Identifier: Apache-2.0
//! Memory pressure, as the kernel tells of it (Documentation/accounting/psi.rst).

use nix::poll::PollFlags;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Some task has waited 300 ms for memory within 2 s, the shortest time that everybody may
/// ask for.
const TRIGGER: &[u8] = b"some 300000 2000000\0";

/// A trigger: `POLLPRI` while memory is short.
pub struct Pressure(File);

/// What the trigger says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressed {
    /// Memory is short.
    Yes,
    /// Nothing.
    No,
    /// The trigger does not work any more, and would wake its poller for ever.
    Gone,
}

impl Pressure {
    /// What poll(2) has seen of it.
    pub fn judge(seen: PollFlags) -> Pressed {
        if seen.intersects(PollFlags::POLLERR | PollFlags::POLLNVAL | PollFlags::POLLHUP) {
            // A trigger that is taken apart answers with both.
            return Pressed::Gone;
        }
        if seen.contains(PollFlags::POLLPRI) { Pressed::Yes } else { Pressed::No }
    }

    /// `None` where the kernel does not tell, or not us.
    pub fn new() -> Option<Pressure> {
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK);
        let mut file = file.open("/proc/pressure/memory").ok()?;
        file.write_all(TRIGGER).ok()?;
        Some(Pressure(file))
    }
}

impl AsFd for Pressure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
