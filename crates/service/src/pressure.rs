// SPDX-License-Identifier: Apache-2.0
//! Memory pressure, as the kernel reports it (Documentation/accounting/psi.rst).

use hugelift_linux::io::open;
use hugelift_linux::machine::pressure::OF_MACHINE;
use nix::fcntl::OFlag;
use nix::poll::PollFlags;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Some task has waited 300 ms for memory within 2 s, the shortest window for unprivileged users.
const TRIGGER: &[u8] = b"some 300000 2000000\0";

/// A trigger of the kernel: poll(2) reports `POLLPRI` while memory is short.
pub struct Pressure(File);

/// The state of the trigger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressed {
    /// Memory is short.
    Yes,
    /// Memory is not short.
    No,
    /// The trigger no longer works, and would wake poll(2) for ever.
    Gone,
}

impl Pressure {
    /// Interprets the events that poll(2) has reported.
    pub fn judge(seen: PollFlags) -> Pressed {
        if seen.intersects(PollFlags::POLLERR | PollFlags::POLLNVAL | PollFlags::POLLHUP) {
            // Checked first: a trigger that was removed also reports POLLPRI.
            return Pressed::Gone;
        }
        if seen.contains(PollFlags::POLLPRI) { Pressed::Yes } else { Pressed::No }
    }

    /// Makes a trigger; `None` if the kernel has none or does not permit it.
    pub fn new() -> Option<Pressure> {
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK;
        let mut file = open::with(Path::new(OF_MACHINE), flags).ok()?;
        file.write_all(TRIGGER).ok()?;
        Some(Pressure(file))
    }
}

impl AsFd for Pressure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
