// SPDX-License-Identifier: Apache-2.0
//! `lab memcpy`: the huge zero page trap. Memory that was never written is mapped to one zero page, again
//! and again. A small zero page is read from the L1 cache; a huge one does not fit there. So a memcpy(3)
//! from a source that was never written is slower with transparent huge pages than without, which says
//! nothing about memory with content.
//!
//! Huge pages are switched on and off per mapping, by madvise(2). `source` looks up what each source
//! really is.

mod blocks;
mod counted;
mod counts;
mod group;
mod kind;
mod measured;
mod outcome;
mod perf_bench;
mod source;
mod trap;

use crate::clock::thread_cpu_ns;
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::read_machine::read_machine;
use crate::results::Outcome;
use anyhow::Result;
use blocks::Blocks;
use hugelift_core::addr::human_bytes;
use hugelift_linux::machine::memory_left_here;
use hugelift_linux::machine::tree::Tree;
use kind::Kind;
use measured::{Measured, Size, Timed};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memcpy",
    title: "the huge zero page trap: copies from memory that was never written",
    run: |quick, progress| run(&Options::usual(quick), progress),
};

const MB: usize = 1 << 20;
/// Sizes of a block with `--quick`.
const QUICK: [usize; 5] = [MB / 4, MB, 4 * MB, 16 * MB, 64 * MB];
/// The least that a sample copies, so that the time around it does not matter.
const SAMPLE: usize = 32 * MB;
/// The least CPU time of a step, so that `/proc/stat`, which counts in ticks, shows who disturbed it.
const STEP: Duration = Duration::from_millis(150);
/// The most steps for one size. Each may be repeated, and all sizes must fit into the time.
const STEPS: usize = 3;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the blocks in bytes, ascending.
    pub sizes: Vec<usize>,
    /// How often each copy is timed.
    pub rounds: usize,
}

