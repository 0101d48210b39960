// SPDX-License-Identifier: Apache-2.0
//! What this process has inherited of signals: its mask (sigprocmask(2)), and whether SIGCHLD and SIGPIPE are ignored (sigaction(2)).
//! A program that it starts for the user inherits the same, whatever this process has changed for itself since, and although the
//! standard library resets SIGPIPE.

use crate::held_signals::is_ignored;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

#[derive(Clone, Copy)]
struct Inherited {
    mask: SigSet,
    ignores_children: bool,
    ignores_pipe: bool,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Records the signals, and has the kernel keep each child that has ended until it is waited for. It keeps none for a process that
/// ignores SIGCHLD (wait(2), NOTES). This must be called before this process blocks a signal.
pub fn record() {
    INHERITED.get_or_init(|| {
        let mask = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
        let ignores_children = is_ignored(Signal::SIGCHLD);
        if ignores_children {
            // SAFETY: signal(2) without a handler.
            let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
        }
        Inherited { mask, ignores_children, ignores_pipe: is_ignored(Signal::SIGPIPE) }
    });
}

/// Returns what was recorded, or else what most programs inherit.
fn inherited() -> Inherited {
    let none = Inherited { mask: SigSet::empty(), ignores_children: false, ignores_pipe: false };
    INHERITED.get().copied().unwrap_or(none)
}

/// Has the program that `command` will start inherit what this process has inherited.
pub fn pass_on(command: &mut Command) {
    let inherited = inherited();
    let ignores = inherited.ignores_children || inherited.ignores_pipe;
    let is_changed = ignores || inherited.differences().is_some();
    // A command with a closure starts more slowly: by fork(2) instead of vfork(2).
    if is_changed {
        // SAFETY: between fork and exec the closure makes some system calls, and allocates nothing.
        unsafe { command.pre_exec(move || inherited.restore()) };
    }
}

/// Does the same in a process that was forked and will execute the program.
///
/// # Errors
/// sigaction(2), sigprocmask(2)
pub fn restore() -> io::Result<()> {
    inherited().restore()
}

impl Inherited {
    fn restore(self) -> io::Result<()> {
        let both = [(Signal::SIGCHLD, self.ignores_children), (Signal::SIGPIPE, self.ignores_pipe)];
        for (ignored, _) in both.into_iter().filter(|(_, is_ignored)| *is_ignored) {
            // SAFETY: signal(2) without a handler.
            unsafe { signal(ignored, SigHandler::SigIgn) }?;
        }
        if let Some([block, unblock]) = self.differences() {
            block.thread_block()?;
            unblock.thread_unblock()?;
        }
        Ok(())
    }

    /// Returns the signals that would have to be blocked and unblocked. The C library's own signals are not among them: the C
    /// library leaves them out of the mask that it returns.
    fn differences(self) -> Option<[SigSet; 2]> {
        let now = SigSet::thread_get_mask().ok()?;
        let lacking = |of: SigSet, others: SigSet| -> SigSet {
            Signal::iterator().filter(|signal| of.contains(*signal) && !others.contains(*signal)).collect()
        };
        let both = [lacking(self.mask, now), lacking(now, self.mask)];
        both.iter().any(|set| set.iter().next().is_some()).then_some(both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held_signals::HeldSignals;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn a_child_does_not_inherit_held_signals() {
        let _held = HeldSignals::hold().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -TERM $$; exit 1"]);
        pass_on(&mut command);
        assert_eq!(command.status().unwrap().signal(), Some(libc::SIGTERM));
    }
}
