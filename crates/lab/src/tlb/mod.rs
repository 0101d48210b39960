// SPDX-License-Identifier: Apache-2.0
//! `lab tlb`: what an access costs on each kind of pages, by the size of the working set.
//!
//! The accesses are loads or jumps. Each uses one cache line in 4 kB, in random order, and depends on the
//! one before. The same number of adjacent lines shows what the caches alone cost. The difference is the
//! cost of address translation.

mod chain;
mod code;
mod findings;
pub mod program;

use crate::clock::thread_cpu_ns;
use crate::memory::{Mapping, Pages, pool_with, usual_hugetlb};
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use crate::setting::Setting;
use anyhow::{Context as _, Result};
use chain::{Layout, STRIDE, cycle};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_os::machine::memory_left_here;
use hugelift_os::machine::pools;
use hugelift_os::machine::tree::Tree;
use program::Sizes;
use std::time::Duration;

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "tlb",
    title: "what a load and a jump cost, by pages and working set",
    run: |quick, progress| run(&Options { quick, ..Options::default() }, progress),
};

/// The smallest working set: below the reach of any first-level TLB.
const SMALLEST: u64 = 64 << 10;

/// The largest working set.
const LARGEST: u64 = 4 << 30;

/// The largest working set with `--quick`.
const LARGEST_QUICK: u64 = 1 << 30;

/// Page size of the larger hugetlb pool.
const GIANT: u64 = 1 << 30;

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fewer and shorter samples, up to 1 GB.
    pub quick: bool,
    /// The largest working set, in bytes.
    pub largest: Option<u64>,
    /// Sizes of the program that the results are for.
    pub sizes: Option<Sizes>,
}

/// How each place is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Load,
    Jump,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::Load => "load",
            Access::Jump => "jump",
        }
    }

    fn link(self, memory: &Mapping, layout: Layout, next: &[u32]) -> Result<()> {
        match self {
            Access::Load => chain::link(memory, layout, next),
            Access::Jump => code::link(memory, layout, next).context(
                "generated code cannot be made executable (mprotect): a security policy may forbid it, as \
                 SELinux does without execmem",
            )?,
        }
        Ok(())
    }

    /// # Safety
    /// The conditions of [`chain::walk`] and [`code::run`] hold.
    unsafe fn follow(self, from: *mut u8, count: u64) -> *mut u8 {
        match self {
            // SAFETY: the caller's promise.
            Access::Load => unsafe { chain::walk(from, count) },
            // SAFETY: the caller's promise.
            Access::Jump => unsafe { code::run(from, count) },
        }
    }
}

/// The memory that one curve is measured on.
struct Subject {
    /// `None` for the caches alone.
    pages: Option<Pages>,
    layout: Layout,
    memory: Mapping,
}

impl Subject {
    fn holds(&self, size: u64) -> bool {
        self.layout.bytes(places(size)) <= self.memory.len()
    }
}

/// Nanoseconds per access, by working set.
#[derive(Clone, PartialEq, Debug)]
struct Curve {
    access: Access,
    /// `None` for the caches alone.
    pages: Option<Pages>,
    points: Vec<Point>,
}

/// A summary of the samples of one working set.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    bytes: u64,
    median: f64,
    /// Lower and upper quartile.
    range: (f64, f64),
}

impl Curve {
    fn medians(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|p| (p.bytes as f64, p.median)).collect()
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Working sets per doubling of the size.
    by_octave: u32,
    rounds: usize,
    /// Samples per round.
    samples: usize,
    /// Duration of a sample.
    sample: Duration,
}

const QUICK: Pace = Pace { by_octave: 2, rounds: 3, samples: 2, sample: Duration::from_millis(3) };
const THOROUGH: Pace = Pace { by_octave: 4, rounds: 5, samples: 2, sample: Duration::from_millis(8) };

