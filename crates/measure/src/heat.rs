// SPDX-License-Identifier: Apache-2.0
//! Sampling of processes for a given time, object by object. [`hugelift_heat`] takes the samples.

use crate::perf::workload::{Event, Signals, has_ended, wait_for};
use hugelift_core::heat::Heat;
use hugelift_core::heat::data::DataInUse;
use hugelift_core::heat::places::Place;
use hugelift_core::heat::tally::Tally;
use hugelift_heat::data::{Allowed, Watch};
use hugelift_heat::pace::{Due, Rate};
use hugelift_heat::price;
use hugelift_heat::records::Batch;
use hugelift_heat::refusal::PerfError;
use hugelift_heat::threads::{self, Threads};
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::proc::clock::cpu_time_of_thread;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::snapshot;
use std::time::{Duration, Instant};

/// Samples take at most one part in so many of the CPU time of what is sampled, for the seconds for which somebody waits
/// for them. With fewer a guest, where a sample costs 50 us, would tell nothing in these.
const SHARE: u32 = 100;

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel opens no event.
    #[error(transparent)]
    Perf(#[from] PerfError),
    /// The process cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// How long a process is sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Until {
    /// At least so long.
    pub least: Duration,
    /// From then on until this many samples are in code of its files.
    pub enough: u64,
    /// At most so long.
    pub most: Duration,
}

impl Until {
    /// Samples for exactly `time`.
    pub fn time(time: Duration) -> Until {
        Until { least: time, enough: u64::MAX, most: time }
    }
}

/// What was sampled of several processes.
#[derive(Debug)]
pub struct Sampled {
    /// Of each process, in their order.
    pub heats: Vec<Result<Heat, Refusal>>,
    /// A signal has ended it early.
    pub is_interrupted: bool,
}

/// Samples a process as [`sample`] does, and watches meanwhile which data it uses.
///
/// # Errors
/// See [`Refusal`].
pub fn sample_with_data(
    pid: u32,
    time: Duration,
    allowed: Allowed,
    signals: &Signals,
) -> Result<(Heat, DataInUse), Refusal> {
    // The signals are blocked, so that what is set in the kernel is taken back when one arrives.
    let watch = Watch::start(Process::new(pid).with_memory(), time, allowed)?;
    let heat = sample(pid, time, signals)?;
    Ok((heat, watch.finish()))
}

/// Samples a process for `time`, or until it ends or a signal arrives. If there are no samples, it slept.
///
/// # Errors
/// See [`Refusal`].
pub fn sample(pid: u32, time: Duration, signals: &Signals) -> Result<Heat, Refusal> {
    let sampled = sample_all(&[pid], Until::time(time), signals);
    sampled.heats.into_iter().next().unwrap_or(Err(Refusal::Perf(PerfError::Vanished)))
}

/// Samples processes at the same time, each until it has enough samples or ends. A signal ends it for all.
pub fn sample_all(pids: &[u32], until: Until, signals: &Signals) -> Sampled {
    raise_file_limit();
    let price = price::of_a_sample();
    // The threads of one process may have all events, those of several share them.
    let most = threads::MOST / pids.len().max(1);
    let mut samplers: Vec<Result<Sampler, Refusal>> =
        pids.iter().map(|pid| Sampler::open(*pid, price, most.max(1))).collect();
    let mut is_interrupted = false;
    loop {
        let mut running: Vec<&mut Sampler> =
            samplers.iter_mut().flatten().filter(|sampler| sampler.took.is_none()).collect();
        let Some(first) = running.first() else { break };
        let next = running.iter().map(|sampler| sampler.next(until.most)).min();
        let event = wait_for(first.pid, signals, next);
        is_interrupted = matches!(event, Event::Signal(..));
        for sampler in &mut running {
            sampler.read(until, is_interrupted);
        }
    }
    let heats = samplers.into_iter().map(|sampler| sampler.map(Sampler::finish)).collect();
    Sampled { heats, is_interrupted }
}

