// SPDX-License-Identifier: Apache-2.0
//! What a diagnosis rests on: plain data, as it was read or tried. `None` means that something could
//! not be read or does not exist; it gives no finding.

use hugelift_core::pool::SizePool;
pub use hugelift_linux::machine::cgroup::GroupLimit;
pub use hugelift_linux::machine::reading::Reading;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A machine and, with `--pid`, a process on it.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Name of the CPU.
    pub cpu: Option<String>,
    /// Whether the CPU reports a hypervisor.
    pub guest: Option<bool>,
    /// The folder that holds the recorded machine; `None` for the machine itself.
    pub root: Option<String>,
    /// Transparent huge pages.
    pub thp: Thp,
    /// Counters of `/proc/vmstat` since boot.
    pub counters: BTreeMap<String, u64>,
    /// The hugetlb pools, largest page first.
    pub pools: Vec<SizePool>,
    /// Memory and the settings of its allocation.
    pub memory: Memory,
    /// Limits of the control groups that hold the process, from its own up to the root.
    pub groups: Vec<GroupLimit>,
    /// `RLIMIT_MEMLOCK` of the process, or of hugelift itself.
    pub memlock: Option<Limit>,
    /// Tracing and counting.
    pub trace: Trace,
    /// NUMA nodes that the process may use.
    pub nodes_allowed: Option<Vec<u32>>,
    /// What was tried; none for a recorded machine.
    pub probes: Option<Probes>,
    /// What the machine does without hugelift, as it was tried; none for a recorded machine.
    pub alone: Option<Alone>,
    /// The process with most shared memory, or the one of `--pid`, if that is much; none for a recorded machine.
    #[serde(default)]
    pub shared: Option<SharedProgram>,
    /// The process of `--pid`.
    pub process: Option<Process>,
    /// Whether `hugelift attach` can lift running processes here; not on a recorded machine.
    #[serde(default)]
    pub attaches: bool,
    /// Running programs with much code; none for a recorded machine.
    pub programs: Vec<Program>,
}

/// A running program.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// The executable.
    pub exe: String,
    /// The process that has used most CPU time of those that run it.
    pub pid: u32,
    /// How many processes run it.
    pub processes: u64,
    /// CPU time that all these processes have used.
    pub cpu_seconds: f64,
    /// The code in that process that a lift reaches.
    pub text: Coverage,
}

/// The shared memory of a process. Sizes in bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedProgram {
    /// The process.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// What huge pages could map of what is in memory.
    pub liftable: u64,
    /// What they map now.
    pub huge: u64,
    /// What they cannot map, as its address does not match its offset.
    pub incongruent: u64,
    /// What of that is of files of a tmpfs that is mounted.
    pub mounted: u64,
}

/// `/sys/kernel/mm/transparent_hugepage`
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Thp {
    /// Bytes of a page that a PMD entry maps.
    pub page_size: Option<u64>,
    /// `enabled`
    pub enabled: Option<Reading>,
    /// `hugepages-*kB/enabled` of that size (Linux 6.8).
    pub size_enabled: Option<Reading>,
    /// `defrag`
    pub defrag: Option<Reading>,
    /// `shmem_enabled`
    pub shmem_enabled: Option<Reading>,
    /// `use_zero_page`
    pub use_zero_page: Option<Reading>,
    /// `khugepaged/defrag`
    pub khugepaged_defrag: Option<Reading>,
    /// `khugepaged/scan_sleep_millisecs`
    pub scan_sleep: Option<Reading>,
    /// `khugepaged/pages_to_scan`
    pub pages_to_scan: Option<Reading>,
    /// `khugepaged/max_ptes_none`
    pub max_ptes_none: Option<Reading>,
    /// Whether `THP_enabled` of `/proc/self/status` is 0: `PR_SET_THP_DISABLE` was inherited.
    pub off_here: Option<bool>,
}

/// Memory and the settings of its allocation. Sizes in bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// `MemTotal`
    pub total: Option<u64>,
    /// `MemAvailable`
    pub available: Option<u64>,
    /// `CommitLimit`
    pub commit_limit: Option<u64>,
    /// `Committed_AS`
    pub committed: Option<u64>,
    /// `vm.overcommit_memory`
    pub overcommit: Option<Reading>,
    /// `vm.compaction_proactiveness`
    pub proactiveness: Option<Reading>,
    /// The file that starts compaction; `None` if the kernel has none.
    pub compact: Option<String>,
    /// `/proc/buddyinfo`
    pub zones: Vec<Zone>,
    /// Bytes of a base page.
    pub base_page: Option<u64>,
    /// Mitigation of the iTLB multihit defect.
    pub itlb_multihit: Option<Reading>,
}

/// A zone of `/proc/buddyinfo`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Zone {
    /// Its NUMA node.
    pub node: u32,
    /// `DMA`, `Normal`...
    pub name: String,
    /// Free blocks of each order: 2^order base pages.
    pub free: Vec<u64>,
}

/// A resource limit in bytes; `None` is unlimited.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The value to which it may be raised.
    pub hard: Option<u64>,
}

/// What restricts tracing and counting.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// `kernel.yama.ptrace_scope`
    pub yama: Option<Reading>,
    /// `kernel.perf_event_paranoid`
    pub paranoid: Option<Reading>,
    /// `CapEff` of hugelift.
    pub capabilities: u64,
    /// `Seccomp` of hugelift: 2 is a filter.
    pub seccomp: u64,
    /// Whether the kernel has a performance monitoring unit of the CPU.
    pub pmu: bool,
}

