// SPDX-License-Identifier: Apache-2.0
//! Lets one comparison at a time switch a process, while no lift and no restoring changes it. A second comparison would take the copies
//! of the first for the state in which the process was found, and would leave them.
//!
//! The lock is one on `/proc/PID/maps` (flock(2)), which only those can open who can read the process. It is of one mount of proc(5):
//! a comparison in a container does not see one on the host.

use crate::io::lock::{lock, lock_shared};
use crate::proc::procfs::Process;
use nix::fcntl::Flock;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Locks a process for a comparison; returns `None` if another comparison or a change has it.
///
/// # Errors
/// open(2), flock(2)
pub fn turn(pid: u32) -> io::Result<Option<Flock<OwnedFd>>> {
    lock(maps(pid)?, Duration::ZERO)
}

/// Keeps comparisons away from a process for as long as it lives.
#[derive(Debug)]
pub struct ChangeTurn {
    _lock: Option<Flock<OwnedFd>>,
}

/// Locks a process for a change, beside which there may be others; returns `None` if a comparison has it. A process that cannot be read
/// cannot be compared either, and is not locked.
pub fn turn_of_change(pid: u32) -> Option<ChangeTurn> {
    match maps(pid).and_then(lock_shared) {
        Ok(None) => None,
        Ok(lock) => Some(ChangeTurn { _lock: lock }),
        Err(_) => Some(ChangeTurn { _lock: None }),
    }
}

fn maps(pid: u32) -> io::Result<OwnedFd> {
    Ok(File::open(Process::new(pid).path("maps"))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_exclude_comparisons_and_not_each_other() {
        let own = std::process::id();
        let changes = [turn_of_change(own), turn_of_change(own)];
        assert!(changes.iter().all(Option::is_some) && turn(own).unwrap().is_none());
        drop(changes);
        let comparison = turn(own).unwrap();
        assert!(comparison.is_some() && turn(own).unwrap().is_none() && turn_of_change(own).is_none());
        assert!(turn(u32::MAX).is_err() && turn_of_change(u32::MAX).is_some());
    }
}
