// SPDX-License-Identifier: Apache-2.0
//! Starts another hugelift, which ends with the thread that has started it or by itself.

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// The executable of this process, also if its file was replaced since.
const SELF: &str = "/proc/self/exe";

/// Starts hugelift with these words. Its messages go where those of this process go. It gets
/// SIGTERM when the thread that calls this ends (PR_SET_PDEATHSIG of prctl(2)).
///
/// # Errors
/// It cannot be started.
pub fn start(words: &[String], input: Stdio, output: Stdio) -> io::Result<Child> {
    let mut command = command(words, input, output);
    let daemon = std::process::id();
    let ends_with_daemon = move || {
        // The daemon has blocked the signals that it waits for, and a child inherits that (sigprocmask(2)).
        SigSet::empty().thread_set_mask()?;
        prctl::set_pdeathsig(Signal::SIGTERM)?;
        // It may have been killed before that.
        if getppid().as_raw().cast_unsigned() == daemon { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: it makes three system calls, and takes no lock.
    unsafe { command.pre_exec(ends_with_daemon) };
    command.spawn()
}

/// As [`start`], for work that is to be done to its end: it blocks SIGTERM, which systemd sends to all processes of the service.
///
/// # Errors
/// It cannot be started.
pub fn start_to_the_end(words: &[String], input: Stdio, output: Stdio) -> io::Result<Child> {
    let mut command = command(words, input, output);
    let goes_on = || {
        // The daemon has blocked other signals too (sigprocmask(2)).
        SigSet::empty().thread_set_mask()?;
        Ok(SigSet::from(Signal::SIGTERM).thread_block()?)
    };
    // SAFETY: it makes two system calls, and takes no lock.
    unsafe { command.pre_exec(goes_on) };
    command.spawn()
}

fn command(words: &[String], input: Stdio, output: Stdio) -> Command {
    let mut command = Command::new(SELF);
    command.args(words).stdin(input).stdout(output);
    command
}
