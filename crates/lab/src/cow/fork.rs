// SPDX-License-Identifier: Apache-2.0
//! A child that has a copy of this process's memory and does nothing: as one that writes a
//! checkpoint, but for the writing.

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use std::io::PipeWriter;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// A child that lives until this value is dropped, or this process is gone.
#[derive(Debug)]
pub struct Checkpoint {
    child: Pid,
    /// Its end is what the child waits for.
    alive: Option<PipeWriter>,
}

impl Checkpoint {
    /// Forks; also how long fork(2) took.
    ///
    /// # Errors
    /// EAGAIN, ENOMEM.
    pub fn fork() -> Result<(Checkpoint, Duration)> {
        let (read, write) = std::io::pipe().context("pipe")?;
        let mut before = SigSet::empty();
        // Handlers of this process are not for the child, and ctrl-C reaches it too: it lives as
        // long as its parent has not seen to it.
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

/// The child's life.
fn wait_for_end(read: i32, write: i32) -> ! {
    // SAFETY: close(2) of the end that the parent has too, so that the parent's is the last; read(2)
    // into a byte that lives; _exit(2).
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
        // It ends by itself now; it can only not be there if somebody else has waited for it.
        let _ = waitpid(self.child, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::memory::Pages;

    #[test]
    fn the_child_lives_with_its_copy_and_goes() {
        let _one = crate::forking();
        let memory = Block::filled(Pages::Small, 2 << 20, 1).expect("2 MB");
        let (child, took) = Checkpoint::fork().expect("fork");
        assert!(took > Duration::ZERO);
        let there = || std::path::Path::new(&format!("/proc/{}", child.child)).exists();
        assert!(there());
        // Half of all is the child's.
        assert_eq!(memory.usage().expect("smaps").pss, 1 << 20);
        memory.write(0, 2);
        assert_eq!(
            memory.usage().expect("smaps").pss,
            (1 << 20) + (hugelift_os::machine::base_page().bytes() / 2)
        );
        let pid = child.child;
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(memory.usage().expect("smaps").pss, 2 << 20);
    }
}
