// SPDX-License-Identifier: Apache-2.0
//! What helps where nothing of a running process could be lifted.

use hugelift_core::addr::{human_bytes, size_word};
use hugelift_core::snapshot::Machine;
use hugelift_os::machine::thp_page;
use hugelift_os::proc::procfs::Process;

/// Returns the line for a process for which transparent huge pages are off, as `bytes` of it cannot be lifted onto
/// them. Pages of the pool are not affected.
pub(super) fn thp_off(pid: u32, bytes: u64, machine: &Machine) -> String {
    let attach = format!("hugelift attach --backing hugetlb {pid}");
    let pool = machine.pools.iter().find(|pool| Some(pool.page) == machine.thp_page);
    let help = match pool.map(|pool| (pool, bytes.div_ceil(pool.page.bytes()))) {
        None => String::new(),
        Some((pool, need)) if pool.available() >= need => {
            format!("; pages of the pool are not affected: {attach}")
        }
        Some((pool, need)) => {
            let pages = pool.total.saturating_add(need - pool.available());
            let page = size_word(pool.page.bytes());
            format!("; pages of the pool are not affected: hugelift pool set {page}={pages}, then {attach}")
        }
    };
    format!(
        "{} not lifted: transparent huge pages are off for it (prctl PR_SET_THP_DISABLE; THP_enabled is 0 in \
         /proc/{pid}/status){help}",
        human_bytes(bytes)
    )
}

/// Returns what to add to the line about a process whose text and rodata are too small for huge pages: its memory
/// may not be. `None` if it is.
pub(super) fn its_memory(pid: u32) -> Option<String> {
    let page = thp_page()?;
    let all = Process::new(pid).smaps().ok()?;
    let large = all.iter().filter(|usage| {
        let mapping = &usage.mapping;
        mapping.prot.write && !mapping.shared && !mapping.is_file() && mapping.range.inner(page).is_some()
    });
    let (rss, huge) = large.fold((0, 0), |(rss, huge), usage| (rss + usage.rss, huge + usage.anon_huge));
    let small = rss.saturating_sub(huge);
    (small >= page.bytes()).then(|| {
        format!(
            "; {} of its heap and other memory is on small pages: hugelift attach --parts heap,anon {pid}",
            human_bytes(small)
        )
    })
}
