// SPDX-License-Identifier: Apache-2.0
//! The code in use of the processes that are watched, by samples of their instruction addresses.
//!
//! A process is sampled once it was checked, so that short programs pay nothing: what could be copied of it is known then,
//! and [`Follow`] chooses among that. What sampling takes is paid by the account of the process, as a lift is.

use super::member::Life;
use super::pressure::Pressures;
use super::process_set::ProcessSet;
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::heat::follow::{Code, Follow, Limits, Pace};
use hugelift_core::heat::hot::HotCode;
use hugelift_core::policy::Copies;
use hugelift_core::worth;
use hugelift_heat::budget::{Budget, PROCESSES, SHARE, THREADS, THREADS_OF_ONE};
use hugelift_heat::pace::Rate;
use hugelift_heat::price;
use hugelift_heat::records::Batch;
use hugelift_heat::refusal::PerfError;
use hugelift_heat::threads::{ROOM, Threads};
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::machine::thp_page;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The processes are polled at least this often while a first choice is to be made of one.
pub(super) const CHOOSING: Duration = Duration::from_millis(200);
/// A ring holds the samples of a thread for the time between two polls of busy processes.
const SHORTEST: Duration = Duration::from_millis(800 / ROOM as u64);
/// Until the first choice samples take at most one part in so many of the CPU time of a process.
const FAST_SHARE: u32 = 100;
/// Samples of a process count for so many processes: for itself, for the process that has forked it, and so on.
const GENERATIONS: usize = 8;

/// The code in use of the processes.
#[derive(Debug)]
pub(super) struct Hot {
    limits: Limits,
    page: PageSize,
    known: BTreeMap<u32, Sampled>,
    budget: Budget,
    /// What a sample costs, once it was measured.
    price: Option<Duration>,
    batch: Batch,
    /// It was said that a process cannot be sampled.
    told: bool,
    pressures: Pressures,
    began: Instant,
}

/// What is known of a process.
#[derive(Debug)]
struct Sampled {
    life: Life,
    follow: Follow,
    events: Events,
    /// The CPU time that it had used when it was looked at last.
    cpu: Duration,
    /// It has used CPU time since the time before.
    is_busy: bool,
}

/// The events of a process.
#[derive(Debug)]
enum Events {
    Closed,
    Open(Threads, Pace),
    /// The kernel opens none: all of its code is copied.
    Refused,
}

impl Hot {
    pub(super) fn new(limits: Limits) -> Hot {
        Hot {
            limits,
            page: thp_page().unwrap_or(PageSize::MB2),
            known: BTreeMap::new(),
            budget: Budget::new(Instant::now()),
            price: None,
            batch: Batch::default(),
            told: false,
            pressures: Pressures::default(),
            began: Instant::now(),
        }
    }

    /// Reads the new samples, and has the processes lifted that have hot code. Returns a line the first time that one
    /// cannot be sampled.
    pub(super) fn turn(&mut self, set: &mut ProcessSet) -> Option<String> {
        self.budget.earn(Instant::now());
        self.known.retain(|pid, sampled| set.life_of(*pid) == Some(sampled.life));
        let pids: Vec<u32> = self.known.keys().copied().collect();
        for &pid in &pids {
            self.read(set, pid);
        }
        self.press();
        let mut refusal = None;
        let mut all = self.known.values().map(|one| one.follow.takes()).fold(0, u64::saturating_add);
        for pid in pids {
            let Some(sampled) = self.known.get_mut(&pid) else { continue };
            let others = all.saturating_sub(sampled.follow.takes());
            let limits = self.limits.beside(others);
            sampled.follow.decide(sampled.cpu, limits);
            all = others.saturating_add(sampled.follow.takes());
            let bytes = sampled.follow.chosen().bytes();
            if bytes > 0 && !matches!(sampled.events, Events::Refused) {
                set.want(pid, worth::cost(bytes, 0));
            }
            refusal = refusal.or(self.open_or_close(set, pid, limits));
        }
        let why = refusal.filter(|_| !std::mem::replace(&mut self.told, true))?;
        let what = match self.limits.is_unlimited() {
            true => "all code is copied",
            false if self.limits.budget == u64::MAX => "no code is copied (--total)",
            false => "no code is copied (--budget)",
        };
        Some(format!("the code in use cannot be sampled, so {what}: {why}"))
    }

