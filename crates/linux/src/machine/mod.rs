// SPDX-License-Identifier: Apache-2.0
//! What the machine and the limits of a process allow: read where the kernel shows it,
//! tried out where it does not.

pub mod cgroup;
pub mod habits;
pub mod nodes;
pub mod own_node;
pub mod pools;
pub mod pressure;
pub mod reading;
pub mod split;
pub mod sysfs;
pub mod thp_switch;
pub mod tree;
pub mod unit_files;
pub mod users;
pub mod yama;

use crate::io::read::read_text;
use crate::machine::sysfs::ThpMode;
use crate::machine::thp_switch::Allowance;
use crate::proc::procfs::Process;
use crate::proc::status::Status;
use hugelift_core::addr::PageSize;
use hugelift_core::fields::bytes_of;
use hugelift_core::snapshot::MemoryLimit;
use hugelift_core::snapshot::{Machine, ThpOff};
use std::path::Path;
use std::ptr;

/// Probes the machine on behalf of process `pid`, or of the calling one (whose limits and
/// switches a child inherits). A setting that cannot be read counts as absent.
pub fn probe(pid: Option<u32>) -> Machine {
    let process = pid.map_or(Process::OWN, Process::new);
    let read = read_text;
    let (mode, thp_page) = sysfs::thp(&read);
    let pools = sysfs::pools(&pool_names(), &read);
    let thp_off = match mode {
        Some(ThpMode::Never) => Some(ThpOff::Never),
        _ if thp_disabled(pid) => Some(ThpOff::Process),
        _ => None,
    };
    let memory = memory(process, &read);
    let smallest = pools.iter().map(|p| p.page).min_by_key(|p| p.bytes());
    Machine {
        base_page: base_page(),
        // A kernel without the switch has no transparent huge pages, whatever size it states.
        thp_page: mode.and(thp_page),
        folios: Vec::new(),
        thp_off,
        allows_thp: false,
        moves_hugetlb: smallest.is_some_and(moves_hugetlb),
        pools,
        // The other half is left for the program.
        memory_left: memory.available.map_or(u64::MAX, |bytes| bytes / 2),
        memory_limit: memory.limit,
    }
}

/// Updates the state of transparent huge pages in `machine`: the process may have forbidden them to itself
/// since the machine was probed.
pub fn update(machine: &mut Machine, status: &Status) {
    if machine.thp_off != Some(ThpOff::Never) {
        machine.thp_off = (status.thp_enabled == Some(false)).then_some(ThpOff::Process);
    }
}

/// Updates `machine` as [`update`] does, for a process that runs: a borrowed thread may allow transparent huge pages for a
/// moment.
pub fn update_running(machine: &mut Machine, status: &Status) {
    update(machine, status);
    machine.allows_thp = status.thp_enabled == Some(false) && Allowance::here().is_some();
    if machine.allows_thp && machine.thp_off == Some(ThpOff::Process) {
        machine.thp_off = None;
    }
}

/// Returns the kernel's base page (sysconf(3), `_SC_PAGESIZE`).
pub fn base_page() -> PageSize {
    // SAFETY: sysconf(3) only returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().and_then(PageSize::new).unwrap_or(PageSize::SMALL)
}

/// Returns the size of a transparent huge page; `None` if the kernel has none.
pub fn thp_page() -> Option<PageSize> {
    let (mode, page) = sysfs::thp(&read_text);
    mode.and(page)
}

/// Returns whether shared memory gets no huge pages at all: `shmem_enabled` is `deny`
/// (Documentation/admin-guide/mm/transhuge.rst).
pub fn shmem_is_denied() -> bool {
    read_text(&Path::new(sysfs::THP).join("shmem_enabled")).is_some_and(|text| text.contains("[deny]"))
}

/// Returns the sizes of transparent pages below [`thp_page`] that `MADV_HUGEPAGE` may bring, largest first.
pub fn folios() -> Vec<PageSize> {
    let below = thp_page();
    let Ok(entries) = std::fs::read_dir(sysfs::THP) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut sizes = sysfs::folios(names, &read_text);
    sizes.retain(|size| below.is_none_or(|page| *size < page));
    sizes
}