/// The result of a trial of a kernel feature.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Whether it works; `None` if it could not be tried.
    pub works: Option<bool>,
    /// The kernel's answer, or why it could not be tried.
    pub detail: Option<String>,
}

impl Tried {
    /// Returns that it works.
    pub fn yes() -> Tried {
        Tried { works: Some(true), detail: None }
    }

    /// Returns that it does not work, and why.
    pub fn no(detail: impl Into<String>) -> Tried {
        Tried { works: Some(false), detail: Some(detail.into()) }
    }

    /// Returns that it could not be tried, and why.
    pub fn unknown(detail: impl Into<String>) -> Tried {
        Tried { works: None, detail: Some(detail.into()) }
    }

    /// Whether it was tried and does not work.
    pub fn failed(&self) -> bool {
        self.works == Some(false)
    }
}

/// What this kernel does, tried on memory and files of hugelift's own.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// The folder in which files were made.
    pub folder: String,
    /// The type of its file system.
    pub file_system: String,
    /// `MADV_HUGEPAGE` and a first touch give a huge page.
    pub fault: Tried,
    /// `MADV_COLLAPSE` of anonymous memory.
    pub collapse_anonymous: Tried,
    /// `MADV_COLLAPSE` of a memfd's pages.
    pub collapse_shmem: Tried,
    /// `MADV_COLLAPSE` of a file's code.
    pub collapse_file: Tried,
    /// A file read in through a mapping with `MADV_HUGEPAGE` is mapped huge by others.
    pub primed_file: Tried,
    /// A page from the pool of the default size.
    pub hugetlb: Tried,
    /// ptrace(2) of a child.
    pub ptrace: Tried,
    /// A hardware counter for hugelift's own code.
    pub counter: Tried,
}

/// What this machine does for huge pages by itself, tried on memory and files of hugelift's own.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Alone {
    /// The code of a file that is read anew is mapped by huge pages, without advice.
    pub code: Tried,
    /// The kernel maps a large file at an address that huge pages can use.
    pub aligned_files: Tried,
    /// Private memory is on huge pages at its first touch, without advice.
    pub memory: Tried,
    /// A process can forbid huge pages except for memory that asks for them (`PR_THP_DISABLE_EXCEPT_ADVISED`).
    pub except_advised: Tried,
    /// The dynamic loader has the tunable `glibc.elf.thp`, which asks for huge pages for code.
    pub loader: Tried,
    /// The running systemd has `MemoryTHP=` for its units.
    pub units: Tried,
}

/// A process. Sizes in bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The executable.
    pub exe: String,
    /// Its arguments, including the first.
    pub args: Vec<String>,
    /// The words that start it: its arguments, or the executable alone if the first of them names no program.
    pub start: Vec<String>,
    /// `NAME=value` of its initial environment, for the variables that switch huge pages on.
    pub environment: Vec<String>,
    /// Paths of the objects that are mapped.
    pub objects: Vec<String>,
    /// Whether it was built by Go.
    pub go: bool,
    /// `THP_enabled` of its status.
    pub thp_enabled: Option<bool>,
    /// Whether a borrowed thread can allow them for copies of code, if they are off.
    pub allows_thp: bool,
    /// Code, all objects together.
    pub text: Coverage,
    /// Why code is not huge: bytes and the reason in words, most bytes first.
    pub reasons: Vec<(u64, String)>,
    /// Private anonymous memory of the C library's allocator, as far as that can be seen: the heap of brk(2), and the heaps
    /// of its other arenas.
    pub malloc: u64,
    /// Private writable memory on transparent huge pages.
    pub writable_thp: u64,
    /// Private writable memory on pages of a hugetlb pool.
    pub writable_hugetlb: u64,
    /// Shared memory on pages of a hugetlb pool.
    pub shared_hugetlb: u64,
    /// Resident private memory, huge or not.
    pub anonymous: u64,
    /// Children that run the same executable, because it forks without execve(2).
    pub forks: u64,
    /// Bytes of huge pages that were searched for zeros.
    pub examined: Option<u64>,
    /// Bytes of base pages among these that hold only zeros.
    pub zeros: u64,
    /// Bytes that the huge zero page maps.
    pub huge_zero: Option<u64>,
    /// `huge_pages` of PostgreSQL's configuration.
    pub postgres_huge_pages: Option<String>,
    /// Objects with a huge page of code or more.
    #[serde(default)]
    pub code: Vec<CodeObject>,
}

/// The code of one object in a process.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CodeObject {
    /// Its path.
    pub path: String,
    /// How much of it is huge.
    pub text: Coverage,
    /// Whether the process has opened it itself, after its start.
    pub opened: bool,
    /// Whether `hugelift run` or the service has lifted it: huge pages other than those of its file map it.
    pub lifted: bool,
    /// Whether nearly all of it is in huge pages of the page cache already.
    pub primed: bool,
}

impl Process {
    /// Whether all that could be huge is: its code, and half of its private memory if that is large.
    pub fn is_huge(&self) -> bool {
        const MUCH_MEMORY: u64 = 64 << 20;
        let memory = self.writable_thp.saturating_add(self.writable_hugetlb);
        let code = self.text.liftable > 0 && self.text.huge >= self.text.liftable;
        code && (self.anonymous < MUCH_MEMORY || memory.saturating_mul(2) >= self.anonymous)
    }
}

/// How much of something is huge, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Coverage {
    /// All of it.
    pub bytes: u64,
    /// Whole huge pages in it.
    pub liftable: u64,
    /// Huge now.
    pub huge: u64,
}