/// Runs the experiment.
///
/// # Errors
/// Not even small pages are available.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let mut notes = Vec::new();
    let pace = if options.quick { QUICK } else { THOROUGH };
    let kinds = kinds(options.quick);
    let wanted = options.largest.unwrap_or(if options.quick { LARGEST_QUICK } else { LARGEST });
    // The memory of all kinds exists at the same time, since they are measured in turn.
    let room = memory_left_here() / 2 / (kinds.len() as u64 + 1);
    let largest = wanted.min(room).max(SMALLEST);
    if largest < wanted {
        notes.push(format!(
            "working sets up to {} only: larger ones would take more than half of the free memory",
            human_bytes(largest)
        ));
    }
    let sizes = sizes(largest, pace.by_octave);
    let (subjects, held) = subjects(&kinds, largest, &mut notes, progress)?;
    let mut curves = Vec::new();
    let accesses = [Access::Load, Access::Jump];
    for (i, access) in accesses.into_iter().enumerate() {
        let done = i as f64 / accesses.len() as f64;
        let share = |step: f64| done + step / accesses.len() as f64;
        match measure(access, &subjects, &sizes, pace, progress, share) {
            Ok(measured) => curves.extend(measured),
            Err(why) => notes.push(format!("{}s left out: {why:#}", access.name())),
        }
        notes.extend(subjects.iter().filter_map(pages_note));
    }
    notes.sort();
    notes.dedup();
    drop(subjects);
    drop(held);
    Ok(findings::outcome(&curves, notes, options.sizes.as_ref()))
}

/// Returns the kinds of pages to measure. A pool of 1 GB pages is made only if there is time, since the
/// kernel has to move gigabytes for it.
fn kinds(quick: bool) -> Vec<Pages> {
    let mut kinds = vec![Pages::Small, Pages::Thp];
    kinds.extend(usual_hugetlb());
    let giant = pools::read(&Tree::default()).into_iter().find(|pool| pool.page_size == GIANT);
    let giant = giant.filter(|pool| !quick || pool.available > 0);
    kinds.extend(giant.and_then(|pool| PageSize::new(pool.page_size)).map(Pages::Hugetlb));
    kinds
}

/// Returns the working sets from [`SMALLEST`] to `largest`, `by_octave` per doubling, in whole 4 kB.
fn sizes(largest: u64, by_octave: u32) -> Vec<u64> {
    let size = |i: u32| {
        let exact = SMALLEST as f64 * 2f64.powf(f64::from(i) / f64::from(by_octave));
        (exact / STRIDE as f64).round() as u64 * STRIDE as u64
    };
    let mut sizes: Vec<u64> = (0..).map(size).take_while(|&size| size <= largest).collect();
    sizes.dedup();
    sizes
}

fn places(size: u64) -> usize {
    size as usize / STRIDE
}

/// Maps memory of each kind. Kinds that are not available go to `notes`. Also returns the pools that were
/// enlarged.
fn subjects(
    kinds: &[Pages],
    largest: u64,
    notes: &mut Vec<String>,
    progress: &mut Progress,
) -> Result<(Vec<Subject>, Vec<Setting>)> {
    let (mut subjects, mut held) = (Vec::new(), Vec::new());
    let mut get = |pages: Pages, bytes: u64| -> Result<Mapping> {
        if let Pages::Hugetlb(page) = pages {
            held.extend(pool_with(page, bytes.div_ceil(page.bytes()))?);
        }
        Mapping::populated(pages, bytes).with_context(|| format!("{} of memory", human_bytes(bytes)))
    };
    for &pages in kinds {
        if !progress.go_on(0.0, &format!("memory: {}", pages.name())) {
            break;
        }
        match get(pages, largest) {
            Ok(memory) => subjects.push(Subject { pages: Some(pages), layout: Layout::Spread, memory }),
            Err(why) if pages == Pages::Small => return Err(why),
            Err(why) => notes.push(format!("{} left out: {why:#}", pages.name())),
        }
    }
    // The packed layout gets huge pages if there are any, so that its few megabytes cost no translation.
    let bytes = Layout::Packed.bytes(places(largest)) as u64;
    let memory = get(Pages::Thp, bytes).or_else(|_| get(Pages::Small, bytes))?;
    subjects.push(Subject { pages: None, layout: Layout::Packed, memory });
    Ok((subjects, held))
}

/// Returns a note if the memory is not on the pages that it was mapped for.
fn pages_note(subject: &Subject) -> Option<String> {
    let pages = subject.pages?;
    match subject.memory.share_as_asked() {
        Ok(share) if share > 0.99 => None,
        Ok(share) => Some(format!(
            "smaps shows {:.0} % of the memory for {} on such pages: see hugelift doctor",
            100.0 * share,
            pages.name()
        )),
        Err(why) => {
            Some(format!("which pages the memory for {} has could not be read: {why:#}", pages.name()))
        }
    }
}

