// SPDX-License-Identifier: Apache-2.0
//! Commands that a message shows, run as they are shown.

use crate::failure::Failure;
use hugelift_core::printable::{Escape, text_to_parse};
use std::process::Command;

const SHELL: &str = "/bin/sh";
/// The variable with the path of this program.
const OWN: &str = "HUGELIFT_OWN";

/// Runs a command by sh(1), as it is shown. `hugelift` in it is this program, by a function of the shell: no file that others may
/// have put beside it is run.
///
/// # Errors
/// The command fails: the first line of what it says on stderr.
pub fn run_shown(command: &str) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(|error| format!("the path of hugelift: {error}"))?;
    let script = format!("hugelift() {{ \"${OWN}\" \"$@\"; }}\n{command}");
    let done = Command::new(SHELL)
        .args(["-c", &script])
        .env(OWN, own)
        .output()
        .map_err(|error| format!("{SHELL}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = text_to_parse(&done.stderr);
    let line = said.lines().next().unwrap_or_default().escaped();
    Err(format!("'{command}' failed ({}): {line}; run it as root (sudo)", done.status).into())
}
