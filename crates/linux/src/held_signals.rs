// SPDX-License-Identifier: Apache-2.0
//! Holds the signals that end this process while it does what must not be left half done.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// What a user, a terminal or a system sends to end a process.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];

/// SIGINT, SIGQUIT, SIGTERM and SIGHUP are blocked for the calling thread while this value lives. One that has come meanwhile has
/// its effect when the value is dropped. Of two values the later one must be dropped first. In a process of several threads another
/// thread may take the signal. A child inherits them blocked, unless
/// [`crate::inherited_signals::pass_on`] was called for its command.
#[derive(Debug)]
pub struct HeldSignals {
    held: SigSet,
    /// Each thread has a mask of its own, so the value stays on the thread that has made it.
    of_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// Blocks the signals, but for those that are blocked already or ignored, as by nohup(1).
    ///
    /// # Errors
    /// sigprocmask(2)
    pub fn hold() -> io::Result<HeldSignals> {
        HeldSignals::of(&ENDING)
    }

    /// Blocks these signals instead, in the same way.
    ///
    /// # Errors
    /// sigprocmask(2)
    pub fn of(signals: &[Signal]) -> io::Result<HeldSignals> {
        let wanted: SigSet = signals.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
        let before = wanted.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let held = wanted.iter().filter(|signal| !before.contains(*signal)).collect();
        Ok(HeldSignals { held, of_thread: PhantomData })
    }

    /// Returns a held signal that has come (sigpending(2)).
    pub fn came(&self) -> Option<Signal> {
        // The kernel writes as many signals as it has, which are fewer than the set has room for.
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigpending(2) writes to the set, which lives through the call.
        if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: all zeros is a set, and the call has written signals to it.
        let pending = unsafe { SigSet::from_sigset_t_unchecked(pending.assume_init()) };
        self.held.iter().find(|signal| pending.contains(*signal))
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // It fails for no set of signals.
        let _ = self.held.thread_unblock();
    }
}

/// Returns whether this process ignores a signal, as nohup(1) has it ignore SIGHUP. One that is blocked is queued all the same.
pub fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction(2) without a new action writes the present one to what lives through the call.
    let is_read = unsafe { libc::sigaction(signal as libc::c_int, ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: all zeros is an action, and the call has written to it.
    is_read && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SigHandler, raise, signal};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, Pid, fork};

    /// Runs `act` in a child, since it changes and raises signals. Returns how the child ends.
    fn in_a_child(act: impl FnOnce() -> i32) -> (Pid, WaitStatus) {
        // SAFETY: the child makes system calls and takes no lock.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let status = act();
                // SAFETY: _exit(2) ends the child at once.
                unsafe { libc::_exit(status) }
            }
            ForkResult::Parent { child } => (child, waitpid(child, None).unwrap()),
        }
    }

    #[test]
    fn a_signal_has_its_effect_afterwards() {
        let (child, ended) = in_a_child(|| {
            let Ok(held) = HeldSignals::hold() else { return 1 };
            if held.came().is_some() {
                return 2;
            }
            let _ = raise(Signal::SIGTERM);
            if held.came() != Some(Signal::SIGTERM) {
                return 3;
            }
            // A second value neither unblocks the signal nor reports it.
            let Ok(inner) = HeldSignals::hold() else { return 4 };
            if inner.came().is_some() {
                return 5;
            }
            drop(inner);
            drop(held);
            6
        });
        assert_eq!(ended, WaitStatus::Signaled(child, Signal::SIGTERM, false));
    }

    #[test]
    fn one_that_is_ignored_does_not_come() {
        let (child, ended) = in_a_child(|| {
            // SAFETY: signal(2) without a handler.
            let _ = unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
            let Ok(held) = HeldSignals::hold() else { return 1 };
            let _ = raise(Signal::SIGHUP);
            if held.came().is_some() { 2 } else { 0 }
        });
        assert_eq!(ended, WaitStatus::Exited(child, 0));
    }
}