/// Returns the bytes that the calling process may still allocate: under its memory cgroups, and of the
/// machine's `MemAvailable`.
pub fn memory_left_here() -> u64 {
    let Memory { available, limit } = memory(Process::OWN, &read_text);
    let group = limit.map(|limit| limit.left);
    [available, group].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Returns the limit of a control group that leaves the calling process the least memory.
pub fn memory_limit_here() -> Option<MemoryLimit> {
    memory_limit_of(Process::OWN)
}

/// Returns the limit of a control group that leaves `process` the least memory.
pub fn memory_limit_of(process: Process) -> Option<MemoryLimit> {
    limit_of(process, &read_text)
}

/// Returns the frozen control group among the groups of `process` and the groups around them.
pub fn frozen_group_of(process: Process) -> Option<cgroup::Frozen> {
    let of = String::from_utf8(process.read("cgroup").ok()?).ok()?;
    cgroup::frozen(&of, &read_text(Path::new("/proc/self/mountinfo"))?, &read_text)
}

/// Returns whether the kernel has a free block of memory of this size.
pub fn has_free_block(page: PageSize) -> bool {
    let order = page.log2().saturating_sub(base_page().log2());
    // Where the kernel does not show it, such a block is assumed.
    read_text(Path::new("/proc/buddyinfo")).is_none_or(|text| sysfs::free_blocks(&text, order) > 0)
}

fn pool_names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(sysfs::POOLS) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns whether `PR_SET_THP_DISABLE` forbids transparent huge pages even where
/// `MADV_HUGEPAGE` asks for them.
pub fn thp_disabled(pid: Option<u32>) -> bool {
    const DISABLED: i32 = 1;
    const EXCEPT_ADVISED: i32 = 2; // Linux 6.18: memory with MADV_HUGEPAGE stays allowed
    match pid {
        Some(pid) => Process::new(pid).status().is_ok_and(|s| s.thp_enabled == Some(false)),
        None => {
            // SAFETY: prctl(2), PR_GET_THP_DISABLE: takes no pointer, returns the setting.
            let set = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
            set > 0 && set & (DISABLED | EXCEPT_ADVISED) == DISABLED
        }
    }
}

/// The memory that a process may still allocate, as far as the kernel shows it.
struct Memory {
    available: Option<u64>,
    limit: Option<MemoryLimit>,
}

fn memory(process: Process, read: cgroup::ReadText) -> Memory {
    let meminfo = read(Path::new("/proc/meminfo"));
    Memory {
        available: meminfo.and_then(|text| bytes_of(&text, "MemAvailable")),
        limit: limit_of(process, read),
    }
}

/// Each start waits for this. So it does not read /proc/meminfo, for which the kernel adds up counts of all CPUs.
fn limit_of(process: Process, read: cgroup::ReadText) -> Option<MemoryLimit> {
    let cgroup = read(&process.path("cgroup"))?;
    let limit = cgroup::memory_limit(&cgroup, &read(Path::new("/proc/self/mountinfo"))?, read)?;
    // A limit above the machine's memory cannot be reached.
    (limit.bytes < total_memory()).then_some(limit)
}

/// Returns the bytes of memory that the machine has (sysinfo(2)).
fn total_memory() -> u64 {
    // SAFETY: the structure holds numbers alone, for which zero is a value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: sysinfo(2) writes to the structure, which lives through the call.
    let read = unsafe { libc::sysinfo(&raw mut info) } == 0;
    #[allow(clippy::useless_conversion)] // its width is the machine's
    let bytes = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    if read { bytes } else { u64::MAX }
}

/// Returns whether mremap(2) moves hugetlb mappings. It is tried on two mappings of ours that hold no page,
/// so that an empty pool does not matter.
fn moves_hugetlb(page: PageSize) -> bool {
    let Ok(len) = usize::try_from(page.bytes()) else { return false };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
    let flags = flags | (page.log2().cast_signed() << libc::MAP_HUGE_SHIFT);
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
    let map = || unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    let (from, to) = (map(), map());
    let mut moved = false;
    if from != libc::MAP_FAILED && to != libc::MAP_FAILED {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: mremap(2) of one mapping made above over the other; nothing else uses them.
        moved = unsafe { libc::mremap(from, len, len, flags, to) } != libc::MAP_FAILED;
    }
    for addr in [from, to] {
        // A mapping that was moved is no longer at `from`, where another thread may have mapped something.
        if addr != libc::MAP_FAILED && !(moved && addr == from) {
            // SAFETY: munmap(2) of a mapping made above, which nothing else uses.
            unsafe { libc::munmap(addr, len) };
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let machine = probe(None);
        assert!(machine.base_page.bytes() >= 4096);
        assert!(machine.memory_left > 0 && machine.memory_left < 1 << 50);
        let thp = Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists();
        assert_eq!(machine.thp_page.is_some(), thp);
        let by_pid = probe(Some(std::process::id()));
        assert_eq!((by_pid.thp_off, by_pid.moves_hugetlb), (machine.thp_off, machine.moves_hugetlb));
    }

    #[test]
    fn probing_leaves_no_mapping_behind() {
        let count = || {
            let maps = Process::OWN.maps().unwrap();
            maps.iter().filter(|m| m.path.to_string_lossy().contains("hugepage")).count()
        };
        // Other tests probe at the same time, but only a mapping that was left stays.
        probe(None);
        let tidy = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            count() == 0
        });
        assert!(tidy, "{} mappings are left", count());
    }
}
