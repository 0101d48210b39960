// SPDX-License-Identifier: Apache-2.0
//! Enlarges the hugetlb pool for the time of a benchmark.

use anyhow::{Context as _, Result, ensure};
use hugelift_measure::host;
use std::fs;
use std::path::{Path, PathBuf};

/// An enlarged pool. It gets its old size back when the value is dropped.
pub struct Grown {
    path: PathBuf,
    before: u64,
}

impl Grown {
    /// Adds `bytes` to the pool with the page size of transparent huge pages.
    ///
    /// # Errors
    /// This user may not change the pool, there is no such pool, or free memory is too fragmented. The
    /// pool is then unchanged.
    pub fn by(bytes: u64) -> Result<Grown> {
        let page = host::huge_page_bytes();
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page >> 10);
        let path = PathBuf::from(path);
        // A value that is written counts only the persistent pages.
        let before = read(&path)? - read(&path.with_file_name("surplus_hugepages"))?;
        let want = before + bytes.div_ceil(page);
        fs::write(&path, want.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        let grown = Grown { path, before };
        let got = read(&grown.path)?;
        ensure!(
            got >= want,
            "the pool has {got} pages instead of {want}: echo 1 > /proc/sys/vm/compact_memory"
        );
        Ok(grown)
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        if let Err(e) = fs::write(&self.path, self.before.to_string()) {
            eprintln!("cannot put {} back to {}: {e}", self.path.display(), self.before);
        }
    }
}

fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{}: '{}'", path.display(), text.trim()))
}
