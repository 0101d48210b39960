// SPDX-License-Identifier: Apache-2.0
//! Finds the process with most shared memory, and how much of it huge pages can map.

use crate::facts::SharedProgram;
use hugelift_core::printable::text_to_parse;
use hugelift_core::report::shared_memory;
use hugelift_linux::machine::thp_page;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use std::os::unix::ffi::OsStrExt as _;

/// Less is not worth a page table.
const LEAST: u64 = 64 << 20;

/// Returns the shared memory of process `pid`, or of the one with most of it; `None` if it is little, or cannot be read.
pub fn shared(pid: Option<u32>) -> Option<SharedProgram> {
    let resident = |pid: u32| Process::new(pid).status().ok()?.shared;
    let most = || {
        let all = Process::all().unwrap_or_default();
        all.into_iter().filter_map(|pid| Some((resident(pid)?, pid))).max().map(|(_, pid)| pid)
    };
    let pid = pid.or_else(most)?;
    if resident(pid)? < LEAST {
        return None;
    }
    let process = Process::new(pid).with_memory();
    let found = snapshot::live(Some(process.pid()), 0).ok()?;
    let shared = shared_memory(&found, &process.smaps().ok()?, thp_page()?);
    let exe = std::fs::read_link(process.path("exe")).unwrap_or_default();
    Some(SharedProgram {
        pid,
        exe: text_to_parse(exe.as_os_str().as_bytes()).into_owned(),
        liftable: shared.total.liftable_bytes,
        huge: shared.total.huge_bytes,
        incongruent: shared.incongruent_bytes,
    })
}
