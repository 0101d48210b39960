// SPDX-License-Identifier: Apache-2.0
//! The numbers that the daemon publishes, as plain data. It fills them each time it has looked at the machine.
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
    /// When it has last looked at the machine to the end; `None` before the first look.
    pub looked: Option<SystemTime>,
    /// The programs that it has lifted, in any order. Two entries with the same names are summed.
    pub programs: Vec<ProgramFigures>,
    /// How many steps of each kind it has taken, and how they ended.
    pub steps: BTreeMap<(Act, Outcome), u64>,
    /// How many programs or parts were left as they are, by the key of the reason
    /// ([`hugelift_core::skip::Reason::key`]).
    pub refusals: BTreeMap<String, u64>,
    /// Processes that the last look has found.
    pub processes_seen: u64,
    /// Processes that the daemon has lifted and that still run.
    pub processes_taken: u64,
    /// Bytes of memory that copies take, of all programs together.
    pub copies_bytes: u64,
    /// Bytes that copies may take; `None` without a limit.
    pub copies_budget_bytes: Option<u64>,
    /// Bytes of files in the page cache in huge folios (`FileHugePages` of proc_meminfo(5)).
    pub pagecache_huge_bytes: u64,
    /// Bytes of files in the page cache (`Cached` less `Shmem` of proc_meminfo(5)).
    pub pagecache_file_bytes: u64,
    /// CPU time of the daemon and its helpers, user and system.
    pub cpu_seconds: f64,
    /// Resident memory of the daemon (`VmRSS` of proc_pid_status(5)).
    pub resident_bytes: u64,
    /// Time that all looks at the machine have taken together.
    pub scan_seconds: f64,
    /// How often the daemon has looked at the machine.
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
    /// Returns the figures of a daemon that has not looked at anything yet.
    pub fn new(version: impl Into<String>, started: SystemTime) -> Figures {
        Figures {
            version: version.into(),
            started,
            looked: None,
            programs: Vec::new(),
            steps: BTreeMap::new(),
            refusals: BTreeMap::new(),
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

    /// Counts one step.
    pub fn count_step(&mut self, act: Act, outcome: Outcome) {
        *self.steps.entry((act, outcome)).or_default() += 1;
    }

    /// Counts one refusal, by the key of its reason.
    pub fn count_refusal(&mut self, reason: &str) {
        match self.refusals.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.refusals.insert(reason.into(), 1)),
        }
    }
}

/// What the daemon does to a program or a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Act {
    /// Puts parts of a running program on huge pages.
    Lift,
    /// Brings a file into the page cache in huge folios.
    Prime,
    /// Puts a running program back on its own pages.
    Restore,
}

impl Act {
    /// All of them.
    pub const ALL: [Act; 3] = [Act::Lift, Act::Prime, Act::Restore];

    /// Returns a stable word for labels.
    pub fn key(self) -> &'static str {
        match self {
            Act::Lift => "lift",
            Act::Prime => "prime",
            Act::Restore => "restore",
        }
    }
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// A part of it was done.
    Partly,
    /// It was due, and the machine or the program did not permit it. What is not worth a lift is no step: it is in
    /// [`Figures::refusals`] only.
    Refused,
    /// It was tried and undone.
    Failed,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 4] = [Outcome::Done, Outcome::Partly, Outcome::Refused, Outcome::Failed];

    /// Returns a stable word for labels.
    pub fn key(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Partly => "partly",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
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
    /// Resident memory of its processes.
    pub resident_bytes: u64,
    /// Small pages of code that were in use when the program was measured; `None` if it was not.
    pub code_pages_in_use: Option<u64>,
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
