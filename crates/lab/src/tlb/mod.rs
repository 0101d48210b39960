// SPDX-License-Identifier: Apache-2.0
//! `lab tlb`: what an access costs on each kind of pages, by the size of the working set.
//!
//! The accesses are loads or jumps. Each uses one cache line in 4 kB, in random order, and depends on the
//! one before. The same number of adjacent lines shows what the caches alone cost. The difference is the
//! cost of address translation.
//!
//! All working sets are measured in several sweeps, in random order, and each sweep gives its own curve.
//! Within a sweep the kinds of pages take turns at each working set, so that what drifts hits all of them.

mod access;
mod chain;
mod code;
mod curve;
mod findings;
mod naming;
pub mod program;
#[cfg(test)]
mod simulated;
mod summary;

use crate::clock::thread_cpu_ns;
use crate::memory::{AS_ASKED, Mapping, Pages, pool_with, usual_hugetlb};
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::read_machine::read_machine;
use crate::results::Outcome;
use crate::setting::Setting;
use access::Access;
use anyhow::{Context as _, Result};
use chain::{Layout, STRIDE, cycle};
use curve::Curve;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_linux::machine::memory_left_here;
use hugelift_linux::machine::pools;
use hugelift_linux::machine::tree::Tree;
use program::Sizes;
use std::time::Duration;
use summary::Points;

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
const LARGEST_QUICK: u64 = 512 << 20;

/// Page size of the larger hugetlb pool.
const GIANT: u64 = 1 << 30;

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fewer and shorter samples, up to 512 MB.
    pub quick: bool,
    /// The largest working set, in bytes.
    pub largest: Option<u64>,
    /// Sizes of the program that the results are for.
    pub sizes: Option<Sizes>,
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

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Working sets per doubling of the size.
    by_octave: u32,
    /// How often everything is measured.
    sweeps: usize,
    /// The parts of a sweep that are repeated if other programs disturb them.
    steps: usize,
    /// Samples of a working set in a sweep.
    samples: usize,
    /// Duration of a sample.
    sample: Duration,
}

/// A sample is shorter than a tick of most kernels and than a time slice, so that some samples of a busy
/// machine are undisturbed.
const QUICK: Pace =
    Pace { by_octave: 2, sweeps: 3, steps: 2, samples: 5, sample: Duration::from_micros(1000) };
const THOROUGH: Pace =
    Pace { by_octave: 4, sweeps: 5, steps: 6, samples: 8, sample: Duration::from_micros(1500) };

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
    let curves = curves(&subjects, &sizes, pace, progress, &mut notes)?;
    notes.extend(subjects.iter().filter_map(|s| s.pages?.note(&s.memory.share_as_asked())));
    drop(subjects);
    drop(held);
    let quiet = findings::Quiet {
        disturbed: progress.is_disturbed(),
        load: progress.disturbance().map_or(0.0, |disturbance| disturbance.load),
    };
    let machine = read_machine(&Tree::default());
    Ok(findings::outcome(&curves, notes, options.sizes.as_ref(), &machine, quiet))
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

/// Measures all sweeps. An access that is not possible goes to `notes`.
fn curves(
    subjects: &[Subject],
    sizes: &[u64],
    pace: Pace,
    progress: &mut Progress,
    notes: &mut Vec<String>,
) -> Result<Vec<Curve>> {
    let mut possible = vec![Access::Load, Access::Jump];
    let curve = |access: Access, s: &Subject| Curve {
        access,
        pages: s.pages,
        as_asked: s.memory.share_as_asked().is_ok_and(|share| share > AS_ASKED),
        sweeps: Vec::new(),
    };
    let mut curves: Vec<Curve> =
        possible.iter().flat_map(|&access| subjects.iter().map(move |s| curve(access, s))).collect();
    let mut random = fastrand::Rng::new();
    for sweep in 0..pace.sweeps {
        let all = (pace.sweeps * possible.len()) as f64;
        for (i, access) in possible.clone().into_iter().enumerate() {
            let done = (sweep * possible.len() + i) as f64 / all;
            let share = |part: f64| done + part / all;
            let reach = if access == Access::Jump { code::REACH } else { u64::MAX };
            let mut sizes: Vec<u64> = sizes.iter().copied().filter(|&size| size <= reach).collect();
            random.shuffle(&mut sizes);
            match one_sweep(access, subjects, &sizes, pace, progress, &mut random, share) {
                Ok(points) => {
                    let curves = curves.iter_mut().filter(|curve| curve.access == access);
                    for (curve, points) in curves.zip(points) {
                        curve.sweeps.push(points);
                    }
                }
                Err(why) if access == Access::Load => return Err(why),
                Err(why) => {
                    notes.push(format!("{}s left out: {why:#}", access.name()));
                    possible.retain(|&other| other != access);
                }
            }
        }
    }
    for curve in &mut curves {
        summary::keep_complete(&mut curve.sweeps);
    }
    curves.retain(|curve| !curve.sweeps.is_empty());
    Ok(curves)
}

