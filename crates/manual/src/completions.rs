// SPDX-License-Identifier: Apache-2.0
//! Completions for bash, zsh and fish.

use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::Path;

/// Each shell, and the name under which it looks for a completion of hugelift.
const FILES: [(Shell, &str); 3] =
    [(Shell::Bash, "hugelift.bash"), (Shell::Zsh, "_hugelift"), (Shell::Fish, "hugelift.fish")];

/// Writes a file for each shell.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write_all(mut command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (shell, name) in FILES {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, "hugelift", &mut text);
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
