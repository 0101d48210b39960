// SPDX-License-Identifier: Apache-2.0
//! What was counted of the sides of a comparison, side by side.

use super::side::Side;
use crate::pmu::counts::{About, Counts};
use crate::pmu::report::Origin;
use crate::pmu::side_by_side::{Per, Ratio, SideBySide, State};
use crate::run::Run;
use crate::stats;

/// Puts the counts of all sides side by side, for one run, one transaction or one second of a period. The ratios of events
/// and of the kernel's counts are those of the pairs. Returns `None` if nothing was counted.
pub fn side_by_side(about: &About, sides: &[Side], per: Per) -> Option<SideBySide> {
    let bare = sides.first()?;
    let states = sides.iter().map(|side| state(about, side, per)).collect::<Option<Vec<State>>>()?;
    let ratio = |key: &str, side: usize| of_pairs(about, key, bare, sides.get(side)?, per);
    Some(SideBySide::new(per, states, ratio))
}

fn state(about: &About, side: &Side, per: Per) -> Option<State> {
    let mut total = Counts::default();
    let mut share = 0.0;
    for (run, counts) in side.runs.iter().filter_map(|run| Some((run, run.counts.as_deref()?))) {
        total.add(counts);
        share += share_of(run, per);
    }
    let subject = format!("{} runs", side.runs.len());
    let mut report = total.report(about, Origin::Measured, subject);
    report.seconds = Some(side.runs.iter().map(|run| run.wall).sum());
    (share > 0.0).then(|| State { name: side.name.clone(), report, share })
}

fn share_of(run: &Run, per: Per) -> f64 {
    match per {
        Per::Second => run.wall,
        Per::Transaction => run.transactions.unwrap_or(0.0),
        Per::Run | Per::Whole => 1.0,
    }
}

fn of_pairs(about: &About, key: &str, bare: &Side, side: &Side, per: Per) -> Option<Ratio> {
    let value = |run: &Run| {
        let share = Some(share_of(run, per)).filter(|share| *share > 0.0)?;
        Some(count(about, key, run.counts.as_deref()?)? / share)
    };
    let pairs: Vec<(f64, f64)> =
        bare.runs.iter().zip(&side.runs).filter_map(|(a, b)| Some((value(a)?, value(b)?))).collect();
    // A count of 0 has no ratio, and pairs without such counts are no fair choice of all: the ratio is that of the means then.
    let estimate = stats::ratio(&pairs).ok()?;
    let interval = estimate.interval;
    Some(Ratio { point: estimate.point, low: interval.map(|i| i.low), high: interval.map(|i| i.high) })
}

/// Returns the count of an event, of the first group that has counted it, or that of the kernel.
fn count(about: &About, key: &str, counts: &Counts) -> Option<f64> {
    if let Some(count) = counts.kernel.iter().find(|count| count.key == key) {
        return Some(count.value as f64);
    }
    let groups = about.model?.groups.iter().zip(&counts.groups);
    groups
        .flat_map(|(events, counts)| events.iter().zip(counts))
        .filter(|(event, _)| event.name == key)
        .find_map(|(_, count)| (*count)?.scaled())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::Count;
    use crate::pmu::report::{KernelCount, Scope};
    use crate::pmu::tables::models;

    fn about() -> About {
        About { model: models().find(|model| model.name == "Intel Skylake"), ..About::default() }
    }

    fn side(name: &str, walks: &[u64], wall: f64) -> Side {
        let run = |&walks: &u64| {
            let model = about().model.unwrap();
            let groups = model.groups.iter().map(|events| {
                let one = |event: &crate::pmu::Event| {
                    Some(Count::whole(if event.name.ends_with("WALK_ACTIVE") { walks } else { 1_000_000 }))
                };
                events.iter().map(one).collect()
            });
            let faults = KernelCount {
                key: "minor_faults",
                label: "page faults",
                value: walks / 10,
                scope: Scope::Program,
            };
            let counts = Counts { groups: groups.collect(), kernel: vec![faults] };
            Run { wall, counts: Some(Box::new(counts)), ..Run::default() }
        };
        let runs = walks.iter().map(run).collect();
        Side {
            name: name.into(),
            options: None,
            memory: None,
            peak_bytes: None,
            liftable: None,
            why_not: None,
            runs,
        }
    }

    #[test]
    fn issue_34_6_counters_of_a_comparison_are_means_with_ratios_of_pairs() {
        let bare = side("bare", &[7000, 8000, 9000, 7000, 8000, 9000, 8000], 2.0);
        let lifted = side("lifted", &[700, 800, 900, 700, 800, 900, 800], 2.0);
        let sides = [bare, lifted];
        let all = side_by_side(&about(), &sides, Per::Run).unwrap();
        let row = |key: &str| all.rows.iter().find(|row| row.key == key).unwrap();
        let walks = row("ITLB_MISSES.WALK_ACTIVE");
        assert_eq!(walks.values, [Some(8000.0), Some(800.0)]);
        let ratio = walks.ratios[0].unwrap();
        assert!((ratio.point - 0.1).abs() < 1e-9 && ratio.low.is_some_and(|low| low <= 0.1), "{ratio:?}");
        assert_eq!(row("minor_faults").values, [Some(800.0), Some(80.0)]);
        // Pairs of which one has no fault: the ratio of the means, without an interval.
        let mut none = sides.clone();
        for run in &mut none[1].runs[..3] {
            run.counts.as_mut().unwrap().kernel[0].value = 0;
        }
        let all = side_by_side(&about(), &none, Per::Run).unwrap();
        let faults = all.rows.iter().find(|row| row.key == "minor_faults").unwrap();
        assert!(faults.ratios[0].is_some_and(|ratio| ratio.low.is_none() && ratio.point < 0.1), "{faults:?}");
        let seconds = side_by_side(&about(), &sides, Per::Second).unwrap();
        let walks = seconds.rows.iter().find(|row| row.key == "ITLB_MISSES.WALK_ACTIVE").unwrap();
        assert_eq!(walks.values, [Some(4000.0), Some(400.0)]);
    }

    #[test]
    fn issue_34_6_without_counts_there_is_nothing_to_show() {
        let mut sides = [side("bare", &[1], 1.0), side("lifted", &[1], 1.0)];
        sides[1].runs[0].counts = None;
        assert_eq!(side_by_side(&about(), &sides, Per::Run), None);
        assert_eq!(side_by_side(&about(), &[], Per::Run), None);
    }
}
