// SPDX-License-Identifier: Apache-2.0
//! Copies of a small program and its libraries whose code has huge pages of its own (`align --separate`).

use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The copies of an executable and of its libraries.
pub struct Copies {
    folder: Option<PathBuf>,
    executable: Option<PathBuf>,
}

impl Copies {
    /// Returns none: the program is lifted as it is.
    pub fn none() -> Copies {
        Copies { folder: None, executable: None }
    }

    /// Makes the copies in a new folder. What is refused stays as it is.
    ///
    /// # Errors
    /// The program is not in PATH, or nothing of it can be copied.
    pub fn of(program: &Program, folder: &Path) -> Result<Copies> {
        let name = program.argv.first().context("no program")?;
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| path.is_file());
        let path = fs::canonicalize(found.with_context(|| format!("no {} in PATH", name.display()))?)?;
        fs::create_dir_all(folder)?;
        let executable = folder.join(Path::new(name).file_name().context("a program without a name")?);
        let executable = separate(&path, &executable)?.then_some(executable);
        let mut any = executable.is_some();
        // Lines as "libm.so.6 => /lib/libm.so.6 (0x7f...)".
        let listed = Command::new("ldd").arg(&path).output().context("ldd")?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some("=>"), Some(library)) = (words.next(), words.next(), words.next()) {
                any |= separate(Path::new(library), &folder.join(name))?;
            }
        }
        ensure!(any, "align --separate refuses {} and its libraries", path.display());
        Ok(Copies { folder: Some(folder.into()), executable })
    }

    /// Returns the program with the copies in the place of the files.
    pub fn instead(&self, program: &Program) -> Program {
        let mut copy = program.clone();
        if let Some(executable) = &self.executable {
            copy.argv[0] = executable.into();
        }
        if let Some(folder) = &self.folder {
            copy.env.push((OsString::from("LD_LIBRARY_PATH"), folder.into()));
        }
        copy
    }
}

/// Makes a copy of a file whose code has huge pages of its own. Returns false if that is refused.
fn separate(file: &Path, copy: &Path) -> Result<bool> {
    let mut align = Command::new(hugelift()?);
    align.args(["align", "--separate", "--least", "1", "-o"]).args([copy, file]);
    Ok(align.output().context("hugelift align")?.status.success())
}