/// A process that is sampled.
struct Sampler {
    pid: u32,
    process: Process,
    tally: Tally,
    price: Duration,
    rate: Rate,
    threads: Threads,
    batch: Batch,
    outside: u64,
    lost: u64,
    /// When the list of threads, and the places of addresses, are read again.
    list: Due,
    lookup: Due,
    began: Instant,
    read_at: Instant,
    ended: bool,
    /// How long it was sampled, once that is over.
    took: Option<Duration>,
}

impl Sampler {
    fn open(pid: u32, price: Duration, most: usize) -> Result<Sampler, Refusal> {
        let process = Process::new(pid).with_memory();
        let tally = Tally::new(&snapshot::live(Some(process.pid()), 0)?);
        let rate = Rate::new(price, SHARE);
        let threads = Threads::open(process, rate.period(), most)?;
        let began = Instant::now();
        Ok(Sampler {
            pid,
            process,
            tally,
            price,
            rate,
            threads,
            batch: Batch::default(),
            outside: 0,
            lost: 0,
            list: Due::default(),
            lookup: Due::default(),
            began,
            read_at: began,
            ended: false,
            took: None,
        })
    }

    /// Returns when it is to be read next, if it is sampled for `most`.
    fn next(&self, most: Duration) -> Instant {
        (self.read_at + self.rate.interval()).min(self.began + most)
    }

    /// Counts the new samples. They are the last ones if the time `is_up`, there are enough or the process has ended.
    fn read(&mut self, until: Until, is_up: bool) {
        self.ended = has_ended(self.pid);
        let (before, cpu) = (self.read_at, cpu_time_of_thread());
        self.read_at = Instant::now();
        self.batch.clear();
        self.threads.read(&mut self.batch);
        self.batch.user.iter().for_each(|address| self.tally.add(*address));
        self.outside += self.batch.outside;
        self.lost += self.batch.lost;
        if self.rate.adapt(cpu_time_of_thread().saturating_sub(cpu), self.read_at - before) {
            self.threads.set_period(self.rate.period());
        }
        let time = self.read_at - self.began;
        let has_enough = || time >= until.least && self.tally.in_objects() >= until.enough;
        let is_over = self.ended || is_up || time >= until.most || has_enough();
        self.list.run_if(!is_over, || self.threads.follow());
        let (tally, process) = (&mut self.tally, self.process);
        self.lookup.run_if(!is_over && tally.lacks_places(), || learn(tally, process));
        self.took = is_over.then_some(time);
    }

    fn finish(mut self) -> Heat {
        if self.tally.lacks_places() && !self.ended {
            learn(&mut self.tally, self.process);
        }
        let outside = self.threads.sees_kernel.then_some(self.outside);
        let heat = heat(&self.tally, self.took.unwrap_or_default(), outside);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Heat {
            ended: self.ended,
            threads: self.threads.all as u64,
            sampled_threads: self.threads.sampled as u64,
            lost_samples: self.lost,
            period_ns: nanoseconds(self.rate.period()),
            sample_cost_ns: nanoseconds(self.price),
            ..heat
        }
    }
}

/// Looks up the samples that wait for it. If the process cannot be read any more, they stay where they are.
fn learn(tally: &mut Tally, process: Process) {
    let _ = snapshot::live(Some(process.pid()), 0).map(|newer| tally.learn(&newer));
}

fn heat(tally: &Tally, time: Duration, kernel_samples: Option<u64>) -> Heat {
    let objects = tally.objects();
    let (jit_samples, other_samples) = (tally.samples(Place::Jit), tally.samples(Place::Other));
    let in_objects: u64 = objects.iter().map(|object| object.samples).sum();
    let (page, huge_page) = tally.page_sizes();
    Heat {
        milliseconds: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        ended: false,
        threads: 0,
        sampled_threads: 0,
        samples: in_objects + jit_samples + other_samples + kernel_samples.unwrap_or(0),
        lost_samples: 0,
        period_ns: 0,
        sample_cost_ns: 0,
        kernel_samples,
        jit_samples,
        other_samples,
        page_size: page.bytes(),
        huge_page_size: huge_page.bytes(),
        pages: tally.pages(),
        objects,
    }
}

#[cfg(test)]
mod tests;
