// SPDX-License-Identifier: Apache-2.0
//! The command that has started a process; waiting for one that this process has started, and reading what it writes.

use crate::lookup::resolve;
use crate::proc::procfs::Process;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::read;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

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
    let until = Instant::now() + patience;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => break,
            ended => return Ok(ended),
        }
    }
    let _ = child.kill().and_then(|()| child.wait());
    Ok(None)
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
