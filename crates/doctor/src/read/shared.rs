// SPDX-License-Identifier: Apache-2.0
//! Finds the process with most shared memory, and how much of it huge pages can map.

use crate::facts::SharedProgram;
use hugelift_core::printable::text_to_parse;
use hugelift_core::report::shared_memory;
use hugelift_linux::machine::{shmem_is_denied, thp_page};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use std::cmp::Reverse;
use std::os::unix::ffi::OsStrExt as _;

/// Less is not worth a page table.
const LEAST: u64 = 64 << 20;

/// So many processes with most of it are tried, as some may not be read.
const TRIED: usize = 8;

/// Returns the shared memory of process `pid`, or of the one with most of it; `None` if it is little, or cannot be read.
pub fn shared(pid: Option<u32>) -> Option<SharedProgram> {
    let resident = |pid: u32| Process::new(pid).status().ok()?.shared;
    let all = pid.map_or_else(|| Process::all().unwrap_or_default(), |pid| vec![pid]);
    let mut all: Vec<(u64, u32)> = all.into_iter().filter_map(|pid| Some((resident(pid)?, pid))).collect();
    all.retain(|(bytes, _)| *bytes >= LEAST);
    all.sort_by_key(|found| Reverse(*found));
    all.into_iter().take(TRIED).find_map(|(_, pid)| of(pid))
}

fn of(pid: u32) -> Option<SharedProgram> {
    let process = Process::new(pid).with_memory();
    let found = snapshot::live(Some(process.pid()), 0).ok()?;
    let shared = shared_memory(&found, &process.smaps().ok()?, shmem_is_denied(), thp_page()?);
    let exe = std::fs::read_link(process.path("exe")).unwrap_or_default();
    Some(SharedProgram {
        pid,
        exe: text_to_parse(exe.as_os_str().as_bytes()).into_owned(),
        liftable: shared.total.liftable_bytes,
        huge: shared.total.huge_bytes,
        incongruent: shared.incongruent_bytes,
        mounted: shared.mounted_bytes,
    })
}
