// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare --pid --by`: which parts of a process gain by huge pages. Each pair of periods has a random half of them
//! on huge pages first, and then the other half.

use super::batch::Batch;
use super::conduct::{Done, conduct, period_as_it_is, too_little};
use super::measure_of_work::MeasureOfWork;
use super::members::Members;
use super::options::Options;
use super::parts::{Divided, divide};
use crate::compare::cut::{Cut, Ended, Measured};
use crate::compare::progress::Progress;
use crate::inspect::of_process;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::heat::hot::HotCode;
use hugelift_core::policy::Policy;
use hugelift_core::snapshot::Part;
use hugelift_lift::attach::{Pages, huge_bytes};
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::comparison::by_part::{By, PartsComparison, Unit};
use hugelift_measure::heat;
use hugelift_measure::interrupt::{self, Interrupted};
use hugelift_measure::live::by_part::{Pair, draw, effects};
use hugelift_measure::perf::workload::Signals;
use hugelift_measure::stats::Estimate;
use hugelift_measure::stopping::Reached;
use std::time::{Duration, Instant};

/// How long the process is sampled with `--by heat`.
const SAMPLED: Duration = Duration::from_secs(5);

/// What the pairs have given.
struct Figures {
    units: Vec<Unit>,
    left_out: Vec<Unit>,
    pairs: Vec<Pair>,
}

/// Measures what each part of a process gains, and leaves the process as it was found, also after an error and at ctrl-C.
///
/// # Errors
/// One line: what has ended the experiment before the first pair was complete, and how the process is left.
pub fn measure(members: Members, options: &Options, by: By) -> Result<Measured<PartsComparison>> {
    let work = |batch: &mut Batch, measure: &MeasureOfWork| {
        let hot = if by == By::Heat { hot_code(batch.first.0)? } else { HotCode::default() };
        let (units, mut left_out) = those_that_switch(batch, divide(batch.copies()?, by, &hot))?;
        left_out.extend(memory(batch.first.0).filter(|_| options.memory.is_empty()));
        pairs(batch, options, measure, units, left_out)
    };
    conduct(members, options, work, |setting, _, reached, figures| {
        let Figures { units, left_out, pairs } = figures;
        PartsComparison::new(setting, by, reached, units, left_out, pairs)
    })
}

/// Samples a process, and returns the code that it uses.
///
/// # Errors
/// It cannot be sampled, has ended, or has used no code of its files.
fn hot_code(pid: u32) -> Result<HotCode> {
    let signals = Signals::block().context("signalfd")?;
    let heat = heat::sample(pid, SAMPLED, &signals);
    signals.restore();
    let heat = heat?;
    ensure!(!heat.ended, Ended);
    // A signal has ended it.
    ensure!(u128::from(heat.milliseconds) >= SAMPLED.as_millis(), Interrupted);
    let hot = heat.hot(u64::MAX);
    ensure!(
        hot.bytes() > 0,
        "{}, and none of them in code of its files: --by part needs no samples",
        heat.says()
    );
    Ok(hot)
}

