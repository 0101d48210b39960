// SPDX-License-Identifier: Apache-2.0
//! Locks an open file or folder (flock(2)), so that processes that do the same come one after the other.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::io;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(3);

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
