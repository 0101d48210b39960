// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare --pid`: processes that run are compared with themselves. Period by period they are lifted or
//! bare; periods that follow each other form a pair.

mod batch;
mod by_part;
mod conduct;
mod counted;
mod measure_of_work;
mod member;
mod members;
mod options;
mod parts;
mod subject;
mod uncounted;

pub use by_part::measure as measure_parts;
pub use members::Members;
pub use options::{LiveArgs, Options};

use super::cut::{Cut, Measured};
use super::progress::Progress;
use anyhow::Result;
use batch::Batch;
use conduct::{Done, conduct, period_as_it_is, too_little};
use hugelift_measure::comparison::{self, Comparison, Memory, Run, Side};
use hugelift_measure::live::State;
use hugelift_measure::pmu::side_by_side::Per;
use hugelift_measure::rounds;
use hugelift_measure::stats::Estimate;
use hugelift_measure::stopping::Reached;
use measure_of_work::MeasureOfWork;
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// Compares processes with themselves, and leaves each as it was found, also after an error and at ctrl-C. The exit
/// status says whether it could be left so.
///
/// # Errors
/// One line: what has ended the experiment before the first pair was complete, and how the process is left.
pub fn measure(members: Members, options: &Options) -> Result<Measured> {
    let work = |batch: &mut Batch, measure: &MeasureOfWork| periods(&RefCell::new(batch), options, measure);
    conduct(members, options, work, |setting, about, reached, results| {
        let sides = options.sides().into_iter().zip(results).map(|(state, runs)| Side {
            name: state.name().into(),
            options: (state == State::Lifted).then(|| options.words.clone()),
            memory: runs.iter().filter_map(|run| run.memory).reduce(Memory::max),
            peak_bytes: None,
            liftable: None,
            why_not: None,
            runs,
        });
        let mut comparison = Comparison::new(setting, reached, sides.collect());
        comparison.counters =
            about.and_then(|about| comparison::side_by_side(&about, &comparison.sides, Per::Second));
        comparison
    })
}

/// Measures pairs of periods until the rule says that there are enough, or one fails.
fn periods(
    batch: &RefCell<&mut Batch>,
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
            let mut batch = batch.borrow_mut();
            period(&mut batch, state, options, measure).map_err(|error| batch.cause(error))
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

/// Measures one period in a state.
fn period(batch: &mut Batch, state: State, options: &Options, measure: &MeasureOfWork) -> Result<Run> {
    batch.switch(state)?;
    period_as_it_is(batch, options, measure)
}

fn estimate(measure: &MeasureOfWork, results: &[Vec<Run>]) -> Option<Estimate> {
    match results {
        [bare, lifted] => comparison::ratio(measure.metric.figure(), bare, lifted),
        _ => None,
    }
}