impl Options {
    /// Returns the default options.
    pub fn usual(quick: bool) -> Options {
        if quick {
            Options { sizes: QUICK.to_vec(), rounds: 15 }
        } else {
            Options { sizes: (0..=12).map(|i| (MB / 4) << i).collect(), rounds: 25 }
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// There is no memory for the blocks, or /proc cannot be read.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let measured = measure(options, progress)?;
    Ok(outcome::outcome(&measured, &read_machine(&Tree::default()), progress.is_disturbed()))
}

/// Measures until `progress` stops it.
fn measure(options: &Options, progress: &mut Progress) -> Result<Measured> {
    let mut measured = Measured::default();
    let sizes = fitting(&options.sizes, memory_left_here(), &mut measured.notes);
    let Some(largest) = sizes.last() else { return Ok(measured) };
    if !progress.go_on(0.0, "perf bench mem memcpy") {
        return Ok(measured);
    }
    match progress.undisturbed(|_| perf_bench::run((*largest / 4).clamp(64 * MB, 256 * MB))) {
        Ok((found, _)) => measured.perf = Some(found),
        Err(why) => measured.notes.push(format!("perf bench mem memcpy, for comparison: {why:#}")),
    }
    if !progress.go_on(0.1, "writing the blocks") {
        return Ok(measured);
    }
    let blocks = Blocks::make(*largest, &mut measured.notes)?;
    measured.found = blocks.found.clone();
    let counters = counts::open(&mut measured.notes);
    let all: usize = sizes.iter().map(|s| (*s).max(SAMPLE)).sum();
    let mut done = 0;
    for bytes in sizes {
        let kinds = Kind::ALL.into_iter().filter(|k| blocks.has(*k));
        let mut timed: Vec<Timed> =
            kinds.map(|kind| Timed { kind, times: vec![], wall: vec![], counts: None }).collect();
        for timed in &mut timed {
            // This run also brings the caches into the state that every round finds.
            blocks.once(timed.kind, bytes);
            let once = || blocks.once(timed.kind, bytes);
            timed.counts = counters.as_ref().map(|c| c.around(bytes, SAMPLE.div_ceil(bytes), once));
        }
        let (mut rounds, mut disturbed) = (0, false);
        while rounds < options.rounds {
            let share = (done + bytes.max(SAMPLE) * rounds / options.rounds) as f64 / all as f64;
            let what = format!("blocks of {}", human_bytes(bytes as u64));
            if !progress.go_on(0.1 + 0.9 * share, &what) {
                break;
            }
            let kinds: Vec<Kind> = timed.iter().map(|timed| timed.kind).collect();
            let left = options.rounds - rounds;
            let least = options.rounds.div_ceil(STEPS).min(left);
            let (step, was) =
                progress.undisturbed(|progress| Ok(step(&blocks, &kinds, bytes, least..=left, progress)))?;
            disturbed |= was;
            rounds += step.len();
            for round in step {
                for (timed, (cpu, wall)) in timed.iter_mut().zip(round) {
                    timed.times.push(cpu);
                    timed.wall.push(wall);
                }
            }
        }
        measured.sizes.push(Size { bytes, timed, disturbed });
        done += bytes.max(SAMPLE);
        if progress.is_over() {
            break;
        }
    }
    Ok(measured)
}

/// Does rounds for [`STEP`], at least and at most as many as `rounds` says, until `progress` stops it. Returns
/// the CPU time and the wall time of each kind, by round.
fn step(
    blocks: &Blocks,
    kinds: &[Kind],
    bytes: usize,
    rounds: RangeInclusive<usize>,
    progress: &mut Progress,
) -> Vec<Vec<(f64, f64)>> {
    let began = thread_cpu_ns();
    let mut done = Vec::new();
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    while done.len() < *rounds.end() && (done.is_empty() || !progress.is_over()) {
        if done.len() >= *rounds.start() && u128::from(thread_cpu_ns() - began) >= STEP.as_nanos() {
            break;
        }
        fastrand::shuffle(&mut order);
        let mut round = vec![(0.0, 0.0); kinds.len()];
        for &i in &order {
            round[i] = time(blocks, kinds[i], bytes);
        }
        done.push(round);
    }
    done
}

/// Measures the CPU time and the wall time of one operation, in nanoseconds.
fn time(blocks: &Blocks, kind: Kind, bytes: usize) -> (f64, f64) {
    let times = SAMPLE.div_ceil(bytes);
    let (began, before) = (Instant::now(), thread_cpu_ns());
    for _ in 0..times {
        blocks.once(kind, bytes);
    }
    let (cpu, wall) = (thread_cpu_ns() - before, began.elapsed());
    (cpu as f64 / times as f64, wall.as_nanos() as f64 / times as f64)
}

/// Returns the sizes whose blocks take no more than half of the free memory.
fn fitting(sizes: &[usize], left: u64, notes: &mut Vec<String>) -> Vec<usize> {
    let fits = |bytes: &usize| (*bytes as u64).saturating_mul(blocks::WRITTEN) <= left / 2;
    let (fit, not): (Vec<usize>, Vec<usize>) = sizes.iter().partition(|bytes| fits(bytes));
    if let Some(first) = not.first() {
        notes.push(format!(
            "blocks of {} and more are left out: {} blocks would take more than half of the {} of free memory",
            human_bytes(*first as u64),
            blocks::WRITTEN,
            human_bytes(left),
        ));
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_half_of_the_memory_at_most() {
        let mut notes = Vec::new();
        assert_eq!(fitting(&[MB, 4 * MB], 1 << 30, &mut notes), [MB, 4 * MB]);
        assert!(notes.is_empty());
        assert_eq!(fitting(&[MB, 4 * MB], 20 << 20, &mut notes), [MB]);
        assert!(notes[0].starts_with("blocks of 4 MB and more are left out"), "{notes:?}");
    }
}
