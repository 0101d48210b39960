// SPDX-License-Identifier: Apache-2.0
//! Whether a process has copies of its code already, whoever has made them.

use hugelift_core::proc_stat::Identity;
use hugelift_core::restore::replaced;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;

/// Returns the bytes of copies that a process has; `None` if it has ended, or cannot be read.
pub fn of((pid, start): Identity) -> Option<u64> {
    let process = Process::new(pid);
    let snapshot = snapshot::live(Some(process.pid()), 0).ok()?;
    let is_it = process.stat().is_ok_and(|stat| stat.start == start);
    is_it.then(|| replaced(&snapshot).iter().map(|copy| copy.range.len()).sum())
}
