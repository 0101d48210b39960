// SPDX-License-Identifier: Apache-2.0
//! What is read of one process: the file that it runs, its user, and the code that it has mapped.

use hugelift_linux::proc::procfs::Process;
use std::os::unix::fs::MetadataExt;

/// The file that a process runs: its device and inode.
pub(super) type Image = (u64, u64);

/// Returns the user of a process.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(Process::new(pid).path("")).map(|meta| meta.uid()).ok()
}

/// Returns the file that a process runs; `None` if that cannot be read.
pub(super) fn image(pid: u32) -> Option<Image> {
    Process::new(pid).executable().ok()
}

/// Returns the bytes of code that a process has mapped: it grows with each object that is opened.
pub(super) fn code_of(pid: u32) -> u64 {
    let code = |process: Process| process.status().ok().and_then(|status| status.code);
    let process = Process::new(pid);
    code(process).or_else(|| code(process.with_memory())).unwrap_or_default()
}
