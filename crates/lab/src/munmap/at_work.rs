// SPDX-License-Identifier: Apache-2.0
//! Where tasks that run are: samples of their instruction addresses by the kernel's CPU clock, by kernel function
//! (`/proc/kallsyms`, proc(5)).
//!
//! A task that spins for a lock is not asleep, so that `/proc/PID/wchan` says nothing of it. The samples do. Where the kernel runs
//! with interrupts off, as in a guest without a PMU, a sample is taken when they are on again.

use hugelift_core::printable::text_to_parse;
use hugelift_heat::records::Batch;
use hugelift_heat::threads::{MOST, Threads};
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

/// CPU time between two samples of a thread. A ring holds 400, and is read twice a second.
const PERIOD: Duration = Duration::from_millis(2);

/// What a task does in a function of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// It waits for a lock without sleeping.
    Spins,
    /// It zeroes or copies a page.
    Fills,
    /// It allocates or frees pages.
    Allocates,
    /// It makes other CPUs drop their TLB entries, or drops its own.
    Flushes,
    /// It changes page tables.
    Tables,
    /// It enters the kernel, or leaves it.
    Enters,
    /// It asks the hypervisor.
    Hypervisor,
}

/// Functions of the kernel by the beginnings of their names.
const WORK: [(&str, Work); 47] = [
    ("osq_lock", Work::Spins),
    ("osq_unlock", Work::Spins),
    ("rwsem_spin_on_owner", Work::Spins),
    ("rwsem_optimistic_spin", Work::Spins),
    ("mutex_spin_on_owner", Work::Spins),
    ("native_queued_spin_lock_slowpath", Work::Spins),
    ("__pv_queued_spin_lock_slowpath", Work::Spins),
    ("queued_read_lock_slowpath", Work::Spins),
    ("queued_write_lock_slowpath", Work::Spins),
    ("queued_spin_lock_slowpath", Work::Spins),
    ("clear_page", Work::Fills),
    ("clear_huge_page", Work::Fills),
    ("folio_zero", Work::Fills),
    ("clear_subpage", Work::Fills),
    ("copy_page", Work::Fills),
    ("copy_mc_", Work::Fills),
    ("__alloc_pages", Work::Allocates),
    ("__alloc_frozen_pages", Work::Allocates),
    ("get_page_from_freelist", Work::Allocates),
    ("rmqueue", Work::Allocates),
    ("free_unref", Work::Allocates),
    ("free_frozen", Work::Allocates),
    ("free_pages", Work::Allocates),
    ("__free_one_page", Work::Allocates),
    ("free_pcppages_bulk", Work::Allocates),
    ("__folio_put", Work::Allocates),
    ("folios_put", Work::Allocates),
    ("release_pages", Work::Allocates),
    ("post_alloc_hook", Work::Allocates),
    ("vma_alloc_folio", Work::Allocates),
    ("alloc_pages", Work::Allocates),
    ("flush_tlb", Work::Flushes),
    ("native_flush_tlb", Work::Flushes),
    ("tlb_flush", Work::Flushes),
    ("smp_call_function", Work::Flushes),
    ("zap_", Work::Tables),
    ("unmap_page_range", Work::Tables),
    ("free_pgd_range", Work::Tables),
    ("free_pgtables", Work::Tables),
    ("pte_alloc_one", Work::Tables),
    ("__pte_alloc", Work::Tables),
    ("asm_exc_page_fault", Work::Enters),
    ("entry_SYSCALL", Work::Enters),
    ("irqentry_exit", Work::Enters),
    ("syscall_return", Work::Enters),
    ("pv_native_", Work::Hypervisor),
    ("kvm_", Work::Hypervisor),
];

impl Work {
    /// Returns what a task does in a function; `None` if that is not in the list.
    pub fn of(function: &str) -> Option<Work> {
        WORK.iter().find(|(name, _)| function.starts_with(name)).map(|(_, work)| *work)
    }