fn measure(
    access: Access,
    subjects: &[Subject],
    sizes: &[u64],
    pace: Pace,
    progress: &mut Progress,
    share: impl Fn(f64) -> f64,
) -> Result<Vec<Curve>> {
    let curve = |s: &Subject| Curve { access, pages: s.pages, points: Vec::new() };
    let mut curves: Vec<Curve> = subjects.iter().map(curve).collect();
    let mut random = fastrand::Rng::new();
    let reach = if access == Access::Jump { code::REACH } else { u64::MAX };
    let sizes: Vec<u64> = sizes.iter().copied().filter(|&size| size <= reach).collect();
    for (i, &size) in sizes.iter().enumerate() {
        let done = share(i as f64 / sizes.len() as f64);
        if !progress.go_on(done, &format!("{}s in {}", access.name(), human_bytes(size))) {
            break;
        }
        let next = cycle(places(size), &mut random);
        let mut order: Vec<usize> = (0..subjects.len()).filter(|&s| subjects[s].holds(size)).collect();
        for &s in &order {
            access.link(&subjects[s].memory, subjects[s].layout, &next)?;
        }
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
        for _ in 0..pace.rounds {
            random.shuffle(&mut order);
            for &s in &order {
                if !progress.is_over() {
                    samples[s].extend(sample(access, &subjects[s], &next, pace));
                }
            }
        }
        for (curve, samples) in curves.iter_mut().zip(&mut samples) {
            curve.points.extend(point(size, samples));
        }
    }
    curves.retain(|curve| !curve.points.is_empty());
    Ok(curves)
}

/// Measures the nanoseconds per access, after one walk through all places.
fn sample(access: Access, subject: &Subject, next: &[u32], pace: Pace) -> Vec<f64> {
    let start = subject.memory.start().wrapping_add(subject.layout.offset(0));
    let all = next.len() as u64;
    let began = thread_cpu_ns();
    // SAFETY: the caller has just linked the places of this memory.
    let mut place = unsafe { access.follow(start, all) };
    let each = (thread_cpu_ns() - began) as f64 / all as f64;
    let count = (pace.sample.as_nanos() as f64 / each.max(0.1)).max(1000.0) as u64;
    (0..pace.samples)
        .map(|_| {
            let began = thread_cpu_ns();
            // SAFETY: as above.
            place = unsafe { access.follow(place, count) };
            (thread_cpu_ns() - began) as f64 / count as f64
        })
        .collect()
}

fn point(bytes: u64, samples: &mut [f64]) -> Option<Point> {
    if samples.is_empty() {
        return None;
    }
    samples.sort_by(f64::total_cmp);
    let quartile = |i: usize| samples[(samples.len() - 1) * i / 4];
    let median = hugelift_measure::stats::median(samples).ok()?;
    Some(Point { bytes, median, range: (quartile(1).min(median), quartile(3).max(median)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Ended;

    #[test]
    fn working_sets() {
        let sizes = sizes(256 << 10, 2);
        assert_eq!(sizes[0], 64 << 10);
        assert_eq!(sizes.last(), Some(&(256 << 10)));
        assert_eq!(sizes.len(), 5);
        assert!(sizes.iter().all(|s| s.is_multiple_of(4096)));
    }

    #[test]
    fn a_small_run_has_all_curves() {
        let options = Options { quick: true, largest: Some(4 << 20), sizes: None };
        let mut progress = Progress::new(Duration::from_secs(60), |_, _| {});
        let outcome = run(&options, &mut progress).unwrap();
        assert_eq!(progress.ended(), Ended::Complete);
        assert_eq!(outcome.plots.len(), 2);
        for plot in &outcome.plots {
            // Small pages, transparent huge pages and the caches alone, at least.
            assert!(plot.series.len() >= 3, "{plot:?}");
            for series in &plot.series {
                assert_eq!(series.points.len(), 13, "{series:?}");
                assert!(series.points.iter().all(|p| p.y > 0.1 && p.y < 1e5), "{series:?}");
            }
        }
        assert_eq!(outcome.advice.len(), 2, "{:?}", outcome.advice);
    }

    #[test]
    fn points_of_samples() {
        let point = point(4096, &mut [3.0, 1.0, 2.0, 10.0, 4.0]).unwrap();
        assert_eq!((point.median, point.range), (3.0, (2.0, 4.0)));
        assert_eq!(super::point(1, &mut []), None);
    }
}
