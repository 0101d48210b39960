// SPDX-License-Identifier: Apache-2.0
//! Enlarges the hugetlb pool for the time of a benchmark.

use anyhow::{Context as _, Result, ensure};
use hugelift_lab::setting::Setting;
use hugelift_measure::host;
use std::fs;
use std::path::{Path, PathBuf};

/// Adds `bytes` to the pool with the page size of transparent huge pages. The pool gets its old size back when the setting is dropped,
/// or if this process is killed.
///
/// # Errors
/// This user may not change the pool, another program changes it, there is no such pool, or free memory is too fragmented. The pool is
/// then unchanged.
pub fn grow(bytes: u64) -> Result<Setting> {
    let page = host::huge_page_bytes();
    let folder = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10));
    // A value that is written counts only the persistent pages.
    let persistent = || -> Result<u64> {
        Ok(read(&folder.join("nr_hugepages"))?.saturating_sub(read(&folder.join("surplus_hugepages"))?))
    };
    let want = persistent()? + bytes.div_ceil(page);
    let setting = Setting::pool(&folder, want)?;
    let got = persistent()?;
    ensure!(got >= want, "the pool has {got} pages instead of {want}: echo 1 > /proc/sys/vm/compact_memory");
    Ok(setting)
}

fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{}: '{}'", path.display(), text.trim()))
}