    /// Returns it in words.
    pub fn name(self) -> &'static str {
        match self {
            Work::Spins => "spins for a lock",
            Work::Fills => "zeroes or copies pages",
            Work::Allocates => "allocates or frees pages",
            Work::Flushes => "flushes TLBs",
            Work::Tables => "changes page tables",
            Work::Enters => "enters or leaves the kernel",
            Work::Hypervisor => "asks the hypervisor",
        }
    }
}

/// What the tasks are sampled with.
#[derive(Debug)]
pub(super) struct AtWork {
    threads: Vec<Threads>,
    batch: Batch,
}

/// Where tasks were at work.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Places {
    /// Samples by kernel function; those of user space have an empty name.
    samples: BTreeMap<String, u64>,
}

impl AtWork {
    /// Begins to sample these processes.
    ///
    /// # Errors
    /// One line: why no kernel function can be seen.
    pub fn start(processes: &BTreeSet<u32>) -> Result<AtWork, String> {
        if symbols().is_empty() {
            return Err("which kernel functions tasks work in is not known: /proc/kallsyms hides the addresses; be root, \
                        or sysctl kernel.kptr_restrict=0"
                .into());
        }
        let open = |&pid: &u32| Threads::open(Process::new(pid), PERIOD, MOST);
        let threads = processes.iter().map(open).collect::<Result<Vec<_>, _>>();
        let threads =
            threads.map_err(|why| format!("which kernel functions tasks work in is not known: {why}"))?;
        if threads.iter().any(|threads| !threads.sees_kernel) {
            return Err(
                "which kernel functions tasks work in is not known: samples in the kernel take root, or \
                        sysctl kernel.perf_event_paranoid=1"
                    .into(),
            );
        }
        Ok(AtWork { threads, batch: Batch::default() })
    }

    /// Adds what was sampled since the last reading.
    pub fn read(&mut self, places: &mut Places) {
        self.batch.clear();
        self.threads.iter_mut().for_each(|threads| threads.read(&mut self.batch));
        places.add(symbols(), &self.batch);
    }
}

impl Places {
    /// Makes places of given samples by function; those of user space have an empty name.
    #[cfg(test)]
    pub fn given(samples: &[(&str, u64)]) -> Places {
        Places { samples: samples.iter().map(|(name, samples)| (name.to_string(), *samples)).collect() }
    }

    fn add(&mut self, symbols: &Symbols, batch: &Batch) {
        let mut count = |name: &str, samples: u64| {
            if samples > 0 {
                *self.samples.entry(name.into()).or_default() += samples;
            }
        };
        count("", batch.user.len() as u64);
        batch.kernel.iter().for_each(|address| count(symbols.of(*address), 1));
    }

    /// Returns the functions with the most samples, each with their number.
    pub fn most(&self, count: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> =
            self.samples.iter().map(|(name, samples)| (name.as_str(), *samples)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let shown = |(name, samples)| (if str::is_empty(name) { "user space" } else { name }, samples);
        all.into_iter().take(count).map(shown).collect()
    }

    /// Returns the share of all samples; 0 if there are none.
    pub fn share(&self, samples: u64) -> f64 {
        samples as f64 / self.sum().max(1) as f64
    }

    /// Returns the share of the CPU time in which tasks spun for a lock; `None` without samples.
    pub fn spinning(&self) -> Option<f64> {
        let spun = |(name, _): &(&String, &u64)| Work::of(name) == Some(Work::Spins);
        let samples: u64 = self.samples.iter().filter(spun).map(|(_, samples)| samples).sum();
        (self.sum() > 0).then(|| samples as f64 / self.sum() as f64)
    }

    /// Returns how many samples there are.
    pub fn sum(&self) -> u64 {
        self.samples.values().sum()
    }
}

/// The functions of the kernel, by their addresses.
#[derive(Default, Debug)]
struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    /// Reads the lines of `/proc/kallsyms`: address, type, name and perhaps the module in brackets. Of several names of one
    /// address the first counts. Without the right to see addresses all are 0.
    fn parse(text: &str) -> Symbols {
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            let name = words.next()?;
            is_code.then(|| (address, name.to_string()))
        };
        let mut all = BTreeMap::new();
        for (address, name) in text.lines().filter_map(line) {
            all.entry(address).or_insert(name);
        }
        Symbols(all)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the function in which an address is.
    fn of(&self, address: u64) -> &str {
        self.0.range(..=address).next_back().map_or("unknown", |(_, name)| name)
    }
}