/// Maps all parts by small pages and by huge ones, and returns those that smaps shows so, and the others.
///
/// # Errors
/// The process cannot be changed, or no part can be switched.
fn those_that_switch(batch: &mut Batch, all: Vec<Divided>) -> Result<(Vec<Divided>, Vec<Unit>)> {
    let mut huge_bytes = |pages: Pages| -> Result<Vec<u64>> {
        let copies: Vec<(Range, Pages)> =
            all.iter().flat_map(|part| &part.ranges).map(|range| (*range, pages)).collect();
        batch.resize_each(&copies)?;
        let usages = Process::new(batch.first.0).with_memory().smaps().context("read its smaps")?;
        let pid = batch.first.0;
        let of_part = |part: &Divided| -> u64 {
            if part.unit.object.is_none() {
                // Other memory of the same mapping may be huge in both states.
                return huge_bytes(pid, &part.ranges);
            }
            let lies_in =
                |range: Range| part.ranges.iter().any(|copy| range.covers(*copy) || copy.covers(range));
            usages.iter().filter(|usage| lies_in(usage.mapping.range)).map(|usage| usage.huge()).sum()
        };
        Ok(all.iter().map(of_part).collect())
    };
    let (small, huge) = (huge_bytes(Pages::Small)?, huge_bytes(Pages::Huge)?);
    let mut switches = small.iter().zip(&huge).map(|(small, huge)| *small == 0 && *huge > 0);
    let (those, others): (Vec<Divided>, Vec<Divided>) =
        all.into_iter().partition(|_| switches.next().unwrap_or(false));
    if those.is_empty() {
        bail!(
            "of its {} parts smaps shows none on small pages and on huge ones in turn ({} on huge pages when small ones \
             were asked for, {} when huge ones were); 'hugelift inspect {}' says what is huge and why not",
            others.len(),
            human_bytes(small.iter().sum()),
            human_bytes(huge.iter().sum()),
            batch.first.0
        );
    }
    Ok((those, others.into_iter().map(|part| part.unit).collect()))
}

/// Returns the memory that the process has written to, if huge pages could map any of it. It is switched only if it is asked for,
/// because huge pages may add to it.
fn memory(pid: u32) -> Option<Unit> {
    // It may have ended; then the first period says so.
    let total = of_process(pid, &Policy::default()).ok()?.anonymous?;
    let unit = Unit { object: None, part: Some(Part::Anon), warmth: None, bytes: total.bytes };
    (total.liftable_bytes > 0).then_some(unit)
}

/// Measures pairs of periods until the rule says that there are enough, or one fails.
fn pairs(
    batch: &mut Batch,
    options: &Options,
    measure: &MeasureOfWork,
    parts: Vec<Divided>,
    left_out: Vec<Unit>,
) -> Result<Done<Figures>> {
    let (began, progress) = (Instant::now(), Progress::new(options.rule));
    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut pairs: Vec<Pair> = Vec::new();
    let widest = |pairs: &[Pair]| -> Option<Estimate> {
        let of = |estimate: &Estimate| estimate.half_width().unwrap_or(f64::INFINITY);
        effects(pairs, parts.len()).ok()?.into_iter().max_by(|one, two| of(one).total_cmp(&of(two)))
    };
    let (reached, cut): (Reached, Option<Cut>) = loop {
        let first_is_huge = draw(&mut random, parts.len());
        match pair(batch, options, measure, &parts, first_is_huge) {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                let cut = Cut::after(pairs.len(), batch.cause(error)).map_err(too_little)?;
                break (cut.reached, Some(cut));
            }
        }
        progress.after(pairs.len(), began.elapsed(), &["least certain part"], || vec![widest(&pairs)]);
        let width = || widest(&pairs)?.half_width();
        if let Some(reached) = options.rule.reached(pairs.len(), began.elapsed(), width) {
            break (reached, None);
        }
    };
    progress.end();
    let units = parts.into_iter().map(|part| part.unit).collect();
    Ok(Done { pairs: pairs.len(), result: Figures { units, left_out, pairs }, reached, cut })
}

/// Measures a pair of periods.
fn pair(
    batch: &mut Batch,
    options: &Options,
    measure: &MeasureOfWork,
    parts: &[Divided],
    first_is_huge: Vec<bool>,
) -> Result<Pair> {
    let mut period = |is_first: bool| -> Result<f64> {
        interrupt::check()?;
        let pages = |first: bool| if first == is_first { Pages::Huge } else { Pages::Small };
        let copies = parts.iter().zip(&first_is_huge).flat_map(|(part, first)| {
            let pages = pages(*first);
            part.ranges.iter().map(move |range| (*range, pages))
        });
        batch.resize_each(&copies.collect::<Vec<_>>())?;
        let run = period_as_it_is(batch, options, measure)?;
        measure.metric.figure().of(&run).context("a period has no such figure")
    };
    let (first, second) = (period(true)?, period(false)?);
    Ok(Pair { first_is_huge, first, second })
}
