// SPDX-License-Identifier: Apache-2.0
//! A child that has a copy of this process's memory and does nothing. It stands for one that writes a
//! checkpoint.

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use std::io::PipeWriter;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// A child that lives until this value is dropped or this process ends.
#[derive(Debug)]
pub struct Checkpoint {
    child: Pid,
    /// The child waits until this pipe is closed.
    alive: Option<PipeWriter>,
}

impl Checkpoint {
    /// Forks. Also returns how long fork(2) took.
    ///
    /// # Errors
    /// EAGAIN or ENOMEM of fork(2).
    pub fn fork() -> Result<(Checkpoint, Duration)> {
        let (read, write) = std::io::pipe().context("pipe")?;
        let mut before = SigSet::empty();
        // The child must not run signal handlers of this process. Ctrl-C reaches the child too; it has to
        // live until its parent ends it.
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))
            .context("sigmask")?;
        let began = Instant::now();
        // SAFETY: fork(2): the child calls close(2), read(2) and _exit(2) only, which
        // signal-safety(7) allows, and never returns.
        let forked = unsafe { fork() };
        let took = began.elapsed();
        if matches!(forked, Ok(ForkResult::Child)) {
            wait_for_end(read.as_raw_fd(), write.as_raw_fd());
        }
        let restored = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).context("sigmask");
        match forked.context("fork")? {
            ForkResult::Parent { child } => {
                let checkpoint = Checkpoint { child, alive: Some(write) };
                restored?;
                Ok((checkpoint, took))
            }
            ForkResult::Child => unreachable!("the child has ended above"),
        }
    }
}

/// Waits in the child until the pipe is closed, then exits.
pub fn wait_for_end(read: i32, write: i32) -> ! {
    // SAFETY: close(2) of our copy of the writing end, so that the parent has the last one; read(2) into
    // a byte that lives through the call; _exit(2).
    unsafe {
        libc::close(write);
        let mut byte = 0u8;
        while libc::read(read, (&raw mut byte).cast(), 1) > 0 {}
        libc::_exit(0)
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        drop(self.alive.take());
        // The child now ends. The call fails only if other code has waited for the child already.
        let _ = waitpid(self.child, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::memory::Pages;

    #[test]
    fn the_child_has_a_copy_until_it_ends() {
        let _alone = crate::alone();
        let memory = Block::filled(Pages::Small, 2 << 20, 1).expect("2 MB");
        let (child, took) = Checkpoint::fork().expect("fork");
        assert!(took > Duration::ZERO);
        let there = || std::path::Path::new(&format!("/proc/{}", child.child)).exists();
        assert!(there());
        // Pss counts half of each shared page.
        assert_eq!(memory.usage().expect("smaps").pss, 1 << 20);
        memory.write(0, 2);
        assert_eq!(
            memory.usage().expect("smaps").pss,
            (1 << 20) + (hugelift_linux::machine::base_page().bytes() / 2)
        );
        let pid = child.child;
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(memory.usage().expect("smaps").pss, 2 << 20);
    }
}
