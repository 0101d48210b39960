// SPDX-License-Identifier: Apache-2.0
//! The numbers that the daemon publishes, as plain data. It fills them every ten seconds.
//!
//! Sizes are in bytes and times in seconds. What counts events counts them since the daemon has started, unless the
//! field says otherwise.

use hugelift_core::policy::Backing;
use hugelift_core::printable::Untrusted;
use hugelift_core::service::verify::Verdict;
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// All numbers of one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// The daemon's version.
    pub version: String,
    /// When the daemon has started.
    pub started: SystemTime,
    /// When the thread that watches the machine reported last; `None` before the first one.
    pub scanned: Option<SystemTime>,
    /// The programs that it has lifted, in any order. Two entries with the same names are summed.
    pub programs: Vec<ProgramFigures>,
    /// How often it has put a process, or more of one, on huge pages.
    pub lifts: u64,
    /// How often that was due and could not be done.
    pub refusals: u64,
    /// Processes that it has put back on their own pages.
    pub restores: u64,
    /// Processes that are not lifted now although a rule takes them, by the reason.
    pub refused: BTreeMap<String, u64>,
    /// Processes that the last scan has found.
    pub processes_seen: u64,
    /// Processes that the daemon has lifted and that still run.
    pub processes_taken: u64,
    /// Bytes of memory that copies take, of all programs together.
    pub copies_bytes: u64,
    /// Bytes that copies may take; `None` without a limit.
    pub copies_budget_bytes: Option<u64>,
    /// Bytes in huge folios of the files that it keeps in the page cache.
    pub pagecache_huge_bytes: u64,
    /// Bytes of the whole huge pages of these files.
    pub pagecache_file_bytes: u64,
    /// CPU time of the daemon and its helpers, user and system.
    pub cpu_seconds: f64,
    /// Resident memory of the daemon and its helpers (`VmRSS` of proc_pid_status(5)).
    pub resident_bytes: u64,
    /// Time that all scans of the machine have taken together.
    pub scan_seconds: f64,
    /// How often the daemon has scanned the machine.
    pub scans: u64,
    /// Memory pressure of the machine; `None` if the kernel does not tell it.
    pub pressure: Option<Pressure>,
    /// What the kernel counts.
    pub kernel: Kernel,
    /// Whether the ledger could be written last time; `None` without a ledger.
    pub ledger_is_written: Option<bool>,
    /// How many programs in units have this verdict of an experiment, as far as it still holds.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// The hugetlb pools, one of each page size.
    pub pools: Vec<Pool>,
}

impl Figures {
    /// Returns the figures of a daemon that has not scanned the machine yet.
    pub fn new(version: impl Into<String>, started: SystemTime) -> Figures {
        Figures {
            version: version.into(),
            started,
            scanned: None,
            programs: Vec::new(),
            lifts: 0,
            refusals: 0,
            restores: 0,
            refused: BTreeMap::new(),
            processes_seen: 0,
            processes_taken: 0,
            copies_bytes: 0,
            copies_budget_bytes: None,
            pagecache_huge_bytes: 0,
            pagecache_file_bytes: 0,
            cpu_seconds: 0.0,
            resident_bytes: 0,
            scan_seconds: 0.0,
            scans: 0,
            pressure: None,
            kernel: Kernel::default(),
            ledger_is_written: None,
            verdicts: BTreeMap::new(),
            pools: Vec::new(),
        }
    }
}

/// The figures of all processes of one program in one unit.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ProgramFigures {
    /// The program's path.
    pub program: Untrusted,
    /// The systemd unit in which it runs, if it runs in one.
    pub unit: Option<Untrusted>,
    /// How many lifted processes run it.
    pub processes: u64,
    /// Bytes on huge pages, by the part of the program and by where the pages come from. What several processes
    /// share counts once.
    pub huge_bytes: BTreeMap<(Part, Backing), u64>,
}

/// Memory pressure of the machine over ten seconds, in percent of the time (Documentation/accounting/psi.rst).
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Pressure {
    /// At least one task has waited for memory.
    pub some_avg10: f64,
    /// All tasks that are not idle have waited for memory.
    pub full_avg10: f64,
}

/// What the kernel has counted since the machine has started (/proc/vmstat; Documentation/admin-guide/mm/transhuge.rst).
/// `None` stands for what this kernel does not count.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Huge pages that were split into small ones (`thp_split_page`).
    pub splits: Option<u64>,
    /// Huge pages that were made of small ones (`thp_collapse_alloc`).
    pub collapses: Option<u64>,
    /// Huge pages that were not made of small ones, for lack of memory in one piece (`thp_collapse_alloc_failed`).
    pub collapse_failures: Option<u64>,
    /// How often a process has waited for compaction (`compact_stall`).
    pub compaction_stalls: Option<u64>,
    /// Page faults that got a huge page (`thp_fault_alloc`).
    pub faults: Option<u64>,
    /// Page faults that wanted a huge page and got small ones (`thp_fault_fallback`).
    pub fault_fallbacks: Option<u64>,
}

/// A hugetlb pool (Documentation/admin-guide/mm/hugetlbpage.rst).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that no process uses.
    pub free: u64,
}
