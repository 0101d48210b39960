// SPDX-License-Identifier: Apache-2.0
//! Samples many processes at once, and takes little for it ([`crate::budget`]). What is too much waits, or is left out.

use crate::budget::{Budget, PROCESSES, SHARE, THREADS, THREADS_OF_ONE};
use crate::pace::Rate;
use crate::price;
use crate::records::Batch;
use crate::refusal::PerfError;
use crate::threads::{ROOM, Threads};
use hugelift_core::heat::PagesInUse;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::machine::base_page;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// With fewer samples the estimate says too little.
const ENOUGH: u64 = 100;

/// The processes that are sampled.
#[derive(Debug)]
pub struct Many {
    known: HashMap<Identity, Sampled>,
    period: Duration,
    page: u64,
    budget: Budget,
    /// Why the process that was tried last is not sampled.
    refusal: Option<String>,
    batch: Batch,
}

/// What is known of a process.
#[derive(Debug)]
struct Sampled {
    /// `None` if it is not sampled.
    threads: Option<Threads>,
    /// The samples of each page, by its number: of files, and of code that it has made itself.
    counts: HashMap<u64, u64>,
    samples: u64,
    pages: PagesInUse,
    /// Its CPU time, in whatever unit.
    cpu: u64,
}

impl Many {
    /// Makes a sampler whose rings are read once an interval. What is sampled loses at most one part in 500 of its CPU
    /// time as well.
    pub fn new(interval: Duration) -> Many {
        let mut budget = Budget::new(Instant::now());
        let mut period = interval / ROOM;
        budget.spend(|| period = period.max(Rate::new(price::of_a_sample(), SHARE).period()));
        let (known, batch) = (HashMap::new(), Batch::default());
        Many { known, period, page: base_page().bytes(), budget, refusal: None, batch }
    }

    /// Reads the samples of these processes, each with the CPU time that it has used, and forgets all others. A process is
    /// sampled from the first time on that it has used CPU time since it was seen.
    pub fn read(&mut self, wanted: &[(Identity, u64)]) {
        self.budget.earn(Instant::now());
        self.known.retain(|identity, _| wanted.iter().any(|(wanted, _)| wanted == identity));
        for sampled in self.known.values_mut() {
            let Some(threads) = &mut sampled.threads else { continue };
            let (batch, page) = (&mut self.batch, self.page);
            self.budget.spend(|| {
                batch.clear();
                threads.read(batch);
                batch.user.iter().for_each(|address| *sampled.counts.entry(address / page).or_default() += 1);
                sampled.samples += batch.user.len() as u64;
                sampled.pages = PagesInUse::new(sampled.counts.values().copied());
            });
        }
        for (identity, cpu) in wanted {
            let threads = self.threads();
            let sampling = self.known.values().filter(|sampled| sampled.threads.is_some()).count();
            let is_full = sampling >= PROCESSES || threads >= THREADS;
            let sampled = self.known.entry(*identity).or_insert(Sampled {
                threads: None,
                counts: HashMap::new(),
                samples: 0,
                pages: PagesInUse::default(),
                // Until it has used more, it sleeps.
                cpu: *cpu,
            });
            let is_busy = *cpu > sampled.cpu;
            sampled.cpu = *cpu;
            match &mut sampled.threads {
                // A thread that was started since is sampled from now on.
                Some(threads) if is_busy => _ = self.budget.spend(|| threads.follow()),
                None if is_busy && !is_full => {
                    let (period, refusal) = (self.period, &mut self.refusal);
                    self.budget.spend(|| {
                        match Threads::open_of(*identity, period, THREADS_OF_ONE.min(THREADS - threads)) {
                            Ok(threads) => (sampled.threads, *refusal) = (Some(threads), None),
                            Err(PerfError::Vanished) => {}
                            Err(why) => *refusal = Some(why.to_string()),
                        }
                    });
                }
                _ => {}
            }
        }
    }

    /// Returns how many pages of code the process uses, as far as was seen; `None` if too few samples tell.
    pub fn pages(&self, identity: Identity) -> Option<PagesInUse> {
        let sampled = self.known.get(&identity)?;
        (sampled.samples >= ENOUGH).then_some(sampled.pages)
    }

    /// Returns why no process is sampled; `None` if one is, or none was tried.
    pub fn refusal(&self) -> Option<&str> {
        let is_any = self.known.values().any(|sampled| sampled.threads.is_some());
        self.refusal.as_deref().filter(|_| !is_any)
    }

    fn threads(&self) -> usize {
        self.known.values().filter_map(|sampled| Some(sampled.threads.as_ref()?.count())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::SAVED;
    use hugelift_linux::proc::clock::cpu_time_of_thread;
    use hugelift_linux::proc::procfs::Process;
    use std::process::{Child, Command};

    struct Busy(Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn seen(pid: u32) -> (Identity, u64) {
        let stat = Process::new(pid).stat().expect("it runs");
        (stat.identity(), stat.cpu)
    }

    #[test]
    fn issue_31_3_busy_processes_are_sampled_and_others_are_not() {
        let _alone = crate::alone();
        let start = |script| Busy(Command::new("sh").args(["-c", script]).spawn().expect("sh"));
        let (busy, asleep) = (start("while :; do :; done"), start("exec sleep 60"));
        // Until it sleeps, the shell, the loader and the kernel use CPU time.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", asleep.0.id())).expect("stat");
        let began = Instant::now();
        while !state().contains(" (sleep) S ") {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not sleep: {}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut many = Many::new(Duration::from_millis(200));
        let began = Instant::now();
        loop {
            let wanted =
                [seen(busy.0.id()), seen(asleep.0.id()), ((1 << 23, 7), began.elapsed().as_millis() as u64)];
            many.read(&wanted);
            if let Some(why) = many.refusal() {
                println!("SKIP: {why}");
                return;
            }
            assert_eq!((many.pages(wanted[1].0), many.pages(wanted[2].0)), (None, None));
            if let Some(pages) = many.pages(wanted[0].0) {
                assert!(pages.seen > 1 && pages.seen < 1000, "{pages:?}");
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{many:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(many.threads() == 1);
        // What is not wanted any more is forgotten.
        many.read(&[]);
        assert!(many.known.is_empty() && many.refusal().is_none());
    }

    /// The budget is of what is paid for: this is what was really used, with all around it.
    #[test]
    fn issue_31_3_many_processes_cost_little() {
        let _alone = crate::alone();
        let start =
            |_| Busy(Command::new("nice").args(["sh", "-c", "while :; do :; done"]).spawn().expect("sh"));
        let all: Vec<Busy> = (0..40).map(start).collect();
        let mut many = Many::new(Duration::from_millis(200));
        let (began, before) = (Instant::now(), cpu_time_of_thread());
        let mut used = Duration::ZERO;
        while began.elapsed() < Duration::from_secs(4) {
            let wanted: Vec<_> = all.iter().map(|busy| seen(busy.0.id())).collect();
            let start = cpu_time_of_thread();
            many.read(&wanted);
            used += cpu_time_of_thread() - start;
            std::thread::sleep(Duration::from_millis(200));
        }
        let figures = (many.known.values().filter(|one| one.samples >= ENOUGH).count(), many.threads());
        println!(
            "{used:?} of {:?}, {figures:?} processes, with the rest {:?}",
            began.elapsed(),
            cpu_time_of_thread() - before
        );
        // One step more than the budget, and what is around it.
        assert!(used <= SAVED + began.elapsed() / SHARE + Duration::from_millis(30), "{used:?}");
    }
}
