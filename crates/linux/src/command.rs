// SPDX-License-Identifier: Apache-2.0
//! The command that has started a process, and waiting for one that this process has started.

use crate::lookup::resolve;
use crate::proc::procfs::Process;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

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
