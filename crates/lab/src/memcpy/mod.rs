// SPDX-License-Identifier: Apache-2.0
//! The huge zero page trap. Memory that was never written reads as one and the same zero page,
//! again and again: a small one comes out of the L1 cache, a huge one does not fit there. So a
//! memcpy(3) whose source nobody has written runs slower with transparent huge pages than without,
//! which says nothing about memory that holds something.
//!
//! Huge pages are switched for each mapping, by madvise(2). What each source really is, is looked
//! up ([`source`]).

mod blocks;
mod counts;
mod outcome;
mod perf_bench;
pub mod source;

pub use outcome::outcome;

use crate::clock::thread_cpu_ns;
use crate::memory::Pages;
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use blocks::Blocks;
use counts::Misses;
use hugelift_core::addr::human_bytes;
use hugelift_os::machine::memory_left_here;
use perf_bench::PerfBench;
use source::Behind;
use std::time::Instant;

/// For `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memcpy",
    title: "the huge zero page trap: copies from memory that was never written",
    run: |quick, progress| run(&Options::usual(quick), progress),
};

/// One thing that is timed. A destination was written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// memcpy(3) to memory on such pages.
    Copy(Source, Pages),
    /// memset(3) of memory on such pages.
    Set(Pages),
    /// Reading alone, which tells from which cache the bytes come.
    Read(Source),
}

/// Where a copy comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Never written, on memory where such pages would be.
    Never(Pages),
    /// Written, on such pages.
    Written(Pages),
    /// Never written, read in with `use_zero_page` off: transparent huge pages full of zeros.
    Unshared,
}

impl Kind {
    /// The two sides of the trap: they differ in the zero page that is read, and in nothing else.
    pub const SMALL_ZERO: Kind = Kind::Copy(Source::Never(Pages::Small), Pages::Thp);
    /// As [`Kind::SMALL_ZERO`].
    pub const HUGE_ZERO: Kind = Kind::Copy(Source::Never(Pages::Thp), Pages::Thp);
    /// The copy that the literature sets against [`Kind::HUGE_ZERO`]: huge pages off for both blocks.
    pub const NEVER_OFF: Kind = Kind::Copy(Source::Never(Pages::Small), Pages::Small);
    /// A written source, huge pages off and on.
    pub const WRITTEN: [Kind; 2] = [
        Kind::Copy(Source::Written(Pages::Small), Pages::Small),
        Kind::Copy(Source::Written(Pages::Thp), Pages::Thp),
    ];
    /// memset(3), huge pages off and on.
    pub const SET: [Kind; 2] = [Kind::Set(Pages::Small), Kind::Set(Pages::Thp)];
    /// All.
    pub const ALL: [Kind; 11] = [
        Kind::NEVER_OFF,
        Kind::HUGE_ZERO,
        Kind::SMALL_ZERO,
        Kind::WRITTEN[0],
        Kind::WRITTEN[1],
        // What root can have beside it.
        Kind::Copy(Source::Unshared, Pages::Thp),
        Kind::SET[0],
        Kind::SET[1],
        Kind::Read(Source::Never(Pages::Small)),
        Kind::Read(Source::Never(Pages::Thp)),
        Kind::Read(Source::Written(Pages::Thp)),
    ];
}

/// What was measured of a [`Kind`] with blocks of one size.
#[derive(Clone, Debug)]
pub struct Timed {
    /// What.
    pub kind: Kind,
    /// CPU time of one copy in nanoseconds, by round.
    pub times: Vec<f64>,
    /// Time on the clock, likewise.
    pub wall: Vec<f64>,
    /// What the CPU missed meanwhile.
    pub misses: Option<Misses>,
}

/// All with blocks of one size.
#[derive(Clone, Debug)]
pub struct Size {
    /// Of a block.
    pub bytes: usize,
    /// In the order of [`Kind::ALL`].
    pub timed: Vec<Timed>,
}

impl Size {
    /// CPU times of a kind in nanoseconds, by round; `None` if there are none.
    pub fn times(&self, kind: Kind) -> Option<&[f64]> {
        self.of(kind).map(|timed| &timed.times[..])
    }

    /// Its times on the clock, likewise.
    pub fn wall(&self, kind: Kind) -> Option<&[f64]> {
        self.of(kind).map(|timed| &timed.wall[..])
    }

