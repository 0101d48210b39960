// SPDX-License-Identifier: Apache-2.0
//! What is read of processes at the beginning and at the end of a period, and the figures between the two.

use super::command::Command;
use super::cpu_clock::CpuClock;
use super::metric::Metric;
use super::work::{Work, WorkCounter};
use crate::memory::Memory;
use crate::run::Run;
use anyhow::{Result, bail, ensure};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::clock::of_ticks;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The least length of a period, in times of a reading, which a user's command may make long. So the moments of what is read
/// are known to 5 % of the period.
const READINGS: u32 = 20;
/// The longest period that is not asked for.
const LONGEST: Duration = Duration::from_secs(10);

/// There was no work in a period.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoWork(String);

/// What is read of one process.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct OfProcess {
    /// Its CPU time so far.
    pub cpu: Duration,
    /// Its CPU time so far as its parent takes it over (utime and stime of proc_pid_stat(5), each rounded down to a clock tick). On
    /// a virtual machine `cpu` may be larger by the time that the host took (steal time): the scheduler takes that off
    /// (`update_rq_clock_task` in kernel/sched/core.c), and a counter of the task clock does not.
    pub cpu_in_stat: Duration,
    /// What the kernel counts of it.
    pub count: Option<f64>,
    /// Page faults so far that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults so far that read from a disk.
    pub major_faults: u64,
    /// CPU time of the children that it has waited for.
    pub cpu_of_children: Duration,
    /// Page faults of these children, which shows whether there was one.
    pub faults_of_children: u64,
}

impl OfProcess {
    /// Reads a process now; `None` if it has ended.
    fn now(process: &Source<'_>) -> Result<Option<OfProcess>> {
        let Some((cpu, count)) = process.at_once() else { return Ok(None) };
        match Process::new(process.identity.0).stat() {
            Ok(stat) if stat.is_whole(process.identity) => Ok(Some(OfProcess {
                cpu,
                cpu_in_stat: of_ticks(stat.cpu),
                count: count?,
                minor_faults: stat.minor_faults,
                major_faults: stat.major_faults,
                cpu_of_children: of_ticks(stat.cpu_of_children),
                faults_of_children: stat.minor_faults_of_children,
            })),
            _ => Ok(None),
        }
    }
}

/// CPU time and count.
type AtOnce = (Duration, Result<Option<f64>>);

/// A process, and what its figures are read from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The process.
    pub identity: Identity,
    /// Its CPU time.
    pub clock: &'a CpuClock,
    /// What the kernel counts of it, if that is the measure.
    pub work: Option<(&'a WorkCounter, Work)>,
}

impl Source<'_> {
    fn at_once(&self) -> Option<AtOnce> {
        self.clock.with(|| self.work.map(|(counter, work)| counter.count(work)).transpose())
    }
}

/// What is read at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Reading {
    /// The moment.
    pub at: Instant,
    /// How long the reading took, with the user's command. `at` is the middle of that time; each figure is of a moment within it.
    pub took: Duration,
    /// What the user's command counts.
    pub count: Option<f64>,
    /// The processes that live.
    pub of: BTreeMap<Identity, OfProcess>,
}

