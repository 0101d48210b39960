// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare --pid`: a process that runs is compared with itself. Period by period it is lifted or
//! bare; periods that follow each other form a pair.

mod options;
mod subject;

pub use options::{LiveArgs, Options};

use super::progress::Progress;
use crate::FAILED;
use crate::failure::Exit;
use anyhow::{Error, Result, anyhow, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_measure::comparison::{self, Comparison, Memory, Run, Setting, Side};
use hugelift_measure::live::{Live, Reading, State, run as figures_of};
use hugelift_measure::stats::Estimate;
use hugelift_measure::stopping::Reached;
use hugelift_measure::timed::Seen;
use hugelift_measure::{host, interrupt, rounds};
use hugelift_os::io::console::say;
use hugelift_os::proc::procfs::Process;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use subject::{Ended, Subject};

/// The interval at which a wait looks for ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// The sides, as in a pair: the bare one is first, as in every comparison.
const SIDES: [State; 2] = [State::Bare, State::Lifted];

/// What the periods have given.
struct Periods {
    /// The periods of each side.
    results: Vec<Vec<Run>>,
    /// Why there are no more.
    reached: Reached,
}

/// Compares a process with itself, and leaves it as it was found, also after an error and at ctrl-C. The exit
/// status says whether it could be left so after a measurement that succeeded.
///
/// # Errors
/// One line: it cannot be lifted or restored, a command prints no number, ctrl-C, or it ended before the
/// first pair was complete.
pub fn measure(pid: u32, options: &Options) -> Result<(Comparison, Exit)> {
    interrupt::prepare()?;
    let mut subject = Subject::open(pid, options)?;
    let name = subject.name.clone();
    let command = command_line(pid);
    let measured = subject.first_lift().and_then(|()| {
        let shared = RefCell::new(&mut subject);
        periods(&shared, options)
    });
    let found = subject.found;
    let left = subject.leave(match &measured {
        Ok(_) => options.leave.unwrap_or(found),
        Err(_) => found,
    });
    let measured = measured.map_err(|error| match (error, &left) {
        (error, Ok(Some(state))) => {
            anyhow!("{name}: {error:#}; it is left {}, as it was found", state.name())
        }
        (error, Ok(None)) => anyhow!("{name}: {error:#}"),
        (error, Err(why)) => anyhow!("{name}: {error:#}; {why:#}"),
    })?;
    let (left, exit) = match left {
        Ok(left) => (left, Exit::SUCCESS),
        Err(why) => {
            say(&format!("{why:#}"));
            (Some(subject.state()), Exit(FAILED))
        }
    };
    if measured.reached == Reached::Ended {
        say(&format!("{name} has ended; the result is on the pairs until then"));
    }
    Ok((conclude(&subject, options, command, measured, left), exit))
}

/// Measures pairs of periods until the rule says that there are enough, or the process ends.
fn periods(subject: &RefCell<&mut Subject>, options: &Options) -> Result<Periods> {
    let began = Instant::now();
    let progress = Progress::new(options.rule);
    let (reached, so_far) = (Cell::new(Reached::Pairs), RefCell::new(vec![Vec::new(), Vec::new()]));
    let side = |state: State| {
        let what = match state {
            State::Bare => "in a bare period",
            State::Lifted => "in a lifted period",
        };
        rounds::Side::new(what, move || {
            let mut subject = subject.borrow_mut();
            period(&mut subject, state, options).map_err(|error| subject.cause(error))
        })
    };
    let orders = RefCell::new(Vec::new());
    let random = fastrand::Rng::with_seed(options.seed);
    let measured = rounds::run_drawn(&mut SIDES.map(side), random, |results, order| {
        orders.borrow_mut().push(order.to_vec());
        so_far.replace(results.to_vec());
        let count = results.first().map_or(0, Vec::len);
        let estimate = || estimate(options, results);
        progress.after(count, began.elapsed(), &[State::Lifted.name()], || vec![estimate()]);
        let done = options.rule.reached(count, began.elapsed(), || estimate()?.half_width());
        reached.set(done.unwrap_or(reached.get()));
        done.is_none()
    });
    progress.end();
    let mut results = so_far.into_inner();
    let reached = match measured {
        Ok(_) => reached.get(),
        Err(error) => ended(error, &results)?,
    };
    let orders = orders.into_inner();
    for (side, runs) in results.iter_mut().enumerate() {
        for ((pair, run), order) in runs.iter_mut().enumerate().zip(&orders) {
            run.pair = pair + 1;
            run.position = order.iter().position(|&s| s == side).map_or(0, |p| p + 1);
        }
    }
    Ok(Periods { results, reached })
}

/// Returns that the process has ended, if it has and there is a pair.
fn ended(error: Error, results: &[Vec<Run>]) -> Result<Reached> {
    if !error.is::<Ended>() {
        return Err(error);
    }
    let pairs = results.iter().map(Vec::len).min().unwrap_or(0);
    ensure!(pairs > 0, "it has ended before one pair of periods was complete: too little for a result");
    Ok(Reached::Ended)
}

/// Measures one period.
fn period(subject: &mut Subject, state: State, options: &Options) -> Result<Run> {
    subject.switch(state)?;
    wait(Instant::now() + options.settle)?;
    let metric = &options.metric;
    let first = Reading::take(subject.pid, metric.counter())?;
    wait(first.at + options.period)?;
    let last = Reading::take(subject.pid, metric.counter())?;
    let gauge = metric.gauge().map(|command| command.number()).transpose()?;
    let memory = Seen::now(subject.pid).memory;
    ensure!(!subject.has_ended(), Ended);
    figures_of(metric, &first, &last, gauge, memory)
}

/// Waits until a moment, or until ctrl-C.
fn wait(until: Instant) -> Result<()> {
    loop {
        interrupt::check()?;
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => std::thread::sleep(left.min(LOOK)),
        }
    }
}

fn estimate(options: &Options, results: &[Vec<Run>]) -> Option<Estimate> {
    match results {
        [bare, lifted] => comparison::ratio(options.metric.figure(), bare, lifted),
        _ => None,
    }
}

fn conclude(
    subject: &Subject,
    options: &Options,
    command: Vec<String>,
    periods: Periods,
    left: Option<State>,
) -> Comparison {
    let live = Live {
        pid: subject.pid,
        name: subject.name.to_string(),
        metric: options.metric.clone(),
        period_s: options.period.as_secs_f64(),
        settle_s: options.settle.as_secs_f64(),
        seed: options.seed,
        found: subject.found,
        left,
        switching: subject.switching.clone(),
    };
    let setting = Setting {
        host: host::describe(),
        command,
        load: None,
        figure: options.metric.figure(),
        higher_is_better: options.higher_is_better,
        bare_4k: false,
        counts_transactions: options.metric.counter().is_some(),
        live: Some(live),
    };
    let sides = SIDES.into_iter().zip(periods.results).map(|(state, runs)| Side {
        name: state.name().into(),
        options: (state == State::Lifted).then(|| options.words.clone()),
        memory: runs.iter().filter_map(|run| run.memory).reduce(Memory::max),
        peak_bytes: None,
        liftable: None,
        why_not: None,
        runs,
    });
    Comparison::new(setting, periods.reached, sides.collect())
}

/// Returns the words of a process's command line.
fn command_line(pid: u32) -> Vec<String> {
    let line = Process::new(pid).read("cmdline").unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| text_to_parse(word).into_owned()).collect()
}
