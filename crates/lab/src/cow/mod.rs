// SPDX-License-Identifier: Apache-2.0
//! `lab cow`: fork(2), then writes by the parent while the child has its copy, as in a server that saves
//! its data from a child (redis, the checkpoint of a database).
//!
//! The literature plots the time of all writes together, where hugetlb wins if every page is written. A
//! client waits for a single write, so the latency of each write is measured here. A batch program is
//! judged by its whole time, so whole processes are measured too (`whole`).
//!
//! All kinds of pages take part in each round, in an order drawn anew, so that rounds are pairs for
//! `hugelift_measure::stats`.

mod case;
mod fork;
mod measured;
mod options;
mod outcome;
mod processes;
mod ratios;
mod redis;
mod room;
mod whole;
mod write;

use crate::clock;
use crate::memory::{Pages, usual_hugetlb};
use crate::perform::Experiment;
use crate::progress::Progress;
use crate::results::Outcome;
use anyhow::Result;
use case::{Case, Pattern};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_linux::machine::{memory_left_here, thp_page};
use measured::Measured;
pub use options::Options;
use room::{pool_for, runnable};
use std::time::Instant;
use write::Forked;

/// The experiment, for `hugelift lab all`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "cow",
    title: "fork(2), and writes while the child has its copy",
    run: |quick, progress| run(&Options::usual(quick), progress),
};

/// The huge pages that the forks of a step have together at least. A step of fewer would be too short to
/// see whether it was disturbed.
const STEP: u64 = 64;

/// Runs the experiment.
///
/// # Errors
/// fork(2) fails; /proc cannot be read.
pub fn run(options: &Options, progress: &mut Progress) -> Result<Outcome> {
    let measured = measure(options, progress)?;
    Ok(outcome::outcome(&measured, progress.is_disturbed()))
}

/// Measures until `progress` stops it.
fn measure(options: &Options, progress: &mut Progress) -> Result<Measured> {
    let mut measured = Measured::default();
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let hugetlb = usual_hugetlb();
    if hugetlb.is_none() {
        measured.note("hugetlb", format!("nothing on hugetlb pages: the kernel has no pool of {huge} pages"));
    }
    let (forks, whole) = options.shares();
    // Leaves time for the rest on a busy machine too.
    let end = Instant::now() + progress.left().mul_f64(forks);
    let whole_end = end + progress.left().mul_f64(whole);
    let all: u64 = options.huge_pages.iter().sum();
    let mut done = 0;
    for &huge_pages in &options.huge_pages {
        let share = |part: f64| forks * (done as f64 + part * huge_pages as f64) / all.max(1) as f64;
        for (part, kinds) in turns(huge_pages, hugetlb, huge) {
            let of = human_bytes(huge_pages * huge.bytes());
            if progress.go_on(share(part), &format!("fork and writes, {of}")) {
                let scope = Scope { huge_pages, kinds, rounds: options.rounds(huge_pages), end };
                measure_cases(&scope, progress, &mut measured)?;
            }
        }
        done += huge_pages;
    }
    let kind = |pages: Pages| [Pages::Small, Pages::Thp].iter().position(|p| *p == pages).unwrap_or(2);
    measured.cases.sort_by_key(|(case, _)| (case.huge_pages, case.pattern, kind(case.pages)));
    processes::measure(options, hugetlb, (forks, whole_end), progress, &mut measured)?;
    if let Some(options) = options.redis {
        match redis::measure(options, forks + whole, progress, &mut measured.notes) {
            Ok(served) => measured.served = served,
            Err(why) => measured.notes.push(format!("redis: {why:#}")),
        }
    }
    Ok(measured)
}

/// Returns the kinds of pages that are measured in turn, each with the share of the size that is done
/// before. They are measured together unless the pool would then take much of the memory: in that case
/// hugetlb comes last.
fn turns(huge_pages: u64, hugetlb: Option<Pages>, huge: PageSize) -> Vec<(f64, Vec<Pages>)> {
    let others = [Pages::Small, Pages::Thp];
    let pool = huge_pages.saturating_mul(2 * huge.bytes());
    if pool <= memory_left_here() / 4 {
        vec![(0.0, others.into_iter().chain(hugetlb).collect())]
    } else {
        vec![(0.0, others.to_vec()), (0.7, hugetlb.into_iter().collect())]
    }
}

/// What is measured, and how much of it.
struct Scope {
    /// The memory of the process in huge pages.
    huge_pages: u64,
    /// The kinds of pages.
    kinds: Vec<Pages>,
    /// The rounds, if the time suffices.
    rounds: u64,
    /// When the measurement stops.
    end: Instant,
}

/// Measures all patterns of one size.
fn measure_cases(scope: &Scope, progress: &mut Progress, measured: &mut Measured) -> Result<()> {
    let &Scope { huge_pages, ref kinds, rounds, end } = scope;
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let all = |pattern: Pattern| kinds.iter().map(move |&pages| Case { huge_pages, pages, pattern });
    let cases: Vec<Case> = Pattern::ALL.into_iter().flat_map(all).collect();
    let mut cases = runnable(&cases, huge, measured);
    let mut pooled: Vec<Pages> = cases.iter().map(|case| case.pages).collect();
    let _pool = pool_for(&mut pooled, huge_pages, huge, measured);
    cases.retain(|case| pooled.contains(&case.pages));
    let clock = clock::cost_ns();
    let in_step = STEP.div_ceil(huge_pages.max(1)).min(rounds);
    let mut stopped = false;
    for pattern in Pattern::ALL {
        let mut cases: Vec<Case> = cases.iter().copied().filter(|case| case.pattern == pattern).collect();
        let mut results: Vec<(Case, Vec<Forked>)> = cases.iter().map(|case| (*case, vec![])).collect();
        let mut done = 0;
        while done < rounds && !stopped && !cases.is_empty() {
            let count = in_step.min(rounds - done);
            let (step, _) = progress.undisturbed(|progress| {
                let mut stop = || progress.is_over() || Instant::now() >= end;
                Ok(forks(&mut cases, count, huge, clock, &mut stop, measured))
            })?;
            stopped = (step.len() as u64) < count;
            done += step.len() as u64;
            for (case, forked) in step.into_iter().flatten() {
                results.iter_mut().filter(|(c, _)| *c == case).for_each(|(_, all)| all.push(forked.clone()));
            }
        }
        results.retain(|(_, forked)| !forked.is_empty());
        measured.cases.extend(results);
    }
    if stopped && !progress.is_over() {
        measured.note("time", "not all forks were measured: this machine is too busy or too slow".into());
    }
    Ok(())
}

/// Runs `rounds` rounds of these cases, each in an order drawn anew. Returns the rounds; fewer if `stop`
/// returns true. A case that fails is removed.
fn forks(
    cases: &mut Vec<Case>,
    rounds: u64,
    huge: PageSize,
    clock: u32,
    stop: &mut dyn FnMut() -> bool,
    measured: &mut Measured,
) -> Vec<Vec<(Case, Forked)>> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        fastrand::shuffle(cases);
        let mut round = Vec::new();
        for case in cases.clone() {
            match write::once(case, huge, clock, stop) {
                Ok(Some(forked)) => round.push((case, forked)),
                Ok(None) => return all,
                Err(why) => {
                    let (count, pages) = (case.huge_pages, case.pages.name());
                    measured.note("failed", format!("{count} huge pages on {pages}: {why:#}"));
                    cases.retain(|c| *c != case);
                }
            }
        }
        all.push(round);
    }
    all
}
