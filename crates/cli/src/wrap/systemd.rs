// SPDX-License-Identifier: Apache-2.0
//! Asks the programs of systemd: whether a unit is sound, and to read all units again.

use crate::failure::Failure;
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::command::wait_for_held;
use hugelift_linux::held_signals::HeldSignals;
use hugelift_linux::inherited_signals;
use hugelift_linux::machine::pools::has_systemd;
use hugelift_linux::machine::tree::Tree;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// The longest time that a program may take. A machine with thousands of units reads them for seconds.
const PATIENCE: Duration = Duration::from_secs(90);
/// The most bytes that are read of what it says.
const MOST: u64 = 64 << 10;

/// The programs of systemd, for this machine or for an image.
pub struct Systemd {
    /// The root of an image.
    root: Option<OsString>,
    /// Whether a manager runs, which has read the units.
    is_running: bool,
}

impl Systemd {
    /// Returns that of the machine or of the image.
    pub fn of(tree: &Tree) -> Systemd {
        let root = (!tree.is_live()).then(|| tree.path("/").into_os_string());
        Systemd { root, is_running: tree.is_live() && has_systemd(tree) }
    }

    /// Has a unit checked by systemd-analyze(1), which a held signal ends. Without systemd-analyze each unit is sound.
    ///
    /// # Errors
    /// Returns the first line that names a fault.
    pub fn verify(&self, unit: &str, held: Option<&HeldSignals>) -> Result<(), String> {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]);
        if let Some(root) = &self.root {
            command.arg("--root").arg(root);
        }
        match said(command.arg(unit), held) {
            Ok((status, _)) if status.success() => Ok(()),
            Ok((status, text)) => {
                Err(first_line(&text).map_or(format!("{status}"), |line| line.escaped().to_string()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Has the manager read all units again, if one runs.
    ///
    /// # Errors
    /// It does not.
    pub fn reload(&self) -> Result<(), Failure> {
        if !self.is_running {
            return Ok(());
        }
        // Ctrl-C is not for it: the units would be changed, and not read.
        let why = match said(Command::new("systemctl").arg("daemon-reload").process_group(0), None) {
            Ok((status, _)) if status.success() => return Ok(()),
            Ok((status, text)) => {
                first_line(&text).map_or(format!("{status}"), |line| line.escaped().to_string())
            }
            Err(error) => error.to_string(),
        };
        Err(Failure::new(format!("the file is changed, but 'systemctl daemon-reload' fails: {why}")))
    }
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty())
}

/// Runs a program, and returns how it ends and the begin of what it says. A held signal ends it.
fn said(command: &mut Command, held: Option<&HeldSignals>) -> io::Result<(ExitStatus, String)> {
    inherited_signals::pass_on(command);
    let mut out: File = tempfile::tempfile()?;
    let mut child = command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out.try_clone()?).spawn()?;
    let late = || io::Error::new(ErrorKind::TimedOut, format!("it has not ended in {PATIENCE:?}"));
    let status = wait_for_held(&mut child, PATIENCE, held)?.ok_or_else(late)?;
    out.rewind()?;
    let mut bytes = Vec::new();
    out.take(MOST).read_to_end(&mut bytes)?;
    Ok((status, text_to_parse(&bytes).into_owned()))
}