impl Reading {
    /// Reads processes now. The moment is taken to be the middle: `command` may take some milliseconds, and so may the reading of
    /// many processes.
    ///
    /// # Errors
    /// `command` fails, or what the kernel counts of a process that lives cannot be read.
    pub fn take(processes: &[Source<'_>], command: Option<&Command>) -> Result<Reading> {
        let cpu = |process: &Source<'_>| Some((process.identity, process.clock.now().ok()?));
        let began = Instant::now();
        let before: BTreeMap<Identity, Duration> = match command {
            Some(_) => processes.iter().filter_map(cpu).collect(),
            None => BTreeMap::new(),
        };
        let count = command.map(Command::number).transpose()?;
        let mut of = BTreeMap::new();
        for process in processes {
            let Some(mut now) = OfProcess::now(process)? else { continue };
            if let Some(before) = before.get(&process.identity) {
                now.cpu = *before + now.cpu.saturating_sub(*before) / 2;
            }
            of.insert(process.identity, now);
        }
        let took = began.elapsed();
        Ok(Reading { at: began + took / 2, took, count, of })
    }

    /// Returns the moment at which a period that begins here may end, if it is to last `period`. It lasts longer if readings are
    /// slow: the moments of two readings may each be wrong by half the time that they take.
    pub fn end_of_period(&self, period: Duration) -> Instant {
        self.at + period.max((READINGS * self.took).min(LONGEST))
    }

    /// Returns the CPU time since `first` of the processes that were there at both ends.
    pub fn cpu_since(&self, first: &Reading) -> Duration {
        let both = self.of.iter().filter_map(|(identity, last)| Some((first.of.get(identity)?, last)));
        both.map(|(first, last)| last.cpu.saturating_sub(first.cpu)).sum()
    }
}

/// What processes have done in a period, by those that were there at both ends.
#[derive(Default)]
struct Done {
    cpu: Duration,
    minor_faults: u64,
    major_faults: u64,
    /// What the kernel counted at the beginning and at the end.
    counts: Option<(f64, f64)>,
}

impl Done {
    fn between(metric: &Metric, first: &Reading, last: &Reading) -> Done {
        let mut done = Done::default();
        for (identity, last) in &last.of {
            let Some(first) = first.of.get(identity) else { continue };
            // What a child has done in its whole life was added.
            let is_mixed = first.faults_of_children != last.faults_of_children;
            if is_mixed && metric.work().is_some_and(Work::passes_to_parent) {
                continue;
            }
            done.cpu += last.cpu.saturating_sub(first.cpu);
            done.minor_faults += last.minor_faults.saturating_sub(first.minor_faults);
            done.major_faults += last.major_faults.saturating_sub(first.major_faults);
            if let (Some(one), Some(two)) = (first.count, last.count) {
                let (before, after) = done.counts.unwrap_or_default();
                done.counts = Some((before + one, after + two));
            }
        }
        done
    }
}

/// Returns the figures of the period from `first` to `last`: the sums over the processes that were there at both. `gauge` is
/// the value that was measured at its end, and `memory` what was huge.
///
/// # Errors
/// One line: a figure has no ratio to that of another period.
pub fn run(
    metric: &Metric,
    first: &Reading,
    last: &Reading,
    gauge: Option<f64>,
    memory: Option<Memory>,
) -> Result<Run> {
    let wall = last.at.saturating_duration_since(first.at).as_secs_f64();
    ensure!(wall > 0.0, "a period took no time");
    let done = Done::between(metric, first, last);
    let cpu = done.cpu.as_secs_f64();
    if cpu <= 0.0 {
        bail!(NoWork(format!("it used no CPU time in a period of {wall:.1} s: there is no work to compare")));
    }
    let counts = first.count.zip(last.count).or(done.counts);
    let growth = counts.map(|(first, last)| growth(metric, first, last, wall)).transpose()?;
    if let (Some(value), Some(command)) = (gauge, metric.gauge()) {
        ensure!(
            value > 0.0,
            "{} '{}' printed {value}, which has no ratio: it must be above 0",
            command.option,
            command.line
        );
    }
    Ok(Run {
        wall,
        minor_faults: done.minor_faults,
        major_faults: done.major_faults,
        memory,
        metric: growth.map(|growth| growth / wall).or(gauge),
        server_cpu: growth.map(|growth| cpu / growth),
        cpu_per_second: Some(cpu / wall),
        wall_error: Some((first.took + last.took).as_secs_f64() / 2.0),
        ..Run::default()
    })
}

/// Returns by how much the counter has grown.
fn growth(metric: &Metric, first: f64, last: f64, wall: f64) -> Result<f64> {
    let (counter, helps) = match (metric.counter(), metric.work()) {
        (Some(command), _) => (
            format!("the counter of {}", command.option),
            "it must grow; a value that does not is measured by --metric CMD --metric-kind gauge",
        ),
        (None, work) => (
            format!("its number of each {}", work.map_or("unit", Work::unit)),
            "it must grow; --metric CMD names a counter of your own",
        ),
    };
    ensure!(last >= first, "{counter} fell from {first} to {last}: {helps}");
    if last <= first {
        bail!(NoWork(format!(
            "{counter} stayed {first} for {wall:.1} s: there was no work to compare; start the load, or \
             choose a longer --period"
        )));
    }
    Ok(last - first)
}
