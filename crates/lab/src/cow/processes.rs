// SPDX-License-Identifier: Apache-2.0
//! Measures whole processes of each size, dense and sparse, on each kind of pages, in rounds.

use super::case::{Case, Pattern};
use super::measured::Measured;
use super::options::Options;
use super::room::{pool_for, runnable};
use super::whole::{self, Whole};
use crate::memory::Pages;
use crate::progress::Progress;
use anyhow::Result;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_linux::machine::thp_page;
use std::time::{Duration, Instant};

/// The fewest rounds of a step.
const IN_STEP: u64 = 2;

/// The start and the end of a process take as long as so many huge pages.
const START: u64 = 32;

/// A step has enough rounds for this many huge pages: what small processes take is less than a tick of `/proc/stat`.
const STEP: u64 = 32;

/// What whole processes write after their fork.
pub(super) const PATTERNS: [Pattern; 2] = [Pattern::OnePerHuge, Pattern::Every];

/// Measures until `end`, which is the second of `until`; the first is the share of the time that is over then.
pub(super) fn measure(
    options: &Options,
    hugetlb: Option<Pages>,
    (share, end): (f64, Instant),
    progress: &mut Progress,
    measured: &mut Measured,
) -> Result<()> {
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let mut sizes = options.whole.clone();
    sizes.sort_unstable();
    sizes.dedup();
    // A size takes as long as it is large, and a process takes time to start. What one does not need is left for the next.
    let weight = |huge_pages: u64| huge_pages + START;
    let mut left: u64 = sizes.iter().copied().map(weight).sum();
    for huge_pages in sizes {
        let what = format!("whole processes, {}", human_bytes(huge_pages * huge.bytes()));
        if !progress.go_on(share, &what) {
            break;
        }
        let now = Instant::now();
        let until =
            now + end.saturating_duration_since(now).mul_f64(weight(huge_pages) as f64 / left.max(1) as f64);
        left -= weight(huge_pages);
        let kinds: Vec<Pages> =
            [Some(Pages::Small), Some(Pages::Thp), hugetlb].into_iter().flatten().collect();
        one_size(huge_pages, &kinds, options.rounds(huge_pages), until, progress, measured)?;
    }
    Ok(())
}

fn one_size(
    huge_pages: u64,
    kinds: &[Pages],
    rounds: u64,
    end: Instant,
    progress: &mut Progress,
    measured: &mut Measured,
) -> Result<()> {
    let huge = thp_page().unwrap_or(PageSize::MB2);
    let of = |pattern| kinds.iter().map(move |&pages| Case { huge_pages, pages, pattern });
    let cases: Vec<Case> = PATTERNS.into_iter().flat_map(of).collect();
    let mut cases = runnable(&cases, huge, measured);
    let mut pooled: Vec<Pages> = cases.iter().map(|case| case.pages).collect();
    let _pool = pool_for(&mut pooled, huge_pages, huge, measured);
    cases.retain(|case| pooled.contains(&case.pages));
    let mut results: Vec<(Case, Vec<Whole>)> = cases.iter().map(|case| (*case, vec![])).collect();
    let in_step = IN_STEP.max(STEP.div_ceil(huge_pages.max(1)));
    let mut done = 0;
    while done < rounds && !cases.is_empty() {
        let mut longest = Duration::ZERO;
        let (step, _) = progress.undisturbed(|progress| {
            let mut all = Vec::new();
            for _ in 0..in_step.min(rounds - done) {
                let began = Instant::now();
                // One round of each size is measured at least.
                if progress.is_over() || (done + all.len() as u64 > 0 && began + longest >= end) {
                    break;
                }
                fastrand::shuffle(&mut cases);
                all.push(round(&mut cases, huge, measured));
                longest = longest.max(began.elapsed());
            }
            Ok(all)
        })?;
        if step.is_empty() {
            if !progress.is_over() {
                measured.note(
                    "whole",
                    format!(
                        "whole processes of {huge_pages} huge pages have {done} of {rounds} rounds in their part of the time: \
                         '--only processes' gives them all of it"
                    ),
                );
            }
            break;
        }
        done += step.len() as u64;
        for (case, whole) in step.into_iter().flatten() {
            results.iter_mut().filter(|(other, _)| *other == case).for_each(|(_, all)| all.push(whole));
        }
    }
    results.retain(|(_, all)| !all.is_empty());
    measured.whole.extend(results);
    Ok(())
}

/// Runs each case once. A case that fails is removed, and a note says why: pages of the pool are anybody's.
fn round(cases: &mut Vec<Case>, huge: PageSize, measured: &mut Measured) -> Vec<(Case, Whole)> {
    let mut done = Vec::new();
    for case in cases.clone() {
        match whole::once(case, huge) {
            Ok(whole) => done.push((case, whole)),
            Err(why) => {
                let (count, pages) = (case.huge_pages, case.pages.name());
                measured.note("whole failed", format!("{count} huge pages on {pages}: {why:#}"));
                cases.retain(|other| *other != case);
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other kinds of pages are measured even if the pool has become too small.
    #[test]
    fn issue_34_6_a_case_that_fails_is_left_out_with_a_note() {
        let _alone = crate::alone();
        // No kernel has pages of this size.
        let Some(odd) = PageSize::new(1 << 60) else { return };
        let of = |pages| Case { huge_pages: 1, pages, pattern: Pattern::OnePerHuge };
        let (mut cases, mut measured) =
            (vec![of(Pages::Hugetlb(odd)), of(Pages::Small)], Measured::default());
        let done = round(&mut cases, PageSize::MB2, &mut measured);
        assert_eq!(done.iter().map(|(case, _)| *case).collect::<Vec<_>>(), [of(Pages::Small)]);
        assert_eq!(cases, [of(Pages::Small)]);
        assert!(measured.notes[0].contains("could not be measured"), "{:?}", measured.notes);
    }
}
