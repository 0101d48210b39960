// SPDX-License-Identifier: Apache-2.0
//! Work in a child that is left behind if it does not answer.
//!
//! Whoever reads the memory of another process may wait for that process's user: for a file system that the user serves
//! (FUSE), or for userfaultfd(2). The kernel ends some of these waits at no signal, not even at SIGKILL
//! (fs/fuse/dev.c, `request_wait_answer`). A thread is not enough: a process with such a thread cannot end.
//!
//! ```text
//!   watcher  |-- fork --.                        .-- goes on, also if no answer comes
//!   child               |== work == answer ==| ends
//! ```

use hugelift_linux::faultpoint;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// How often it is checked whether a child that has not answered still works, in milliseconds.
const CHECK: u16 = 100;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// pipe(2) or fork(2) failed.
    #[error("cannot start a child: {0}")]
    NoChild(io::Error),
    /// It has used no CPU time for so long. It was killed, and ends when its wait does.
    #[error("its memory or its files did not answer for {} s", .0.as_secs())]
    Silent(Duration),
    /// It ended without an answer.
    #[error("a child of hugelift that was to lift it was killed")]
    Killed,
}

/// Children that are or were at work.
#[derive(Debug, Default)]
pub struct Children {
    /// Children that did not answer, and may not have ended yet.
    left: Vec<Pid>,
}

impl Children {
    /// Reaps the children that have ended: the kernel removes them from the list of processes.
    pub fn reap(&mut self) {
        self.left.retain(|child| !has_ended(*child));
    }

    /// Does `work` in a child, and returns its answer. A child that uses no CPU time for `patience` is killed and left
    /// behind. The calling process must have one thread.
    ///
    /// # Errors
    /// [`NoAnswer`]
    pub fn run(&mut self, patience: Duration, work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, NoAnswer> {
        self.reap();
        let failed = |errno: Errno| NoAnswer::NoChild(errno.into());
        let parent = getpid();
        let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        // SAFETY: this process has one thread, so the child finds no lock taken. It ends by _exit(2).
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Child => {
                end_with(parent);
                drop(read);
                // If nobody reads the answer any more, nobody needs it.
                let _ = File::from(write).write_all(&work());
                // SAFETY: ends the process without the work of its parent.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                drop(write);
                let answer = answer_of(File::from(read), child, faultpoint::patience(patience));
                if answer.is_err() {
                    // It may have ended by itself.
                    let _ = kill(child, Signal::SIGKILL);
                }
                if !has_ended(child) {
                    self.left.push(child);
                }
                answer
            }
        }
    }
}

/// Ends this process when its parent ends, so that nothing is changed which nobody knows of. Between two system calls of a lift that
/// harms nobody: the next hugelift undoes what is half done.
fn end_with(parent: Pid) {
    let _ = set_pdeathsig(Signal::SIGKILL);
    if getppid() != parent {
        // SAFETY: ends the process without the work of its parent.
        unsafe { libc::_exit(0) }
    }
}

/// Reads what a child writes until it has closed the pipe.
fn answer_of(mut pipe: File, child: Pid, patience: Duration) -> Result<Vec<u8>, NoAnswer> {
    let process = Process::of(child.as_raw());
    let used = || process.stat().map(|stat| stat.cpu).ok();
    let (mut answer, mut last, mut since) = (Vec::new(), used(), Instant::now());
    loop {
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(CHECK)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => {
                let mut piece = [0; 4096];
                match pipe.read(&mut piece) {
                    Ok(0) if answer.is_empty() => return Err(NoAnswer::Killed),
                    Ok(0) => return Ok(answer),
                    Ok(n) => answer.extend_from_slice(&piece[..n]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(NoAnswer::NoChild(error)),
                }
            }
            Err(errno) => return Err(NoAnswer::NoChild(errno.into())),
        }
        let now = used();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= patience {
            return Err(NoAnswer::Silent(patience));
        }
    }
}

/// Returns whether a child has ended, and takes it out of the list of processes.
fn has_ended(child: Pid) -> bool {
    // Where SIGCHLD is ignored, the kernel has taken it out already.
    !matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(nix::sys::wait::WaitStatus::StillAlive))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_answer_of_a_child_arrives_whole() {
        let mut children = Children::default();
        let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let answer = children.run(LONG, || bytes.clone()).unwrap();
        assert!(answer == bytes && children.left.len() <= 1);
        let until = Instant::now() + LONG;
        while !children.left.is_empty() && Instant::now() < until {
            children.reap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(children.left.is_empty());
    }

    #[test]
    fn a_child_ends_with_its_parent() {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        // SAFETY: the child makes system calls alone, and ends by _exit(2) or by a signal.
        let ForkResult::Parent { child } = unsafe { fork() }.unwrap() else {
            let tells = || {
                let _ = nix::unistd::write(&write, &getpid().as_raw().to_ne_bytes());
                std::thread::sleep(LONG);
                Vec::new()
            };
            let _ = Children::default().run(LONG, tells);
            // SAFETY: see above.
            unsafe { libc::_exit(0) }
        };
        drop(write);
        let mut bytes = [0; 4];
        File::from(read).read_exact(&mut bytes).unwrap();
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
        let process = Process::of(i32::from_ne_bytes(bytes));
        // It would go on for longer.
        let until = Instant::now() + LONG / 2;
        while !process.has_no_memory() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(process.has_no_memory());
    }

    #[test]
    fn a_child_that_does_not_answer_is_left_behind() {
        let mut children = Children::default();
        let patience = Duration::from_millis(300);
        let sleeps = || {
            std::thread::sleep(LONG);
            vec![1]
        };
        assert!(matches!(children.run(patience, sleeps), Err(NoAnswer::Silent(_))));
        let dies = || -> Vec<u8> { std::process::abort() };
        assert!(matches!(children.run(LONG, dies), Err(NoAnswer::Killed)));
        // One that computes is not taken for one that waits. A busy machine may give it no CPU time for a second.
        let patience = Duration::from_secs(3);
        let computes = || {
            let until = Instant::now() + patience + Duration::from_millis(500);
            while Instant::now() < until {}
            vec![2]
        };
        assert_eq!(children.run(patience, computes).unwrap(), [2]);
    }
}
