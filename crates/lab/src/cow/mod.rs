// SPDX-License-Identifier: Apache-2.0
//! `lab cow`: fork(2), then writes by the parent while the child has its copy, as in a server that saves
//! its data from a child (redis, the checkpoint of a database).
//!
//! The literature plots the time of all writes together, where hugetlb wins if every page is written. A
//! client waits for a single write, so the latency of each write is measured here.

mod fork;
mod outcome;
mod redis;
mod write;

use crate::clock;
use crate::memory::{Pages, pool_with, usual_hugetlb};
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_os::machine::{base_page, memory_left_here, probe, thp_page};
use redis::Served;
use std::time::Instant;
use write::Forked;

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "cow",
    title: "fork(2), and writes while the child has its copy",
    run: |quick, progress| run(&Options::usual(quick), progress),
};

/// Which pages the parent writes to, each once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pattern {
    /// One base page of each huge page, at a random place.
    OnePerHuge,
    /// An eighth of all base pages, in random order.
    Random,
    /// All base pages, from the first to the last.
    Every,
}

impl Pattern {
    /// All patterns.
    const ALL: [Pattern; 3] = [Pattern::OnePerHuge, Pattern::Random, Pattern::Every];

    /// Returns how many base pages it writes to in a huge page of `base_pages` base pages, on average.
    fn written(self, base_pages: u64) -> u64 {
        match self {
            Pattern::OnePerHuge => 1,
            Pattern::Random => (base_pages / 8).max(1),
            Pattern::Every => base_pages,
        }
    }
}

/// One combination that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    /// Memory of the parent, in huge pages.
    pub huge_pages: u64,
    /// Kind of pages that the memory is on.
    pub pages: Pages,
    /// Pages that the parent writes to.
    pub pattern: Pattern,
}

impl Case {
    /// Returns the bytes that it takes, with the copies.
    fn bytes(self, huge: PageSize) -> u64 {
        let base = huge.bytes() / base_page().bytes();
        let copied = match self.pages {
            // Kernels before 5.8 copy a transparent huge page as a whole too.
            Pages::Hugetlb(_) | Pages::Thp => huge.bytes(),
            Pages::Small => self.pattern.written(base) * base_page().bytes(),
        };
        self.huge_pages.saturating_mul(huge.bytes() + copied)
    }
}

/// The measurements.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// The forks of each case.
    pub cases: Vec<(Case, Vec<Forked>)>,
    /// redis while it saves its data.
    pub served: Vec<Served>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// Subjects that there is a note about already.
    noted: Vec<&'static str>,
}

impl Measured {
    /// Adds a note unless there is one about this subject: the same is true of larger cases.
    fn note(&mut self, about: &'static str, text: String) {
        if !self.noted.contains(&about) {
            self.noted.push(about);
            self.notes.push(text);
        }
    }
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the memory in huge pages, in the order in which they are measured.
    pub huge_pages: Vec<u64>,
    /// How often each case is repeated at least. Small cases are repeated more often.
    pub rounds: u64,
    /// How redis is measured; `None` if it is not.
    pub redis: Option<redis::Options>,
}

/// Cases with more huge pages than this take long enough to be run once.
const LARGE: u64 = 512;

impl Options {
    /// Returns the default options.
    pub fn usual(quick: bool) -> Options {
        if quick {
            Options { huge_pages: vec![64, 256, 1], rounds: 2, redis: Some(redis::Options::QUICK) }
        } else {
            let huge_pages = (0..=12).map(|i| 1 << i).collect();
            Options { huge_pages, rounds: 3, redis: Some(redis::Options::THOROUGH) }
        }
    }

    fn rounds(&self, huge_pages: u64) -> u64 {
        if huge_pages > LARGE { 1 } else { (64 / huge_pages.max(1)).clamp(self.rounds, 16) }
    }
}

/// Runs the experiment.
///
/// # Errors
/// fork(2) fails; /proc cannot be read.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    Ok(outcome::outcome(&measure(options, progress)?))
}