/// Measures all `sizes` once, and returns a curve for each subject.
fn one_sweep(
    access: Access,
    subjects: &[Subject],
    sizes: &[u64],
    pace: Pace,
    progress: &mut Progress,
    random: &mut fastrand::Rng,
    share: impl Fn(f64) -> f64,
) -> Result<Vec<Points>> {
    // The sweep before may have left code, which is not writable.
    for subject in subjects {
        subject.memory.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    }
    let mut curves: Vec<Points> = vec![Vec::new(); subjects.len()];
    let length = sizes.len().div_ceil(pace.steps).max(1);
    for (i, part) in sizes.chunks(length).enumerate() {
        let (points, _) = progress.undisturbed(|progress| {
            let mut points: Vec<Points> = vec![Vec::new(); subjects.len()];
            for (j, &size) in part.iter().enumerate() {
                let done = share((i * length + j) as f64 / sizes.len() as f64);
                if !progress.go_on(done, &format!("{}s in {}", access.name(), human_bytes(size))) {
                    break;
                }
                let next = cycle(places(size), random);
                let mut order: Vec<usize> =
                    (0..subjects.len()).filter(|&s| subjects[s].holds(size)).collect();
                random.shuffle(&mut order);
                let mut row = Vec::new();
                for s in order {
                    // On a busy machine one large working set takes seconds.
                    if progress.is_over() {
                        return Ok(points);
                    }
                    access.link(&subjects[s].memory, subjects[s].layout, &next)?;
                    row.push((s, fastest(access, &subjects[s], &next, pace)));
                }
                for (s, each) in row {
                    points[s].push((size as f64, each));
                }
            }
            Ok(points)
        })?;
        for (curve, points) in curves.iter_mut().zip(points) {
            curve.extend(points);
        }
    }
    for curve in &mut curves {
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok(curves)
}

/// Measures the nanoseconds per access in the fastest of several samples, after one walk through all
/// places. Another program only ever adds time, by what it evicts from the TLBs and caches and by the memory
/// bandwidth that it takes. So the fastest sample is the least disturbed one, and a median would be that of
/// the other program.
fn fastest(access: Access, subject: &Subject, next: &[u32], pace: Pace) -> f64 {
    let start = subject.memory.start().wrapping_add(subject.layout.offset(0));
    let all = next.len() as u64;
    let began = thread_cpu_ns();
    // SAFETY: the caller has just linked the places of this memory.
    let mut place = unsafe { access.follow(start, all) };
    let each = (thread_cpu_ns() - began) as f64 / all as f64;
    let count = (pace.sample.as_nanos() as f64 / each.max(0.1)).max(1000.0) as u64;
    let samples = (0..pace.samples).map(|_| {
        let began = thread_cpu_ns();
        // SAFETY: as above.
        place = unsafe { access.follow(place, count) };
        (thread_cpu_ns() - began) as f64 / count as f64
    });
    samples.fold(f64::INFINITY, f64::min)
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
        let _alone = crate::alone();
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
                assert!(series.points.iter().all(|p| p.range.is_some_and(|(low, high)| low <= high)));
            }
        }
        assert_eq!(outcome.advice.len(), 2, "{:?}", outcome.advice);
        // Two accesses in three sweeps of two steps.
        assert_eq!(progress.disturbance().map(|d| d.steps), Some(12));
    }
}
