// SPDX-License-Identifier: Apache-2.0
//! SIGINT (ctrl-C), SIGQUIT, SIGTERM and SIGHUP end the measurement and every process group that it has started:
//! by SIGTERM at once, by SIGKILL after 5 s or at the second signal.

use anyhow::{Context as _, Result};
use hugelift_linux::held_signals::is_ignored;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The most groups at a time: a server, its load, and some to spare.
const GROUPS: usize = 8;

/// How long a group has to end after SIGTERM, in seconds.
const PATIENCE: libc::c_uint = 5;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static RUNNING: [AtomicI32; GROUPS] = [const { AtomicI32::new(0) }; GROUPS];

/// Installs the handlers of SIGINT, SIGQUIT, SIGTERM and SIGHUP, where they are not ignored, and of SIGALRM. Must be called once,
/// before a child is started.
///
/// # Errors
/// The kernel refuses a handler.
pub fn prepare() -> Result<()> {
    let ending = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];
    let asked =
        ending.into_iter().filter(|signal| !is_ignored(*signal)).map(|signal| (signal, on_request as _));
    for (signal, handler) in asked.chain([(Signal::SIGALRM, on_alarm as _)]) {
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: sigaction(2); the handlers use atomics, kill(2) and alarm(2) only, which
        // signal-safety(7) allows.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("sigaction({signal})"))?;
    }
    Ok(())
}

/// A signal has asked this process to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Fails once a signal has asked this process to end.
///
/// # Errors
/// [`Interrupted`].
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) { Err(Interrupted.into()) } else { Ok(()) }
}

/// Lets this process start children again that are not ended at once: those that clean up after an interrupted
/// measurement. The next signal ends them.
pub fn accept() {
    // SAFETY: alarm(2) takes a plain number.
    unsafe { libc::alarm(0) };
    INTERRUPTED.store(false, Ordering::SeqCst);
}

extern "C" fn on_request(_: libc::c_int) {
    let again = INTERRUPTED.swap(true, Ordering::SeqCst);
    signal_all(if again { libc::SIGKILL } else { libc::SIGTERM });
    // SAFETY: alarm(2) takes a plain number.
    unsafe { libc::alarm(PATIENCE) };
}

extern "C" fn on_alarm(_: libc::c_int) {
    signal_all(libc::SIGKILL);
}

fn signal_all(signal: libc::c_int) {
    for group in RUNNING.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|&group| group > 1) {
        // SAFETY: kill(2) with plain numbers; this process has started the leader of the group and
        // not yet waited for it, so the number belongs to no other group.
        unsafe { libc::kill(-group, signal) };
    }
}

/// A process group that an interrupt ends while this value lives.
#[derive(Debug)]
pub struct Group {
    id: i32,
    slot: Option<usize>,
}

impl Group {
    /// Registers the group of which the child `leader` is the leader.
    pub fn of(leader: i32) -> Group {
        let free =
            |slot: &AtomicI32| slot.compare_exchange(0, leader, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let group = Group { id: leader, slot: RUNNING.iter().position(free) };
        // A signal that came after the start of the child has not reached it.
        if INTERRUPTED.load(Ordering::SeqCst) {
            group.signal(libc::SIGTERM);
        }
        group
    }

    /// Sends `signal` to the group. A group that has ended is not an error.
    pub fn signal(&self, signal: libc::c_int) {
        if self.id > 1 {
            // SAFETY: kill(2) with plain numbers.
            unsafe { libc::kill(-self.id, signal) };
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            RUNNING[slot].store(0, Ordering::SeqCst);
        }
    }
}
