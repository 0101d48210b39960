// SPDX-License-Identifier: Apache-2.0
//! The program whose memory and names are examined.

use anyhow::{Context as _, Result};
use hugelift_measure::generated::{self, Linking};
use hugelift_measure::host;
use hugelift_measure::program::Program;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Megabytes of code of the program whose memory and names are examined. Ten copies must fit into memory.
pub(super) const MEGABYTES: u64 = 16;

/// A copy of the generated program that only this benchmark uses.
pub struct Victim {
    _dir: TempDir,
    path: PathBuf,
}

impl Victim {
    pub fn new() -> Result<Victim> {
        let made = generated::jumps(MEGABYTES, Linking::Dynamic)?;
        let dir = TempDir::new_in(made.parent().context("a folder")?)?;
        let path = dir.path().join("jumps");
        std::fs::copy(&made, &path).with_context(|| format!("cannot copy {}", made.display()))?;
        std::fs::File::open(&path)?.sync_all()?;
        Ok(Victim { path, _dir: dir })
    }

    /// Returns the program with `calls` calls.
    pub fn calling(&self, calls: u64) -> Program {
        Program::new([&self.path]).arg(&calls.to_string()).arg("1")
    }

    /// Returns the least number of bytes that its code has in whole huge pages at any address.
    pub fn whole_bytes() -> u64 {
        (MEGABYTES << 20) - host::huge_page_bytes()
    }

    /// Returns the path of its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
