// SPDX-License-Identifier: Apache-2.0
//! Locks an open file or folder (flock(2)), so that processes that do the same come one after the other.

use crate::io::entry::Entry;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(3);
/// How long to wait for another hugelift that changes names in a folder, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks `file`. Returns `None` if another process holds the lock for longer than `patience`.
///
/// # Errors
/// flock(2)
pub fn lock(mut file: OwnedFd, patience: Duration) -> io::Result<Option<Flock<OwnedFd>>> {
    let until = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() > until => return Ok(None),
            Err((again, Errno::EWOULDBLOCK | Errno::EINTR)) => file = again,
            Err((_, error)) => return Err(error.into()),
        }
        sleep(PAUSE);
    }
}

/// Locks `file` beside others that lock it so. Returns `None` if another process has it for itself.
///
/// # Errors
/// flock(2)
pub fn lock_shared(file: OwnedFd) -> io::Result<Option<Flock<OwnedFd>>> {
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// Locks the folder of `place`, so that only one hugelift at a time changes names there. Returns `None` if the lock is not to be had
/// within five seconds: whoever can read the folder can lock it, and the caller goes on without the lock.
pub fn take_turn(place: &Entry) -> Option<Flock<OwnedFd>> {
    let folder = place.open_directory(OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).ok()?;
    lock(folder.into(), PATIENCE).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn one_has_it_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let take = || lock(File::open(folder.path()).unwrap().into(), Duration::ZERO).unwrap();
        let first = take();
        assert!(first.is_some() && take().is_none());
        drop(first);
        assert!(take().is_some());
    }

    #[test]
    fn one_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let take = || lock(File::open(folder.path()).unwrap().into(), Duration::from_secs(60)).unwrap();
        let first = take();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take().is_some());
            sleep(Duration::from_millis(20));
            drop(first);
            assert!(second.join().unwrap());
        });
    }
}
