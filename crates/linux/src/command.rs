// SPDX-License-Identifier: Apache-2.0
//! The command that has started a process; waiting for one that this process has started, and reading what it writes.

use crate::held_signals::HeldSignals;
use crate::lookup::resolve;
use crate::proc::procfs::Process;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, read};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How often an end is looked for.
const CHECK: Duration = Duration::from_millis(5);
/// How long a program has to end after a signal.
const ENDING: Duration = Duration::from_secs(2);
/// Bytes that are read in one turn at most.
const TURN: usize = 1 << 20;

/// Returns the command line of a process; nothing if its first word names no program. Some processes overwrite it with a
/// title, which starts nothing.
pub fn start_words(process: Process) -> Vec<OsString> {
    let line = process.read("cmdline").unwrap_or_default();
    let mut words: Vec<OsString> =
        line.split(|b| *b == 0).map(|word| OsStr::from_bytes(word).to_os_string()).collect();
    words.pop_if(|last| last.is_empty());
    if words.first().is_none_or(|name| resolve(name).is_err()) { Vec::new() } else { words }
}

/// Waits for the end of a child. When the time is up it kills the child, and returns `None`.
///
/// # Errors
/// waitpid(2) fails.
pub fn wait_for(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    wait_for_held(child, patience, None)
}

/// Passes on a signal to a child and waits for its end. It kills the child after two seconds. The terminal sends the signals of its
/// keys to the child too, which may clean up at the first one, so a child gets none of these twice.
///
/// # Errors
/// waitpid(2) fails.
pub fn end_by(child: &mut Child, signal: Signal) -> io::Result<Option<ExitStatus>> {
    if !matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
        let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
    }
    wait_for(child, ENDING)
}

/// Waits for the end of a child as [`wait_for`] does. A signal that this process holds ends the wait and the child.
///
/// # Errors
/// waitpid(2) fails.
pub fn wait_for_held(
    child: &mut Child,
    patience: Duration,
    held: Option<&HeldSignals>,
) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if let Some(signal) = held.and_then(HeldSignals::came) {
            return end_by(child, signal);
        }
        if Instant::now() >= until {
            let _ = child.kill().and_then(|()| child.wait());
            return Ok(None);
        }
        std::thread::sleep(CHECK);
    }
}

/// Has read(2) of a pipe return at once if there is nothing in it, as [`drain`] wants.
///
/// # Errors
/// fcntl(2)
pub fn never_wait(pipe: impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop).map_err(io::Error::from)
}

/// Gives `take` what is in a pipe that does not block. Returns whether its other end is closed.
pub fn drain(pipe: impl AsFd, mut take: impl FnMut(&[u8])) -> bool {
    let mut bytes = [0; 16 << 10];
    for _ in 0..TURN / bytes.len() {
        match read(&pipe, &mut bytes) {
            Ok(0) => return true,
            Ok(count) => take(&bytes[..count]),
            Err(Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    false
}
