// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare --pid`: a process that runs is compared with itself. Period by period it is lifted or
//! bare; periods that follow each other form a pair.

mod by_part;
mod measure_of_work;
mod options;
mod subject;

pub use by_part::measure as measure_parts;
pub use options::{LiveArgs, Options};

use super::cut::{Cut, Ended, Measured};
use super::progress::Progress;
use crate::FAILED;
use crate::failure::Exit;
use anyhow::{Error, Result, anyhow, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::comparison::{self, Comparison, Memory, Run, Setting, Side};
use hugelift_measure::live::{Live, Metric, NoWork, Reading, State, run as figures_of};
use hugelift_measure::stats::Estimate;
use hugelift_measure::stopping::Reached;
use hugelift_measure::timed::Seen;
use hugelift_measure::{host, interrupt, rounds};
use measure_of_work::MeasureOfWork;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use subject::Subject;

/// The interval at which a wait checks for ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// How long a process may do no work before the experiment ends. A process that waits for a CPU on a busy machine does none
/// in a short period.
const IDLE: Duration = Duration::from_secs(2);

/// What an experiment has given.
struct Done<T> {
    /// The figures.
    result: T,
    /// The whole pairs.
    pairs: usize,
    /// Why there are no more.
    reached: Reached,
    /// What has ended them too soon.
    cut: Option<Cut>,
}

/// Compares a process with itself, and leaves it as it was found, also after an error and at ctrl-C. The exit
/// status says whether it could be left so.
///
/// # Errors
/// One line: what has ended the experiment before the first pair was complete, and how the process is left.
pub fn measure(pid: u32, options: &Options) -> Result<Measured> {
    let work =
        |subject: &mut Subject, measure: &MeasureOfWork| periods(&RefCell::new(subject), options, measure);
    conduct(pid, options, work, |setting, reached, results| {
        let sides = options.sides().into_iter().zip(results).map(|(state, runs)| Side {
            name: state.name().into(),
            options: (state == State::Lifted).then(|| options.words.clone()),
            memory: runs.iter().filter_map(|run| run.memory).reduce(Memory::max),
            peak_bytes: None,
            liftable: None,
            why_not: None,
            runs,
        });
        Comparison::new(setting, reached, sides.collect())
    })
}

/// Lifts a process, does `work`, leaves the process as it was found, and draws the conclusions.
fn conduct<T, R>(
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
        .and_then(|()| MeasureOfWork::of(&mut subject, options, wait).map_err(too_little))
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

/// Measures pairs of periods until the rule says that there are enough, or one fails.
fn periods(
    subject: &RefCell<&mut Subject>,
    options: &Options,
    measure: &MeasureOfWork,
) -> Result<Done<Vec<Vec<Run>>>> {
    let began = Instant::now();
    let progress = Progress::new(options.rule);
    let reached = Cell::new(Reached::Pairs);
    let side = |state: State| {
        let what = match state {
            State::Bare => "in a bare period",
            State::Lifted => "in a lifted period",
            State::Small => "in a period on small pages",
        };
        rounds::Side::new(what, move || {
            let mut subject = subject.borrow_mut();
            period(&mut subject, state, options, measure).map_err(|error| subject.cause(error))
        })
    };
    let random = fastrand::Rng::with_seed(options.seed);
    let rounds::Rounds { mut results, orders, failed } =
        rounds::run_drawn(&mut options.sides().map(side), random, |results, _| {
            let count = results.first().map_or(0, Vec::len);
            let estimate = || estimate(measure, results);
            progress.after(count, began.elapsed(), &[State::Lifted.name()], || vec![estimate()]);
            let done = options.rule.reached(count, began.elapsed(), || estimate()?.half_width());
            reached.set(done.unwrap_or(reached.get()));
            done.is_none()
        });
    progress.end();
    let cut = failed.map(|error| Cut::after(orders.len(), error).map_err(too_little)).transpose()?;
    for (side, runs) in results.iter_mut().enumerate() {
        for ((pair, run), order) in runs.iter_mut().enumerate().zip(&orders) {
            run.pair = pair + 1;
            run.position = order.iter().position(|&s| s == side).map_or(0, |p| p + 1);
        }
    }
    let reached = cut.as_ref().map_or(reached.get(), |cut| cut.reached);
    Ok(Done { pairs: orders.len(), result: results, reached, cut })
}

/// Says of a process that has ended that there is no pair yet.
fn too_little(error: Error) -> Error {
    match error.is::<Ended>() {
        true => anyhow!("it has ended before one pair of periods was complete: too little for a result"),
        false => error,
    }
}

/// Measures one period in a state.
fn period(subject: &mut Subject, state: State, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    subject.switch(state)?;
    period_as_it_is(subject, options, measure)
}

/// Measures one period. One in which the process did no work is measured again.
fn period_as_it_is(subject: &mut Subject, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
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

fn estimate(measure: &MeasureOfWork, results: &[Vec<Run>]) -> Option<Estimate> {
    match results {
        [bare, lifted] => comparison::ratio(measure.metric.figure(), bare, lifted),
        _ => None,
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
