// SPDX-License-Identifier: Apache-2.0
//! Lets one comparison at a time switch a process. A second one would take the copies of the first for the state in which the process
//! was found, and would leave them.

use crate::io::lock::lock;
use crate::proc::procfs::Process;
use nix::fcntl::Flock;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Locks a process; returns `None` if another comparison has it. The lock is one on `/proc/PID/maps` (flock(2)), which only those can
/// open who can read the process. It is of one mount of proc(5): a comparison in a container does not see one on the host.
///
/// # Errors
/// open(2), flock(2)
pub fn turn(pid: u32) -> io::Result<Option<Flock<OwnedFd>>> {
    lock(File::open(Process::new(pid).path("maps"))?.into(), Duration::ZERO)
}
