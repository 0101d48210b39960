// SPDX-License-Identifier: Apache-2.0
//! Enlarges the hugetlb pool for the time of a benchmark.

use anyhow::Result;
use hugelift_lab::setting::Setting;
use hugelift_measure::host;
use std::path::PathBuf;

/// Adds `bytes` to the pool with the page size of transparent huge pages. The pool gets its old size back when the setting is dropped,
/// or if this process is killed.
///
/// # Errors
/// This user may not change the pool, another program changes it, there is no such pool, or free memory is too fragmented. The pool is
/// then unchanged.
pub fn grow(bytes: u64) -> Result<Setting> {
    let page = host::huge_page_bytes();
    let folder = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10));
    Setting::grow_pool(&folder, bytes.div_ceil(page))
}
