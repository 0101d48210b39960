// SPDX-License-Identifier: Apache-2.0
//! What a subcommand needs that stays until it is asked to end: signals as a descriptor, and systemd.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;

/// Blocks these signals and SIGPIPE in the calling thread, and in those that it starts later. Returns a descriptor
/// from which the signals are read, but for SIGPIPE.
///
/// # Errors
/// signalfd(2)
pub fn signals(wanted: &[Signal]) -> Result<SignalFd, String> {
    let mut mask = SigSet::empty();
    wanted.iter().for_each(|signal| mask.add(*signal));
    let mut blocked = mask;
    blocked.add(Signal::SIGPIPE);
    let failed = |e: Errno| format!("cannot wait for signals: {e}");
    blocked.thread_block().map_err(failed)?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(failed)
}

/// Notifies systemd, if it has set `NOTIFY_SOCKET` (sd_notify(3)).
pub fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "sd_notify");
    }
}
