// SPDX-License-Identifier: Apache-2.0
//! What helps where nothing of a running process could be lifted.

use hugelift_core::addr::{human_bytes, size_word};
use hugelift_core::collapse::{Area, Sharing};
use hugelift_core::maps::Mapping;
use hugelift_core::smaps::Usage;
use hugelift_core::snapshot::Machine;
use hugelift_linux::machine::thp_page;
use hugelift_linux::proc::procfs::Process;

/// Said of a process for which transparent huge pages were allowed for a moment.
pub(super) const ALLOWED: &str = "transparent huge pages are off for it (prctl PR_SET_THP_DISABLE): they were allowed while its \
                                  code was copied, and are off again";

/// Returns the line for a process for which transparent huge pages are off, as `bytes` of it cannot be lifted onto
/// them. They cannot be allowed to its copies alone where the machine gives them to all memory, and the kernel knows no
/// exception. Pages of the pool are not affected.
pub(super) fn thp_off(pid: u32, bytes: u64, machine: &Machine) -> String {
    let off = format!(
        "{} not lifted: transparent huge pages are off for it (prctl PR_SET_THP_DISABLE; THP_enabled is 0 in \
         /proc/{pid}/status)",
        human_bytes(bytes)
    );
    if machine.allows_thp {
        return format!("{off}; hugelift allows them for copies of text and rodata alone");
    }
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
        "{off}; 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' lets hugelift allow them for its copies \
         alone{help}"
    )
}

/// Returns what to add to the line about a process whose text and rodata are too small for huge pages: its memory
/// may not be. `None` if it is.
pub(super) fn its_memory(pid: u32) -> Option<String> {
    let page = thp_page()?;
    let all = Process::new(pid).smaps().ok()?;
    let is_taken = |usage: &&Usage| {
        let Mapping { range, prot, shared, .. } = usage.mapping;
        let area =
            Area { range, prot, sharing: Sharing::Private, jit: false, attributes: usage.attributes.clone() };
        let is_other = shared || usage.mapping.is_file() || usage.mapping.is_named("[stack]") || !prot.write;
        // On average half of it is there, so that a part of it is dense enough.
        !is_other && area.refusal(page).is_none() && usage.rss.saturating_mul(2) >= range.len()
    };
    let small = all.iter().filter(is_taken).map(|usage| usage.rss.saturating_sub(usage.anon_huge)).sum();
    (small >= page.bytes()).then(|| {
        format!(
            "; {} of its heap and other memory is on small pages: hugelift attach --parts heap,anon {pid}",
            human_bytes(small)
        )
    })
}
