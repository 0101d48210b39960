// SPDX-License-Identifier: Apache-2.0
//! Commands that a message shows, run as they are shown.

use crate::failure::Failure;
use hugelift_core::printable::{Escape, text_to_parse};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Runs a command by sh(1), as it is shown. PATH makes `hugelift` in it this program.
///
/// # Errors
/// The command fails: the first line of what it says on stderr.
pub fn run_shown(command: &str) -> Result<(), Failure> {
    let done = Command::new("sh")
        .args(["-c", command])
        .env("PATH", own_path())
        .output()
        .map_err(|error| format!("sh: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = text_to_parse(&done.stderr);
    let line = said.lines().next().unwrap_or_default().escaped();
    Err(format!("'{command}' failed ({}): {line}; run it as root (sudo)", done.status).into())
}

/// Returns PATH with the folder of this program in front.
fn own_path() -> OsString {
    let own = std::env::current_exe().ok().and_then(|exe| exe.parent().map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}
