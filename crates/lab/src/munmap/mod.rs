// SPDX-License-Identifier: Apache-2.0
//! `lab munmap`: mmap(2) and munmap(2) of 128 MB in a loop, by an increasing number of tasks.
//!
//! Without touching and on small pages this is the case `mmap1` of will-it-scale
//! (<https://github.com/antonblanchard/will-it-scale>): the same size, the same two calls, tasks pinned to
//! the CPUs in turn, counts read once a second.

mod at_work;
mod case;
mod cycle;
mod findings;
mod hot;
mod keys;
mod tasks;

pub use cycle::{Cycle, Touch};
pub use tasks::Kind;

use crate::cpus;
use crate::memory::{Mapping, Pages, pool_with, usual_hugetlb};
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use at_work::{AtWork, Places};
use case::{Case, Measured, Sample};
use cycle::BYTES;
use hugelift_linux::machine::memory_left_here;
use std::time::{Duration, Instant};
use tasks::Tasks;

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "munmap",
    title: "mapping and unmapping 128 MB, by one task and by many",
    run: |quick, progress| run(&Options { quick, ..Options::default() }, progress),
};

/// Seconds of warm-up, as in will-it-scale.
const WARM_UP: u32 = 5;

/// Length of a sample with `--quick`.
const QUICK: Duration = Duration::from_millis(100);

/// The same where all pages are touched: some cycles must end in each sample.
const QUICK_ALL: Duration = Duration::from_millis(250);

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shorter samples.
    pub quick: bool,
    /// The only number of tasks that is measured, and listed as will-it-scale does.
    pub tasks: Option<usize>,
    /// The number of samples of one second after the warm-up.
    pub samples: Option<u32>,
    /// Threads or processes; `None` for both.
    pub kind: Option<Kind>,
    /// The only kind of pages that is measured.
    pub pages: Option<Pages>,
    /// The only way of touching that is measured.
    pub touch: Option<Touch>,
}

impl Options {
    /// Returns whether a case is measured if the user asks for no number of tasks. `--quick` leaves out what
    /// no sentence rests on, except what the user asks for by name.
    fn measures(&self, case: &Case) -> bool {
        if !self.quick || case.is_stated() {
            return true;
        }
        let Cycle { pages, touch } = case.cycle;
        let most = if pages == Pages::Small && touch != Touch::All { 2 } else { 1 } * cpus::count();
        // Without a touch the kind of pages makes no difference: there are none.
        let touch_counts = touch != Touch::None || pages == Pages::Small || self.touch.is_some();
        // With all pages touched, threads are as fast as processes.
        let kind_counts = touch != Touch::All || case.kind == Kind::Processes || self.kind.is_some();
        [1, cpus::count(), most].contains(&case.tasks)
            && (touch_counts || self.pages.is_some())
            && (kind_counts || self.touch.is_some())
    }
}

/// The length and number of the samples.
#[derive(Clone, Copy, Debug)]
struct Pace {
    sample: Duration,
    warm_up: u32,
    samples: u32,
}

/// Runs the experiment.
///
/// # Errors
/// A task cannot be started, or cannot map its memory.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let mut notes = Vec::new();
    let alone = options.tasks.is_some() || options.samples.is_some();
    let (cases, pools) = choose(options, alone, &mut notes)?;
    let measured = measure_all(&cases, options, alone, &mut notes, progress)?;
    drop(pools);
    Ok(findings::outcome(&measured, notes, alone, progress.is_disturbed()))
}

/// Returns the cases that are asked for and possible, and the settings of the pools that they need. Adds a
/// note about what is left out.
fn choose(
    options: &Options,
    alone: bool,
    notes: &mut Vec<String>,
) -> Result<(Vec<Case>, Vec<Option<crate::setting::Setting>>)> {
    let kinds = match options.kind {
        Some(kind) => vec![kind],
        None if alone => vec![Kind::Processes],
        None => vec![Kind::Processes, Kind::Threads],
    };
    let touches = match options.touch {
        Some(touch) => vec![touch],
        None if alone => vec![Touch::None],
        None => Touch::ALL.to_vec(),
    };
    let pages = match options.pages {
        Some(pages) => vec![pages],
        None if alone => vec![Pages::Small],
        None => [Some(Pages::Small), Some(Pages::Thp), usual_hugetlb()].into_iter().flatten().collect(),
    };
    let counts = match options.tasks {
        Some(tasks) => vec![tasks.max(1)],
        None if alone => vec![1],
        None => task_counts(cpus::count()),
    };
    let mut cases = Vec::new();
    let mut held = Vec::new();
    for &pages in &pages {
        let most = counts.iter().copied().max().unwrap_or(1);
        match prepare(pages, most) {
            Ok(setting) => held.push(setting),
            Err(why) if options.pages.is_none() => {
                notes.push(format!("{} left out: {why:#}", pages.name()));
                continue;
            }
            Err(why) => return Err(why),
        }
        notes.extend(pages_note(pages));
        for &touch in &touches {
            for &kind in &kinds {
                let cycle = Cycle { pages, touch };
                let all = counts.iter().map(|&tasks| Case { kind, cycle, tasks });
                let fits = |case: &Case| touch != Touch::All || fits(case.tasks);
                cases.extend(all.filter(|case| fits(case) && (alone || options.measures(case))));
            }
        }
    }
    if touches.contains(&Touch::All) && counts.iter().any(|&tasks| !fits(tasks)) {
        notes.push("cases that would take more than half of the free memory were left out".into());
    }
    Ok((cases, held))
}

