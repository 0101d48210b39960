// SPDX-License-Identifier: Apache-2.0
//! What is read of a process at the beginning and at the end of a period, and the figures between the two.

use super::metric::Metric;
use super::work::Work;
use crate::memory::Memory;
use crate::run::Run;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_linux::proc::clock::cpu_time;
use hugelift_linux::proc::procfs::Process;
use std::time::{Duration, Instant};

/// There was no work in a period.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoWork(String);

/// What is read at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// The moment.
    pub at: Instant,
    /// CPU time of the process so far.
    pub cpu: Duration,
    /// The counter.
    pub count: Option<f64>,
    /// Page faults so far that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults so far that read from a disk.
    pub major_faults: u64,
}

impl Reading {
    /// Reads a process now. `count` reads its counter, which may take some milliseconds; the moment is taken to be the middle.
    ///
    /// # Errors
    /// The process has ended, or `count` fails.
    pub fn take(pid: u32, count: impl FnOnce() -> Result<Option<f64>>) -> Result<Reading> {
        let cpu = || cpu_time(pid).context("read its CPU time");
        let (began, before) = (Instant::now(), cpu()?);
        let count = count()?;
        let (took, after) = (began.elapsed(), cpu()?);
        let stat = Process::new(pid).stat()?;
        Ok(Reading {
            at: began + took / 2,
            cpu: before + after.saturating_sub(before) / 2,
            count,
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
        })
    }
}

/// Returns the figures of the period from `first` to `last`. `gauge` is the value that was measured at its
/// end, and `memory` what was huge.
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
    let cpu = last.cpu.saturating_sub(first.cpu).as_secs_f64();
    if cpu <= 0.0 {
        bail!(NoWork(format!("it used no CPU time in a period of {wall:.1} s: there is no work to compare")));
    }
    let growth =
        first.count.zip(last.count).map(|(first, last)| growth(metric, first, last, wall)).transpose()?;
    if let (Some(value), Some(command)) = (gauge, metric.gauge()) {
        ensure!(
            value > 0.0,
            "{} '{}' printed {value}, which has no ratio: it must be above 0",
            command.option,
            command.line
        );
    }
    let faults = |of: fn(&Reading) -> u64| of(last).saturating_sub(of(first));
    Ok(Run {
        pair: 0,
        position: 0,
        wall,
        user: 0.0,
        system: 0.0,
        helper: 0.0,
        minor_faults: faults(|reading| reading.minor_faults),
        major_faults: faults(|reading| reading.major_faults),
        status: 0,
        peak_bytes: None,
        memory,
        metric: growth.map(|growth| growth / wall).or(gauge),
        server_cpu: growth.map(|growth| cpu / growth),
        cpu_per_second: Some(cpu / wall),
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
