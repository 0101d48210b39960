// SPDX-License-Identifier: Apache-2.0
//! Sampling of one process for a given time, object by object. [`hugelift_heat`] takes the samples.

use crate::perf::workload::{Event, Signals, wait_for};
use hugelift_core::heat::Heat;
use hugelift_core::heat::places::Place;
use hugelift_core::heat::tally::Tally;
use hugelift_heat::files::raise_file_limit;
use hugelift_heat::pace::{Due, Rate};
use hugelift_heat::price;
use hugelift_heat::records::Batch;
use hugelift_heat::refusal::PerfError;
use hugelift_heat::threads::{self, Threads};
use hugelift_linux::proc::clock::cpu_time_of_thread;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::snapshot;
use std::time::{Duration, Instant};

/// The time between two readings of the ring buffers. They hold the samples of twice that time.
const INTERVAL: Duration = Duration::from_millis(250);

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

/// Samples a process for `time`, or until it ends or a signal arrives. If there are no samples, it slept.
///
/// # Errors
/// See [`Refusal`].
pub fn sample(pid: u32, time: Duration, signals: &Signals) -> Result<Heat, Refusal> {
    let process = Process::new(pid).with_memory();
    raise_file_limit();
    let mut tally = Tally::new(&snapshot::live(Some(process.pid()), 0)?);
    let price = price::of_a_sample();
    let mut rate = Rate::new(price, SHARE);
    let mut threads = Threads::open(process, rate.period(), threads::MOST)?;
    let began = Instant::now();
    let (mut batch, mut outside, mut lost) = (Batch::default(), 0, 0);
    let (mut list, mut lookup) = (Due::default(), Due::default());
    let learn = |tally: &mut Tally| {
        // If it cannot be read any more, the samples stay where they are.
        let _ = snapshot::live(Some(process.pid()), 0).map(|newer| tally.learn(&newer));
    };
    let mut read_at = began;
    let (mut over, mut ended) = (false, false);
    while !over {
        let event = wait_for(pid, signals, Some((read_at + INTERVAL).min(began + time)));
        ended = event == Event::Ended;
        over = ended || matches!(event, Event::Signal(..)) || began.elapsed() >= time;

        let (before, cpu) = (read_at, cpu_time_of_thread());
        read_at = Instant::now();
        batch.clear();
        threads.read(&mut batch);
        batch.user.iter().for_each(|address| tally.add(*address));
        outside += batch.outside;
        lost += batch.lost;
        if rate.adapt(cpu_time_of_thread().saturating_sub(cpu), read_at - before) {
            threads.set_period(rate.period());
        }
        list.run_if(!over, || threads.follow());
        lookup.run_if(!over && tally.lacks_places(), || learn(&mut tally));
    }
    if tally.lacks_places() && !ended {
        learn(&mut tally);
    }
    let outside = threads.sees_kernel.then_some(outside);
    let heat = heat(&tally, began.elapsed(), outside);
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Heat {
        ended,
        threads: threads.all as u64,
        sampled_threads: threads.sampled as u64,
        lost_samples: lost,
        period_ns: nanoseconds(rate.period()),
        sample_cost_ns: nanoseconds(price),
        ..heat
    })
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
