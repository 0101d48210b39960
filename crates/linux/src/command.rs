// SPDX-License-Identifier: Apache-2.0
//! The command that has started a process.

use crate::lookup::resolve;
use crate::proc::procfs::Process;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// Returns the command line of a process; nothing if its first word names no program. Some processes overwrite it with a
/// title, which starts nothing.
pub fn start_words(process: Process) -> Vec<OsString> {
    let line = process.read("cmdline").unwrap_or_default();
    let mut words: Vec<OsString> =
        line.split(|b| *b == 0).map(|word| OsStr::from_bytes(word).to_os_string()).collect();
    words.pop_if(|last| last.is_empty());
    if words.first().is_none_or(|name| resolve(name).is_err()) { Vec::new() } else { words }
}