/// Measures until `progress` stops it.
fn measure(options: &Options, progress: &mut Progress) -> Result<Measured> {
    let mut measured = Measured::default();
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let hugetlb = usual_hugetlb();
    if hugetlb.is_none() {
        measured.note("hugetlb", format!("nothing on hugetlb pages: the kernel has no pool of {huge} pages"));
    }
    let memory = if options.redis.is_some() { 0.6 } else { 1.0 };
    // Leaves time for redis on a busy machine too.
    let end = Instant::now() + progress.left().mul_f64(memory);
    let all: u64 = options.huge_pages.iter().sum();
    let mut done = 0;
    for &huge_pages in &options.huge_pages {
        let share = |part: f64| memory * (done as f64 + part * huge_pages as f64) / all.max(1) as f64;
        // hugetlb is measured last: while the pool is enlarged, others have less memory.
        for (part, kinds) in [(0.0, vec![Pages::Small, Pages::Thp]), (0.7, hugetlb.into_iter().collect())] {
            let kinds = &kinds;
            let cases: Vec<Case> = Pattern::ALL
                .into_iter()
                .flat_map(|pattern| kinds.iter().map(move |&pages| Case { huge_pages, pages, pattern }))
                .collect();
            let of = human_bytes(huge_pages * huge.bytes());
            if progress.go_on(share(part), &format!("fork and writes, {of}")) {
                measure_cases(&cases, options.rounds(huge_pages), end, progress, &mut measured);
            }
        }
        done += huge_pages;
    }
    let kind = |pages: Pages| [Pages::Small, Pages::Thp].iter().position(|p| *p == pages).unwrap_or(2);
    measured.cases.sort_by_key(|(case, _)| (case.huge_pages, case.pattern, kind(case.pages)));
    if let Some(options) = options.redis {
        match redis::measure(options, memory, progress, &mut measured.notes) {
            Ok(served) => measured.served = served,
            Err(why) => measured.notes.push(format!("redis: {why:#}")),
        }
    }
    Ok(measured)
}

/// Returns the cases that this machine can run. A note names the others.
fn runnable(cases: &[Case], huge: PageSize, measured: &mut Measured) -> Vec<Case> {
    let thp_off = probe(None).thp_off;
    // Two thirds: the pool takes its pages from the same memory.
    let left = memory_left_here() / 3 * 2;
    let mut runnable = Vec::new();
    for &case in cases {
        if case.pages == Pages::Thp && thp_off.is_some() {
            measured.note(
                "thp",
                "nothing on transparent huge pages: they are off (hugelift doctor says why)".into(),
            );
        } else if case.bytes(huge) > left {
            let (pages, needs) = (case.huge_pages, human_bytes(case.bytes(huge)));
            let has = human_bytes(left);
            measured.note(
                "memory",
                format!(
                    "cases of {pages} huge pages and more are left out: they take {needs} with the copies, more than \
                     {has}, two thirds of the free memory"
                ),
            );
        } else {
            runnable.push(case);
        }
    }
    runnable
}

/// Runs these cases in turn, in random order.
fn measure_cases(
    cases: &[Case],
    rounds: u64,
    end: Instant,
    progress: &mut Progress,
    measured: &mut Measured,
) {
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let mut runnable = runnable(cases, huge, measured);
    let in_pool = |case: &Case| matches!(case.pages, Pages::Hugetlb(_));
    let needed = runnable.iter().filter(|c| in_pool(c)).map(|c| 2 * c.huge_pages).max();
    // Pages for the parent and all copies. If another process takes pages of the pool meanwhile, the kernel
    // takes those of the child, which never reads them: there is no SIGBUS.
    let _pool = match needed.map(|pages| pool_with(huge, pages)).transpose() {
        Ok(pool) => pool,
        Err(why) => {
            measured.note("hugetlb", format!("{why:#}"));
            runnable.retain(|case| !in_pool(case));
            None
        }
    };
    let clock = clock::cost_ns();
    let mut results: Vec<(Case, Vec<Forked>)> = runnable.into_iter().map(|case| (case, vec![])).collect();
    let mut stopped = false;
    for _ in 0..rounds {
        fastrand::shuffle(&mut results);
        for (case, forked) in &mut results {
            if stopped {
                break;
            }
            match write::once(*case, huge, clock, &mut || progress.is_over() || Instant::now() >= end) {
                Ok(Some(run)) => forked.push(run),
                Ok(None) => stopped = true,
                Err(why) => {
                    let (count, pages) = (case.huge_pages, case.pages.name());
                    measured.note("failed", format!("{count} huge pages on {pages}: {why:#}"));
                }
            }
        }
        if stopped {
            break;
        }
    }
    if stopped && !progress.is_over() {
        measured.note("time", "not all forks were measured: this machine is too busy or too slow".into());
    }
    results.retain(|(_, forked)| !forked.is_empty());
    results.sort_by_key(|(case, _)| cases.iter().position(|c| c == case));
    measured.cases.extend(results);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_included() {
        let huge = PageSize::MB2;
        let bytes = |pages, pattern| Case { huge_pages: 10, pages, pattern }.bytes(huge);
        assert_eq!(bytes(Pages::Hugetlb(huge), Pattern::OnePerHuge), 40 << 20);
        assert_eq!(bytes(Pages::Thp, Pattern::OnePerHuge), 40 << 20);
        assert_eq!(bytes(Pages::Small, Pattern::Every), 40 << 20);
        assert_eq!(bytes(Pages::Small, Pattern::OnePerHuge), (20 << 20) + 10 * base_page().bytes());
    }

    #[test]
    fn a_note_about_one_thing_is_made_once() {
        let mut measured = Measured::default();
        measured.note("memory", "first".into());
        measured.note("memory", "second".into());
        measured.note("thp", "third".into());
        assert_eq!(measured.notes, ["first", "third"]);
    }
}