/// Measures the cases until `progress` stops it, those first on which a sentence rests.
fn measure_all(
    cases: &[Case],
    options: &Options,
    alone: bool,
    notes: &mut Vec<String>,
    progress: &mut Progress,
) -> Result<Vec<Measured>> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|&i| !cases[i].is_stated());
    let mut measured: Vec<(usize, Measured)> = Vec::new();
    for (done, &i) in order.iter().enumerate() {
        if !progress.go_on(done as f64 / cases.len() as f64, &cases[i].name()) {
            break;
        }
        let pace = pace(options, alone, cases[i].cycle.touch, cases.len() - done, progress.left());
        let one = match measure(cases[i], pace, progress) {
            // Another program may have taken pages of the pool.
            Err(why) if options.pages.is_none() && matches!(cases[i].cycle.pages, Pages::Hugetlb(_)) => {
                notes.push(format!("{} left out: {why:#}", cases[i].name()));
                continue;
            }
            one => one?,
        };
        if one.average().is_some() || alone {
            measured.push((i, one));
        }
    }
    measured.sort_by_key(|(i, _)| *i);
    Ok(measured.into_iter().map(|(_, one)| one).collect())
}

/// Returns the numbers of tasks: 1, 2, 3, 4, 6, 8, 12, 16... and `cpus`, up to twice `cpus`.
fn task_counts(cpus: usize) -> Vec<usize> {
    let powers = (0..usize::BITS - 2).map(|i| 1usize << i);
    let mut counts: Vec<usize> = powers.flat_map(|n| [n, n + n / 2]).chain([cpus, 2 * cpus]).collect();
    counts.retain(|&n| n >= 1 && n <= 2 * cpus);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Enlarges the pool for all tasks. Other kinds of pages need no preparation.
fn prepare(pages: Pages, tasks: usize) -> Result<Option<crate::setting::Setting>> {
    match pages {
        Pages::Hugetlb(page) => pool_with(page, (tasks * BYTES) as u64 / page.bytes().min(BYTES as u64)),
        Pages::Small | Pages::Thp => Ok(None),
    }
}

fn fits(tasks: usize) -> bool {
    (tasks * BYTES) as u64 <= memory_left_here() / 2
}

/// Returns a note if memory of this kind does not get its pages.
fn pages_note(pages: Pages) -> Option<String> {
    let was = cycle::without_thp(pages == Pages::Small);
    let share = Mapping::populated(pages, BYTES as u64).map_err(anyhow::Error::from);
    let share = share.and_then(|mapping| mapping.share_as_asked());
    cycle::without_thp(was);
    pages.note(&share)
}

/// Returns the pace of will-it-scale for a single case, or else one at which this case and all that are left
/// fit into the time, with some to spare for repetitions.
fn pace(options: &Options, alone: bool, touch: Touch, cases: usize, left: Duration) -> Pace {
    const SECOND: Duration = Duration::from_secs(1);
    if alone {
        let samples = options.samples.unwrap_or(if options.quick { 3 } else { 5 });
        return Pace { sample: SECOND, warm_up: WARM_UP + 1, samples };
    }
    // Starting and ending the tasks takes time too.
    let each = left.mul_f64(0.5) / u32::try_from(cases.max(1)).unwrap_or(u32::MAX);
    if each >= 3 * SECOND && !options.quick {
        let samples = (each.as_secs() as u32 - 1).clamp(2, 5);
        return Pace { sample: SECOND, warm_up: 1, samples };
    }
    let quick = if touch == Touch::All { QUICK_ALL } else { QUICK };
    let longest = if options.quick { quick } else { SECOND };
    Pace { sample: (each / 4).min(longest), warm_up: 1, samples: 3 }
}

/// What was seen of running tasks.
#[derive(Clone, Default)]
struct Seen {
    /// Cycles per second of the slowest task, the fastest one, and all.
    rates: Vec<(f64, f64, f64)>,
    /// CPU time per cycle in seconds, where the kernel reports it and a cycle has ended.
    cpu: Vec<f64>,
    /// The kernel functions in which tasks were asleep.
    places: Vec<String>,
    /// Those in which they were at work.
    at_work: Places,
}

fn measure(case: Case, pace: Pace, progress: &mut Progress) -> Result<Measured> {
    let tasks = Tasks::start(case.kind, case.cycle, case.tasks)?;
    let warm_up = watch(&tasks, pace.sample, pace.warm_up, progress, None)?;
    let mut sampler = AtWork::start(&tasks.processes());
    let mut complete: Option<Seen> = None;
    let (seen, disturbed) = progress.undisturbed(|progress| {
        let seen = watch(&tasks, pace.sample, pace.samples, progress, sampler.as_mut().ok())?;
        match &complete {
            // The repetition was cut short.
            Some(complete) if seen.rates.len() < complete.rates.len() => Ok(complete.clone()),
            _ => Ok(complete.insert(seen).clone()),
        }
    })?;
    let samples = |rates: Vec<(f64, f64, f64)>, measured| {
        rates.into_iter().map(move |(min, max, total)| Sample { measured, min, max, total })
    };
    Ok(Measured {
        case,
        samples: samples(warm_up.rates, false).chain(samples(seen.rates, true)).collect(),
        asleep: findings::most_common(&seen.places),
        at_work: sampler.map(|_| seen.at_work),
        cpu: seen.cpu,
        disturbed,
    })
}

/// Takes `count` samples of running tasks, or as many as `progress` allows. With `at_work` their addresses are sampled, too.
fn watch(
    tasks: &Tasks,
    sample: Duration,
    count: u32,
    progress: &mut Progress,
    mut at_work: Option<&mut AtWork>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    // What was sampled before.
    at_work.iter_mut().for_each(|at_work| at_work.read(&mut Places::default()));
    let (mut then, mut before, mut cpu) = (Instant::now(), tasks.cycles()?, tasks.cpu_time());
    for _ in 0..count {
        if !progress.pause(sample / 2) {
            break;
        }
        seen.places.extend(tasks.sleeping_in());
        at_work.iter_mut().for_each(|at_work| at_work.read(&mut seen.at_work));
        if !progress.pause(sample - sample / 2) {
            break;
        }
        at_work.iter_mut().for_each(|at_work| at_work.read(&mut seen.at_work));
        let (now, cycles, cpu_now) = (Instant::now(), tasks.cycles()?, tasks.cpu_time());
        let seconds = now.duration_since(then).as_secs_f64();
        let done = cycles.iter().zip(&before).map(|(now, before)| (now - before) as f64);
        let (min, max, total) = done
            .fold((f64::INFINITY, 0.0, 0.0), |(min, max, total): (f64, f64, f64), n| {
                (min.min(n), max.max(n), total + n)
            });
        seen.rates.push((min / seconds, max / seconds, total / seconds));
        let ran = cpu_now.zip(cpu).map(|(now, before)| now - before);
        seen.cpu.extend(ran.map(|ran| ran / total).filter(|each| each.is_finite() && *each > 0.0));
        (then, before, cpu) = (now, cycles, cpu_now);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_tasks() {
        assert_eq!(task_counts(1), [1, 2]);
        assert_eq!(task_counts(2), [1, 2, 3, 4]);
        assert_eq!(task_counts(10), [1, 2, 3, 4, 6, 8, 10, 12, 16, 20]);
        assert!(task_counts(1024).len() < 25);
    }

    #[test]
    fn every_pace_keeps_to_its_time() {
        for cases in [1, 12, 72, 150, 1000] {
            for left in [540, 54] {
                let left = Duration::from_secs(left);
                for (quick, touch) in [false, true].into_iter().flat_map(|q| Touch::ALL.map(|t| (q, t))) {
                    let options = Options { quick, ..Options::default() };
                    let pace = pace(&options, false, touch, cases, left);
                    assert!(
                        pace.sample * (pace.warm_up + pace.samples) * cases as u32 <= left,
                        "{cases} {left:?} {pace:?}"
                    );
                    assert!(pace.samples >= 2, "{pace:?}");
                }
            }
        }
    }

    #[test]
    fn a_quick_run_measures_what_the_sentences_rest_on() {
        let quick = Options { quick: true, ..Options::default() };
        let case = |kind, pages, touch, tasks| Case { kind, cycle: Cycle { pages, touch }, tasks };
        let cpus = cpus::count();
        for (kind, tasks) in [Kind::Processes, Kind::Threads].into_iter().flat_map(|k| [(k, 1), (k, cpus)]) {
            assert!(quick.measures(&case(kind, Pages::Small, Touch::None, tasks)));
            let others = case(kind, Pages::Thp, Touch::None, tasks);
            assert!(!quick.measures(&others));
            assert!(Options { touch: Some(Touch::None), ..quick.clone() }.measures(&others));
        }
        for pages in [Pages::Small, Pages::Thp] {
            assert!(quick.measures(&case(Kind::Processes, pages, Touch::All, 1)));
            assert!(!quick.measures(&case(Kind::Processes, pages, Touch::All, 2 * cpus)));
        }
        assert!(Options::default().measures(&case(Kind::Threads, Pages::Thp, Touch::None, 2 * cpus)));
    }
}
