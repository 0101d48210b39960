// SPDX-License-Identifier: Apache-2.0
//! What all experiments on running processes have in common: the processes are lifted, changed and measured, and left as they
//! were found.

use super::batch::{Batch, LeftAs};
use super::counted::between;
use super::measure_of_work::MeasureOfWork;
use super::members::Members;
use super::options::Options;
use crate::FAILED;
use crate::compare::cut::{Cut, Ended, Measured};
use crate::failure::Exit;
use anyhow::{Error, Result, anyhow, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::comparison::{Run, Setting};
use hugelift_measure::live::{Live, Metric, NoWork, run as figures_of};
use hugelift_measure::pmu::counts::About;
use hugelift_measure::stopping::Reached;
use hugelift_measure::{host, interrupt};
use std::time::{Duration, Instant};

/// The interval at which a wait checks for ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// How long a process may do no work before the experiment ends. A process that waits for a CPU on a busy machine does none
/// in a short period.
const IDLE: Duration = Duration::from_secs(2);
/// The same in periods, if these are longer.
const IDLE_PERIODS: u32 = 8;

/// How often a period is measured because the kernel makes the memory huge. It does so every ten seconds or more seldom.
const SPLITS: u32 = 8;

/// What an experiment has given.
pub(super) struct Done<T> {
    /// The figures.
    pub(super) result: T,
    /// The whole pairs.
    pub(super) pairs: usize,
    /// Why there are no more.
    pub(super) reached: Reached,
    /// What has ended them too soon.
    pub(super) cut: Option<Cut>,
}

/// Lifts processes, does `work`, leaves each as it was found, and draws the conclusions.
pub(super) fn conduct<T, R>(
    members: Members,
    options: &Options,
    work: impl FnOnce(&mut Batch, &MeasureOfWork) -> Result<Done<T>>,
    conclude: impl FnOnce(Setting, Option<About>, Reached, T) -> R,
) -> Result<Measured<R>> {
    interrupt::prepare()?;
    let mut batch = Batch::open(members, options)?;
    let name = batch.members.name();
    let command = command_line(batch.first.0);
    let measured = batch
        .first_lift()
        .and_then(|()| MeasureOfWork::of(&mut batch, options, wait))
        .map_err(too_little)
        .and_then(|measure| Ok((work(&mut batch, &measure)?, measure)));
    let is_done = |done: &Done<T>| done.cut.as_ref().is_none_or(|cut| cut.exit == Exit::SUCCESS);
    let left = batch.leave(match &measured {
        Ok((done, _)) if is_done(done) => options.leave,
        _ => None,
    });
    let (done, measure) = measured.map_err(|error| match (error, &left) {
        (error, Ok(Some(left))) if batch.members.is_one() => {
            anyhow!("{name}: {error:#}; it is left {}, as it was found", left.state.name())
        }
        (error, Ok(Some(_))) => anyhow!("{name}: {error:#}; each process is left as it was found"),
        (error, Ok(None)) => anyhow!("{name}: {error:#}"),
        (error, Err(why)) => anyhow!("{name}: {error:#}; {why:#}"),
    })?;
    let mut said: Vec<String> =
        done.cut.iter().map(|cut| format!("{name}: {}", cut.line(done.pairs))).collect();
    let mut exit = done.cut.as_ref().map_or(Exit::SUCCESS, |cut| cut.exit);
    let left = left.unwrap_or_else(|why| {
        said.push(format!("{why:#}"));
        exit = Exit(FAILED);
        Some(LeftAs { state: batch.state(), as_found: false })
    });
    let said = (!said.is_empty()).then(|| said.join("; "));
    let setting = setting(&batch, name, options, measure.metric, command, left);
    let about = options.counters.then(|| batch.counted.about());
    Ok(Measured { comparison: conclude(setting, about, done.reached, done.result), said, exit })
}

/// Says of a process that has ended that there is no pair yet.
pub(super) fn too_little(error: Error) -> Error {
    match error.is::<Ended>() {
        true => anyhow!("it has ended before one pair of periods was complete: too little for a result"),
        false => error,
    }
}

/// Measures one period. One in which the processes did no work is measured again, and so is one in which the kernel has made
/// memory huge that was to be on small pages.
pub(super) fn period_as_it_is(batch: &mut Batch, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    for _ in 1..SPLITS {
        let run = period_with_work(batch, options, measure)?;
        if !batch.split_again()? {
            return Ok(run);
        }
    }
    period_with_work(batch, options, measure)
}

fn period_with_work(batch: &mut Batch, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    wait(Instant::now() + options.settle)?;
    let first = Instant::now();
    loop {
        let began = Instant::now();
        match one_period(batch, options, measure) {
            // A slow command makes a period long.
            Err(error)
                if error.is::<NoWork>() && first.elapsed() < IDLE.max(IDLE_PERIODS * began.elapsed()) => {}
            measured => return measured,
        }
    }
}

fn one_period(batch: &mut Batch, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    let metric = &measure.metric;
    let first = measure.read(batch)?;
    let before = batch.counted.now();
    wait(first.end_of_period(options.period))?;
    let counts = options.counters.then(|| Box::new(between(&before, &batch.counted.now())));
    let last = measure.read(batch)?;
    let gauge = metric.gauge().map(|command| command.number()).transpose()?;
    let memory = batch.memory();
    ensure!(!batch.has_ended(), Ended);
    batch.do_the_work(&first, &last)?;
    Ok(Run { counts, ..figures_of(metric, &first, &last, gauge, memory)? })
}

/// Waits until a moment, or until ctrl-C.
fn wait(until: Instant) -> Result<()> {
    loop {
        interrupt::check()?;
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => std::thread::sleep(left.min(POLL)),
        }
    }
}

/// Returns how the experiment was made.
fn setting(
    batch: &Batch,
    name: String,
    options: &Options,
    metric: Metric,
    command: Vec<String>,
    left: Option<LeftAs>,
) -> Setting {
    let live = Live {
        pid: batch.first.0,
        name,
        chosen_by: batch.members.words(batch.living()),
        processes: batch.processes,
        metric: metric.clone(),
        period_s: options.period.as_secs_f64(),
        settle_s: options.settle.as_secs_f64(),
        seed: options.seed,
        same_copy: options.same_copy,
        memory: !options.memory.is_empty(),
        left_out_bytes: batch.left_out(),
        left_out_why: batch.left_out_why(),
        not_lifted: batch.not_lifted.clone(),
        found: batch.found(),
        left: left.map(|left| left.state),
        left_as_found: left.is_none_or(|left| left.as_found),
        switching: batch.switching.clone(),
    };
    Setting {
        host: host::describe(),
        command,
        load: None,
        figure: metric.figure(),
        higher_is_better: options.higher_is_better,
        bare_4k: false,
        counts_transactions: metric.counts(),
        has_latency: false,
        live: Some(live),
    }
}

/// Returns the words of a process's command line.
fn command_line(pid: u32) -> Vec<String> {
    let line = Process::new(pid).read("cmdline").unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| text_to_parse(word).into_owned()).collect()
}