    fn of(&self, kind: Kind) -> Option<&Timed> {
        self.timed.iter().find(|timed| timed.kind == kind && !timed.times.is_empty())
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// By size of the blocks.
    pub sizes: Vec<Size>,
    /// What the sources were found to be.
    pub behind: Vec<(Source, Behind)>,
    /// perf's own benchmark.
    pub perf: Option<PerfBench>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

const MB: usize = 1 << 20;
/// The sizes of a block for `--quick`.
const QUICK: [usize; 5] = [MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB];
/// A sample copies this much at least, so that what is around it does not count.
const SAMPLE: usize = 32 * MB;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the blocks in bytes, ascending.
    pub sizes: Vec<usize>,
    /// How often each copy is timed.
    pub rounds: usize,
}

impl Options {
    /// The usual ones.
    pub fn usual(quick: bool) -> Options {
        if quick {
            Options { sizes: QUICK.to_vec(), rounds: 9 }
        } else {
            Options { sizes: (0..=10).map(|i| MB << i).collect(), rounds: 25 }
        }
    }
}

/// Measures, and says what came of it.
///
/// # Errors
/// No memory for blocks of the smallest size; /proc cannot be read.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    Ok(outcome(&measure(options, progress)?))
}

/// Measures, as far as `progress` lets it.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &Options, progress: &mut Progress) -> Result<Measured> {
    let mut measured = Measured::default();
    let sizes = fitting(&options.sizes, memory_left_here(), &mut measured.notes);
    let Some(largest) = sizes.last() else { return Ok(measured) };
    if !progress.go_on(0.0, "perf bench mem memcpy") {
        return Ok(measured);
    }
    match perf_bench::run((*largest).clamp(64 * MB, 256 * MB)) {
        Ok(found) => measured.perf = Some(found),
        Err(why) => measured.notes.push(format!("perf bench mem memcpy, to be put beside this: {why:#}")),
    }
    if !progress.go_on(0.1, "writing the blocks") {
        return Ok(measured);
    }
    let blocks = Blocks::make(*largest, &mut measured.notes)?;
    measured.behind = blocks.behind.clone();
    let counters = counts::open(&mut measured.notes);
    let all: usize = sizes.iter().map(|s| (*s).max(SAMPLE)).sum();
    let mut done = 0;
    for bytes in sizes {
        let kinds = Kind::ALL.into_iter().filter(|k| blocks.has(*k));
        let mut timed: Vec<Timed> =
            kinds.map(|kind| Timed { kind, times: vec![], wall: vec![], misses: None }).collect();
        for timed in &mut timed {
            // Also brings the caches into the state that every round finds.
            blocks.once(timed.kind, bytes);
            timed.misses = counters.as_ref().map(|c| c.around(bytes, || blocks.once(timed.kind, bytes)));
        }
        for round in 0..options.rounds {
            let share = (done + bytes.max(SAMPLE) * round / options.rounds) as f64 / all as f64;
            let what = format!("blocks of {}", human_bytes(bytes as u64));
            if !progress.go_on(0.1 + 0.9 * share, &what) {
                break;
            }
            fastrand::shuffle(&mut timed);
            for timed in &mut timed {
                let (cpu, wall) = time(&blocks, timed.kind, bytes);
                timed.times.push(cpu);
                timed.wall.push(wall);
            }
        }
        timed.sort_by_key(|t| Kind::ALL.iter().position(|k| *k == t.kind));
        measured.sizes.push(Size { bytes, timed });
        done += bytes.max(SAMPLE);
        if progress.is_over() {
            break;
        }
    }
    Ok(measured)
}

/// CPU time of one copy and time on the clock, in nanoseconds.
fn time(blocks: &Blocks, kind: Kind, bytes: usize) -> (f64, f64) {
    let times = SAMPLE.div_ceil(bytes);
    let (began, before) = (Instant::now(), thread_cpu_ns());
    for _ in 0..times {
        blocks.once(kind, bytes);
    }
    let (cpu, wall) = (thread_cpu_ns() - before, began.elapsed());
    (cpu as f64 / times as f64, wall.as_nanos() as f64 / times as f64)
}

/// Those sizes whose blocks take no more than half of the memory that is left.
fn fitting(sizes: &[usize], left: u64, notes: &mut Vec<String>) -> Vec<usize> {
    let fits = |bytes: &usize| (*bytes as u64).saturating_mul(blocks::WRITTEN) <= left / 2;
    let (fit, not): (Vec<usize>, Vec<usize>) = sizes.iter().partition(|bytes| fits(bytes));
    if let Some(first) = not.first() {
        notes.push(format!(
            "blocks of {} and more are left out: {} blocks are to take no more than half of the {} of memory left",
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