    /// Counts the new samples of a process. They count for the processes that have forked it as well: what these have
    /// copied, their later children inherit.
    fn read(&mut self, set: &mut ProcessSet, pid: u32) {
        let Some(sampled) = self.known.get_mut(&pid) else { return };
        let cpu = set.cpu_of(pid);
        let passed = cpu.saturating_sub(sampled.cpu);
        (sampled.cpu, sampled.is_busy) = (cpu, !passed.is_zero());
        let Events::Open(threads, pace) = &mut sampled.events else { return };
        self.batch.clear();
        let batch = &mut self.batch;
        let read = self.budget.spend(|| threads.read(batch));
        let price = self.price.unwrap_or_default();
        let samples = passed.as_secs_f64() / period(price, *pace).as_secs_f64();
        set.spend(pid, read + price.mul_f64(samples));
        let mut next = Some(pid);
        for _ in 0..GENERATIONS {
            let Some(pid) = next else { break };
            if let Some(sampled) = self.known.get_mut(&pid) {
                self.batch.user.iter().for_each(|address| sampled.follow.add(*address));
                sampled.follow.add_outside(self.batch.outside);
            }
            next = set.forked_by(pid);
        }
    }

    /// Takes account of how short memory is for the processes. Where a process cannot be sampled, nothing
    /// says what is cold: it keeps its copies.
    fn press(&mut self) {
        let may_give = |one: &Sampled| one.follow.may_give_back() && !matches!(one.events, Events::Refused);
        let pids = self.known.iter().filter_map(|(pid, one)| may_give(one).then_some(*pid));
        self.pressures.read(&pids.collect());
        let at = self.began.elapsed();
        for (pid, sampled) in &mut self.known {
            sampled.follow.press(self.pressures.of(*pid).is_some(), at, sampled.cpu);
        }
    }

    /// Returns a line the first time that nothing says how short memory is.
    pub(super) fn lacks_pressure(&mut self) -> Option<String> {
        self.pressures.lacks()
    }

    /// Returns the processes with copies that are to be given back now: which, and why.
    pub(super) fn cold(&self) -> Vec<(u32, Vec<Range>, String)> {
        let of = |(pid, sampled): (&u32, &Sampled)| {
            let (cold, pressure) = (sampled.follow.cold()?, self.pressures.of(*pid)?);
            Some((*pid, cold.ranges.clone(), format!("{}; {pressure}", cold.why)))
        };
        self.known.iter().filter_map(of).collect()
    }

    /// Takes account of what was given back of a process.
    pub(super) fn given_back(&mut self, pid: u32, given: &[Range]) {
        if let Some(sampled) = self.known.get_mut(&pid) {
            sampled.follow.given_back(given, sampled.cpu);
        }
    }