/// Returns those of this kernel, which are read once.
fn symbols() -> &'static Symbols {
    static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let text = std::fs::read("/proc/kallsyms").unwrap_or_default();
        Symbols::parse(&text_to_parse(&text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KALLSYMS: &str = "\
        ffffffff81000000 T _stext\n\
        ffffffff81000100 t osq_lock\n\
        ffffffff81000100 T an_alias\n\
        ffffffff81000200 d data\n\
        ffffffff81000300 T clear_page_erms\n\
        ffffffffc0000000 t of_a_module\t[module]\n";

    #[test]
    fn issue_34_6_addresses_are_those_of_functions() {
        let symbols = Symbols::parse(KALLSYMS);
        for (address, name) in [
            (0xffff_ffff_8100_0000, "_stext"),
            (0xffff_ffff_8100_01ff, "osq_lock"),
            (0xffff_ffff_8100_0250, "osq_lock"),
            (0xffff_ffff_8100_0300, "clear_page_erms"),
            (0xffff_ffff_c000_0010, "of_a_module"),
            (7, "unknown"),
        ] {
            assert_eq!(symbols.of(address), name, "{address:x}");
        }
        assert!(Symbols::parse("0000000000000000 T hidden\nffff T\nxyz T no\n").is_empty());
    }

    #[test]
    fn issue_34_6_a_task_that_spins_is_seen() {
        let symbols = Symbols::parse(KALLSYMS);
        let mut places = Places::default();
        assert_eq!((places.spinning(), places.most(3)), (None, vec![]));
        let kernel = [vec![0xffff_ffff_8100_0110; 6], vec![0xffff_ffff_8100_0310; 3]].concat();
        let mut batch = Batch::default();
        (batch.user, batch.outside, batch.kernel) = (vec![1], 9, kernel);
        places.add(&symbols, &batch);
        assert_eq!(places.spinning(), Some(0.6));
        assert_eq!(places.most(2), [("osq_lock", 6), ("clear_page_erms", 3)]);
        assert_eq!(places.most(9)[2], ("user space", 1));
    }

    #[test]
    fn issue_34_6_work_is_that_of_the_function() {
        for (function, work) in [
            ("rwsem_spin_on_owner", Some(Work::Spins)),
            ("clear_page_erms", Some(Work::Fills)),
            ("zap_pte_range", Some(Work::Tables)),
            ("free_unref_folios", Some(Work::Allocates)),
            ("smp_call_function_many_cond", Some(Work::Flushes)),
            ("do_mmap", None),
            ("", None),
        ] {
            assert_eq!(Work::of(function), work, "{function}");
        }
    }

    /// This process works in user space and in the kernel.
    #[test]
    fn issue_34_6_this_process_is_seen_at_work() {
        let _alone = crate::alone();
        let mut at_work = match AtWork::start(&[std::process::id()].into()) {
            Ok(at_work) => at_work,
            Err(why) => return println!("SKIP: {why}"),
        };
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            // A system call that does something: reads a page of zeros.
            assert!(std::fs::read("/proc/self/maps").is_ok_and(|text| !text.is_empty()));
        }
        let mut places = Places::default();
        at_work.read(&mut places);
        assert!(places.sum() >= 10, "{places:?}");
        assert!(
            places.most(100).iter().any(|(name, _)| *name != "user space" && *name != "unknown"),
            "{places:?}"
        );
    }

    proptest! {
        #[test]
        fn no_text_hurts(text in ".{0,200}", address: u64) {
            let _ = Symbols::parse(&text).of(address);
        }
    }
}
