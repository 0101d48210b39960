// SPDX-License-Identifier: Apache-2.0
//! Waits for the end of processes, by a pidfd each.

use hugelift_linux::proc::pidfd::pidfd_open;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The most processes that are waited for. The end of more is found by polling.
const MAX: usize = 64;

/// Processes whose end is waited for.
#[derive(Default, Debug)]
pub(super) struct Ends {
    open: BTreeMap<u32, OwnedFd>,
    /// Each of the processes has a descriptor.
    complete: bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// The time has passed.
    Time,
    /// All processes have ended.
    AllEnded,
    /// The other descriptor can be read.
    Other,
}

impl Ends {
    /// Replaces the processes that are waited for.
    pub(super) fn set(&mut self, pids: &BTreeSet<u32>) {
        self.open.retain(|pid, _| pids.contains(pid));
        self.complete = pids.len() <= MAX;
        if !self.complete {
            self.open.clear();
            return;
        }
        for &pid in pids {
            if let Entry::Vacant(entry) = self.open.entry(pid) {
                match pidfd_open(pid) {
                    Ok(fd) => _ = entry.insert(fd),
                    // It has ended, or the kernel has no such descriptors: the next poll decides.
                    Err(_) => self.complete = false,
                }
            }
        }
    }

    /// Waits until all have ended, `other` can be read, or `time` has passed. The end of one process among
    /// others wakes nobody: a run of many short processes would be polled all the time.
    pub(super) fn wait(&mut self, time: Duration, other: Option<BorrowedFd>) -> Woken {
        let until = Instant::now() + time;
        loop {
            // Rounded up, so that the rest of a millisecond is not spent in this loop.
            let left = until.saturating_duration_since(Instant::now());
            let timeout = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
            let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let members = self.open.values().filter(|_| self.complete).map(AsFd::as_fd);
            let mut fds: Vec<PollFd> = other.into_iter().chain(members).map(input).collect();
            match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if left.is_zero() => return Woken::Time,
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "poll");
                    std::thread::sleep(left);
                    return Woken::Time;
                }
            }
            let mut seen: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if other.is_some() && seen.remove(0) {
                return Woken::Other;
            }
            let mut seen = seen.into_iter();
            self.open.retain(|_, _| !seen.next().unwrap_or(false));
            if self.open.is_empty() {
                return Woken::AllEnded;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat")
    }

    #[test]
    fn the_end_of_the_last_one_wakes() {
        let mut all: Vec<Child> = (0..3).map(|_| cat()).collect();
        let pids: BTreeSet<u32> = all.iter().map(Child::id).collect();
        let mut ends = Ends::default();
        ends.set(&pids);
        assert_eq!(ends.wait(SHORT, None), Woken::Time);
        drop(all[0].stdin.take());
        all[0].wait().unwrap();
        assert_eq!(ends.wait(SHORT, None), Woken::Time, "two are left");
        for child in &mut all[1..] {
            drop(child.stdin.take());
        }
        assert_eq!(ends.wait(LONG, None), Woken::AllEnded);
        all.iter_mut().for_each(|child| _ = child.wait());
    }

    #[test]
    fn another_descriptor_wakes() {
        let mut child = cat();
        let mut ends = Ends::default();
        ends.set(&BTreeSet::from([child.id()]));
        let (read, write) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(ends.wait(SHORT, Some(read.as_fd())), Woken::Time);
        drop(write);
        assert_eq!(ends.wait(LONG, Some(read.as_fd())), Woken::Other);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// The number of descriptors is limited. Without all of them the end of some is no end of all.
    #[test]
    fn too_many_are_not_waited_for() {
        let mut ends = Ends::default();
        let own = std::process::id();
        ends.set(&(0..=MAX as u32).map(|i| own + i).collect());
        assert_eq!((ends.open.len(), ends.complete), (0, false));
        assert_eq!(ends.wait(SHORT, None), Woken::Time);
        // One that is not there any more.
        ends.set(&BTreeSet::from([own, 1 << 23]));
        assert!(!ends.complete);
        assert_eq!(ends.wait(SHORT, None), Woken::Time);
        ends.set(&BTreeSet::new());
        assert_eq!(ends.wait(SHORT, None), Woken::Time);
    }
}
