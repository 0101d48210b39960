// SPDX-License-Identifier: Apache-2.0
//! What all experiments on a running process have in common: the process is lifted, changed and measured, and left as it was
//! found.

use super::measure_of_work::MeasureOfWork;
use super::options::Options;
use super::subject::Subject;
use crate::FAILED;
use crate::compare::cut::{Cut, Ended, Measured};
use crate::failure::Exit;
use anyhow::{Error, Result, anyhow, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::comparison::{Run, Setting};
use hugelift_measure::live::{Live, Metric, NoWork, Reading, State, run as figures_of};
use hugelift_measure::stopping::Reached;
use hugelift_measure::timed::Seen;
use hugelift_measure::{host, interrupt};
use std::time::{Duration, Instant};

/// The interval at which a wait checks for ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// How long a process may do no work before the experiment ends. A process that waits for a CPU on a busy machine does none
/// in a short period.
const IDLE: Duration = Duration::from_secs(2);

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

/// Lifts a process, does `work`, leaves the process as it was found, and draws the conclusions.
pub(super) fn conduct<T, R>(
    pid: u32,
    options: &Options,
    work: impl FnOnce(&mut Subject, &MeasureOfWork) -> Result<Done<T>>,
    conclude: impl FnOnce(Setting, Reached, T) -> R,
) -> Result<Measured<R>> {
    interrupt::prepare()?;
    let mut subject = Subject::open(pid, options)?;
    let name = subject.name.clone();
    let command = command_line(pid);
    let measured = subject
        .first_lift()
        .map_err(|error| if subject.has_ended() { Ended.into() } else { error })
        .and_then(|()| MeasureOfWork::of(&mut subject, options, wait))
        .map_err(too_little)
        .and_then(|measure| Ok((work(&mut subject, &measure)?, measure)));
    let found = subject.found;
    let is_done = |done: &Done<T>| done.cut.as_ref().is_none_or(|cut| cut.exit == Exit::SUCCESS);
    let left = subject.leave(match &measured {
        Ok((done, _)) if is_done(done) => options.leave.unwrap_or(found),
        _ => found,
    });
    let (done, measure) = measured.map_err(|error| match (error, &left) {
        (error, Ok(Some(state))) => {
            anyhow!("{name}: {error:#}; it is left {}, as it was found", state.name())
        }
        (error, Ok(None)) => anyhow!("{name}: {error:#}"),
        (error, Err(why)) => anyhow!("{name}: {error:#}; {why:#}"),
    })?;
    let mut said: Vec<String> =
        done.cut.iter().map(|cut| format!("{name}: {}", cut.line(done.pairs))).collect();
    let mut exit = done.cut.as_ref().map_or(Exit::SUCCESS, |cut| cut.exit);
    let left = left.unwrap_or_else(|why| {
        said.push(format!("{why:#}"));
        exit = Exit(FAILED);
        Some(subject.state())
    });
    let said = (!said.is_empty()).then(|| said.join("; "));
    let setting = setting(&subject, options, measure.metric, command, left);
    Ok(Measured { comparison: conclude(setting, done.reached, done.result), said, exit })
}

/// Says of a process that has ended that there is no pair yet.
pub(super) fn too_little(error: Error) -> Error {
    match error.is::<Ended>() {
        true => anyhow!("it has ended before one pair of periods was complete: too little for a result"),
        false => error,
    }
}

/// Measures one period. One in which the process did no work is measured again.
pub(super) fn period_as_it_is(
    subject: &mut Subject,
    options: &Options,
    measure: &MeasureOfWork,
) -> Result<Run> {
    wait(Instant::now() + options.settle)?;
    let began = Instant::now();
    loop {
        match one_period(subject, options, measure) {
            Err(error) if error.is::<NoWork>() && began.elapsed() < IDLE => {}
            measured => return measured,
        }
    }
}

fn one_period(subject: &mut Subject, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    let metric = &measure.metric;
    let first = Reading::take(subject.pid, || measure.count())?;
    wait(first.at + options.period)?;
    let last = Reading::take(subject.pid, || measure.count())?;
    let gauge = metric.gauge().map(|command| command.number()).transpose()?;
    let memory = Seen::now(subject.pid).memory;
    ensure!(!subject.has_ended(), Ended);
    subject.works_itself()?;
    figures_of(metric, &first, &last, gauge, memory)
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
    subject: &Subject,
    options: &Options,
    metric: Metric,
    command: Vec<String>,
    left: Option<State>,
) -> Setting {
    let live = Live {
        pid: subject.pid,
        name: subject.name.to_string(),
        metric: metric.clone(),
        period_s: options.period.as_secs_f64(),
        settle_s: options.settle.as_secs_f64(),
        seed: options.seed,
        same_copy: options.same_copy,
        left_out_bytes: subject.left_out,
        not_lifted: subject.not_lifted.clone(),
        found: subject.found,
        left,
        switching: subject.switching.clone(),
    };
    Setting {
        host: host::describe(),
        command,
        load: None,
        figure: metric.figure(),
        higher_is_better: options.higher_is_better,
        bare_4k: false,
        counts_transactions: metric.counts(),
        live: Some(live),
    }
}

/// Returns the words of a process's command line.
fn command_line(pid: u32) -> Vec<String> {
    let line = Process::new(pid).read("cmdline").unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| text_to_parse(word).into_owned()).collect()
}
