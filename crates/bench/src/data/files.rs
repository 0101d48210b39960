// SPDX-License-Identifier: Apache-2.0
//! Data files and their two copies: one whose page cache stays in small pages, one that is primed.

use crate::primed::{copies, hold, prime};
use anyhow::{Context as _, Result, ensure};
use blake3::{Hash, Hasher};
use hugelift_core::addr::PageSize;
use hugelift_pages::pagecache::prime::Locked;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The part of the primed files that must be huge, and the part of the others that may be, in percent.
const NEARLY_ALL: u64 = 95;
const NEARLY_NONE: u64 = 2;

/// The copies. They are removed when the value is dropped.
pub struct Files {
    dir: TempDir,
    /// Name and contents of each large file, as it was made.
    made: Vec<(OsString, Hash)>,
}

/// The page cache of the copies, in bytes.
pub struct Cached {
    small_huge: u64,
    primed_huge: u64,
    whole: u64,
}

impl Files {
    /// Makes files with `generate`, which gets a folder, and copies them.
    ///
    /// # Errors
    /// The files cannot be made or copied, or none has a whole huge page.
    pub fn make(generate: impl FnOnce(&Path) -> Result<()>) -> Result<Files> {
        let dir = TempDir::new_in(std::env::current_exe()?.parent().context("own folder")?)?;
        let folder = dir.path().join("made");
        fs::create_dir(&folder)?;
        generate(&folder)?;
        let paths = paths_in(&folder)?;
        let made = hashes(&paths)?;
        ensure!(!made.is_empty(), "no large file was made");
        let files = Files { dir, made };
        for copy in [files.small(), files.primed()] {
            copies(&paths, &copy)?;
            // The kernel makes no huge page of pages that are to be written.
            paths_in(&copy)?.iter().try_for_each(|path| File::open(path)?.sync_all())?;
        }
        fs::remove_dir_all(&folder)?;
        Ok(files)
    }

    /// Returns the folder of the copies that stay in small pages.
    pub fn small(&self) -> PathBuf {
        self.dir.path().join("small")
    }

    /// Returns the folder of the copies that are primed.
    pub fn primed(&self) -> PathBuf {
        self.dir.path().join("primed")
    }

    /// Primes one side, and keeps both in memory for as long as the result lives.
    ///
    /// # Errors
    /// `hugelift prime` failed.
    pub fn prime(&self) -> Result<[Vec<Locked>; 2]> {
        prime(&self.primed(), false)?;
        Ok([hold(&self.small())?, hold(&self.primed())?])
    }

    /// Returns how much of each side is huge in the page cache.
    ///
    /// # Errors
    /// It is not what the sides are for.
    pub fn check(&self) -> Result<Cached> {
        let (small_huge, _) = prime(&self.small(), true)?;
        let (primed_huge, whole) = prime(&self.primed(), true)?;
        let cached = Cached { small_huge, primed_huge, whole };
        let is_right = small_huge * 100 <= whole * NEARLY_NONE && primed_huge * 100 >= whole * NEARLY_ALL;
        ensure!(is_right, "the page cache is not in small pages on one side and huge on the other: {cached}");
        Ok(cached)
    }

    /// Checks that both sides have the bytes of the files as they were made.
    ///
    /// # Errors
    /// A file has others.
    pub fn check_unchanged(&self) -> Result<()> {
        for folder in [self.small(), self.primed()] {
            let now = hashes(&paths_in(&folder)?)?;
            ensure!(now == self.made, "a file in {} has changed", folder.display());
        }
        println!("    bytes unchanged");
        Ok(())
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes >> 20;
        let Cached { small_huge, primed_huge, whole } = self;
        let (small, primed, whole) = (mb(*small_huge), mb(*primed_huge), mb(*whole));
        write!(f, "of {whole} MB in whole huge pages {small} are huge, primed {primed}")
    }
}

fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the names and hashes of the files that have a whole huge page. A database may write to its smaller ones.
fn hashes(paths: &[PathBuf]) -> Result<Vec<(OsString, Hash)>> {
    let mut hashes = Vec::new();
    for path in paths {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        if file.metadata()?.len() >= PageSize::MB2.bytes() {
            let mut hasher = Hasher::new();
            hasher.update_reader(&file).with_context(|| path.display().to_string())?;
            hashes.push((path.file_name().context("a file without a name")?.into(), hasher.finalize()));
        }
    }
    Ok(hashes)
}