    /// Opens and closes the events of a process that has these limits. Returns why the kernel opens none.
    fn open_or_close(&mut self, set: &mut ProcessSet, pid: u32, limits: Limits) -> Option<PerfError> {
        let most = THREADS.saturating_sub(self.threads()).min(THREADS_OF_ONE);
        let is_full = self.open().count() >= PROCESSES || most == 0;
        let sampled = self.known.get_mut(&pid)?;
        let price = self.price.unwrap_or_default();
        match &mut sampled.events {
            Events::Refused => None,
            Events::Open(threads, pace) => {
                match sampled.follow.pace(sampled.cpu, limits) {
                    None => sampled.events = Events::Closed,
                    Some(new) => {
                        if new != std::mem::replace(pace, new) {
                            threads.set_period(period(price, new));
                        }
                        // A thread that was started since is sampled from now on.
                        if sampled.is_busy {
                            let used = self.budget.spend(|| threads.follow());
                            set.spend(pid, used);
                        }
                    }
                }
                None
            }
            Events::Closed => {
                let measuring = if self.price.is_some() { Duration::ZERO } else { price::MEASURING };
                if is_full || !sampled.is_busy || !set.affords(pid)(measuring) {
                    return None;
                }
                let pace = sampled.follow.pace(sampled.cpu, limits)?;
                let mut opened = None;
                let known_price = &mut self.price;
                let used = self.budget.spend(|| {
                    let price = *known_price.get_or_insert_with(|| {
                        raise_file_limit();
                        price::of_a_sample()
                    });
                    opened = Some(Threads::open_of((pid, sampled.life.0), period(price, pace), most));
                });
                set.spend(pid, used);
                match opened? {
                    Ok(threads) => sampled.events = Events::Open(threads, pace),
                    Err(PerfError::Vanished) => {}
                    Err(why) => {
                        sampled.events = Events::Refused;
                        set.check_again(pid);
                        return Some(why);
                    }
                }
                None
            }
        }
    }

    /// Returns what of a process may be copied now.
    pub(super) fn copies(&self, pid: u32) -> Copies {
        match self.known.get(&pid) {
            None => Copies::Hot(HotCode::default()),
            // Without samples nothing says which of it is to be within a budget.
            Some(Sampled { events: Events::Refused, .. }) if self.limits.is_unlimited() => Copies::All,
            Some(Sampled { events: Events::Refused, .. }) => Copies::Hot(HotCode::default()),
            Some(sampled) => Copies::Hot(sampled.follow.chosen().clone()),
        }
    }

    /// Takes account of what an attempt to lift a process has found, and has left.
    pub(super) fn found(&mut self, set: &ProcessSet, pid: u32, code: Code) {
        match (self.known.get_mut(&pid), set.life_of(pid)) {
            (Some(sampled), Some(life)) if sampled.life == life => sampled.follow.found(code),
            (_, Some(life)) => {
                let follow = Follow::new(self.page, code);
                let (events, cpu) = (Events::Closed, set.cpu_of(pid));
                let sampled = Sampled { life, follow, events, cpu, is_busy: false };
                self.known.insert(pid, sampled);
            }
            (_, None) => {}
        }
    }

    /// Returns "; 312 samples chose 28 huge pages of 98" of a process that has hot code.
    pub(super) fn says(&self, pid: u32) -> Option<String> {
        let sampled = self.known.get(&pid).filter(|one| !matches!(one.events, Events::Refused))?;
        let (chosen, all) = sampled.follow.pages();
        let samples = sampled.follow.samples();
        let pages = if chosen == 1 { "page" } else { "pages" };
        (chosen > 0).then(|| format!("; {samples} samples chose {chosen} huge {pages} of {all}"))
    }

    /// Returns whether a first choice is to be made of a process.
    pub(super) fn chooses(&self) -> bool {
        self.open().any(|(_, pace)| pace == Pace::Fast)
    }

    fn threads(&self) -> usize {
        self.open().map(|(threads, _)| threads.count()).sum()
    }

    /// Returns the events that are open.
    fn open(&self) -> impl Iterator<Item = (&Threads, Pace)> {
        self.known.values().filter_map(|sampled| match &sampled.events {
            Events::Open(threads, pace) => Some((threads, *pace)),
            Events::Closed | Events::Refused => None,
        })
    }
}

/// Returns the CPU time of a thread between two samples.
fn period(price: Duration, pace: Pace) -> Duration {
    let share = match pace {
        Pace::Fast => FAST_SHARE,
        Pace::Slow => SHARE,
    };
    Rate::new(price, share).period().max(SHORTEST)
}
