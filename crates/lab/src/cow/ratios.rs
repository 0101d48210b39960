// SPDX-License-Identifier: Apache-2.0
//! Compares kinds of pages, round by round, and says what the comparison carries.

use super::case::{Case, Pattern};
use super::measured::Measured;
use super::redis::{Save, Side};
use super::whole::Whole;
use super::write::Forked;
use crate::latency::Latencies;
use crate::memory::Pages;
use hugelift_measure::stats::{self, Estimate};

/// What the source of this experiment found for whole processes that write all of their memory: the time on
/// hugetlb pages, divided by the time on small ones.
pub const SOURCE_WHOLE: f64 = 0.93;

/// The same for one write to each huge page, at two sizes.
pub const SOURCE_SPARSE: [f64; 2] = [1.38, 1.47];

/// The time on one kind of pages, divided by that on another, over the rounds.
#[derive(Clone, PartialEq, Debug)]
pub struct Ratio {
    /// What took the time.
    pub of: String,
    /// The subject of the claim about it; empty if none is made.
    pub subject: &'static str,
    /// Memory in huge pages; `None` for redis.
    pub huge_pages: Option<u64>,
    /// The kind of pages that is compared, and the one that it is compared to.
    pub names: (String, String),
    /// The ratio.
    pub estimate: Estimate,
    /// From this ratio on the difference is certain, or from its inverse on. Two runs on one machine differ by
    /// up to a third.
    pub margin: f64,
    /// What the source found.
    pub source: Option<f64>,
}

impl Ratio {
    /// Returns the answer in a word, and whether the interval carries it.
    pub fn word(&self) -> (&'static str, bool) {
        let Some(interval) = self.estimate.interval else { return ("unknown", false) };
        match (interval.low, interval.high) {
            (low, _) if low > 1.0 => ("slower", low >= self.margin),
            (_, high) if high < 1.0 => ("faster", high <= 1.0 / self.margin),
            // That there is no difference is never certain.
            _ => ("no-difference", false),
        }
    }

    /// Shows the ratio with its interval, as in `0.21 [0.19, 0.24]`.
    pub fn shown(&self) -> String {
        let Estimate { point, interval, count } = self.estimate;
        let digits = match point {
            10.0.. => 0,
            2.0.. => 1,
            _ => 2,
        };
        match interval {
            Some(i) => format!("{point:.digits$} [{:.digits$}, {:.digits$}]", i.low, i.high),
            None => format!("{point:.digits$} (of {count} rounds, too few for an interval)"),
        }
    }
}

/// What is compared of the forks: its name, the subjects of its claims for hugetlb to small pages, hugetlb to
/// THP and THP to small pages, the pattern, the figure and the margin.
type Figure = (&'static str, [&'static str; 3], Pattern, fn(&Forked) -> Option<f64>, f64);

const FIGURES: [Figure; 3] = [
    (
        "one write",
        [
            "cow.first-write.hugetlb-to-small",
            "cow.first-write.hugetlb-to-thp",
            "cow.first-write.thp-to-small",
        ],
        Pattern::OnePerHuge,
        |run| Latencies::new(run.writes.clone()).percentile(0.5),
        2.0,
    ),
    (
        "all writes, every page",
        ["cow.dense.writes-alone", "cow.dense.writes-alone.to-thp", "cow.dense.writes-alone.thp"],
        Pattern::Every,
        |run| Some(run.writes.iter().map(|ns| f64::from(*ns)).sum()),
        1.5,
    ),
    (
        "fork(2)",
        ["cow.fork.hugetlb-to-small", "cow.fork.hugetlb-to-thp", "cow.fork.thp-to-small"],
        Pattern::Every,
        |run| Some(run.fork_ns),
        2.0,
    ),
];

/// Returns all ratios.
pub fn ratios(measured: &Measured) -> Vec<Ratio> {
    let mut all = Vec::new();
    for (of, subjects, pattern, figure, margin) in FIGURES {
        for (subject, kinds) in subjects.into_iter().zip(pairs_of_kinds(measured)) {
            let Some(kinds) = kinds else { continue };
            let Some((huge_pages, pairs)) = of_forks(measured, pattern, kinds, figure) else { continue };
            let Ok(estimate) = stats::ratio(&pairs) else { continue };
            let (of, huge_pages) = (of.to_string(), Some(huge_pages));
            let names = (kinds.0.name(), kinds.1.name());
            all.push(Ratio { of, subject, huge_pages, names, estimate, margin, source: None });
        }
    }
    all.extend(of_whole(measured));
    all.extend(of_redis(&measured.served.saves));
    all
}

/// Returns hugetlb and small pages, hugetlb and THP, THP and small pages; `None` for what was not measured.
fn pairs_of_kinds(measured: &Measured) -> [Option<(Pages, Pages)>; 3] {
    let cases = measured.cases.iter().map(|(case, _)| case.pages);
    let mut kinds = cases.chain(measured.whole.iter().map(|(case, _)| case.pages));
    let hugetlb = kinds.find(|pages| matches!(pages, Pages::Hugetlb(_)));
    let with_hugetlb = |other| hugetlb.map(|hugetlb| (hugetlb, other));
    [with_hugetlb(Pages::Small), with_hugetlb(Pages::Thp), Some((Pages::Thp, Pages::Small))]
}

/// Returns the pairs of a figure at the largest size with enough rounds for an interval, or else at the
/// smallest size.
fn of_forks(
    measured: &Measured,
    pattern: Pattern,
    (of, to): (Pages, Pages),
    figure: fn(&Forked) -> Option<f64>,
) -> Option<(u64, Vec<(f64, f64)>)> {
    let runs = |huge_pages, pages| {
        let case = Case { huge_pages, pages, pattern };
        measured.cases.iter().find(|(c, _)| *c == case).map(|(_, runs)| runs)
    };
    let sizes = measured.cases.iter().map(|(case, _)| case.huge_pages);
    let both = sizes.filter_map(|size| Some((size, runs(size, to)?, runs(size, of)?)));
    let enough = |(size, first, second): &(u64, &Vec<Forked>, &Vec<Forked>)| {
        let rounds = first.len().min(second.len()) as u64;
        if rounds >= FEWEST { (true, *size) } else { (false, u64::MAX - *size) }
    };
    let (size, first, second) = both.max_by_key(enough)?;
    let pairs = first.iter().zip(second).filter_map(|(a, b)| Some((figure(a)?, figure(b)?)));
    Some((size, pairs.collect()))
}

/// What is compared of whole processes: its name, the subjects of its claims for hugetlb and THP to small pages, the pattern and
/// the figure.
type WholeFigure = (&'static str, [&'static str; 2], Pattern, fn(&Whole) -> f64);

/// The wall time where every page is written, which the source gives.
const DENSE: &str = "whole process, wall time";

const WHOLE_FIGURES: [WholeFigure; 6] = [
    (DENSE, ["cow.dense.whole-process", "cow.dense.whole-process.thp"], Pattern::Every, |run| run.wall),
    ("whole process, CPU time", ["cow.dense.whole-process.cpu", ""], Pattern::Every, Whole::cpu),
    ("whole process, CPU time without the fill", ["", ""], Pattern::Every, Whole::after_fill),
    ("whole process, sparse, wall time", ["", ""], Pattern::OnePerHuge, |run| run.wall),
    ("whole process, sparse, CPU time", ["", ""], Pattern::OnePerHuge, Whole::cpu),
    ("whole process, sparse, CPU time without the fill", ["", ""], Pattern::OnePerHuge, Whole::after_fill),
];

/// Compares whole processes of each size. What can be compared with other reports is said of one size, [`claimed`], dense.
fn of_whole(measured: &Measured) -> Vec<Ratio> {
    let mut sizes: Vec<u64> = measured.whole.iter().map(|(case, _)| case.huge_pages).collect();
    sizes.dedup();
    let claimed = claimed(measured);
    let [hugetlb, _, thp] = pairs_of_kinds(measured);
    let mut all = Vec::new();
    for size in sizes {
        for (of, subjects, pattern, figure) in WHOLE_FIGURES {
            for (kinds, subject) in [hugetlb, thp].into_iter().zip(subjects) {
                let Some((second, first)) = kinds else { continue };
                let Some(estimate) = whole_ratio(measured, (size, pattern), (second, first), figure) else {
                    continue;
                };
                let subject = if Some(size) == claimed { subject } else { "" };
                let source = (of == DENSE && kinds == hugetlb).then_some(SOURCE_WHOLE);
                let (huge_pages, names, of) = (Some(size), (second.name(), first.name()), of.to_string());
                all.push(Ratio { of, subject, huge_pages, names, estimate, margin: 1.25, source });
            }
        }
    }
    all
}

/// Returns a figure of whole processes of one size and pattern on one kind of pages, divided by that on another.
pub(super) fn whole_ratio(
    measured: &Measured,
    (huge_pages, pattern): (u64, Pattern),
    (of, to): (Pages, Pages),
    figure: fn(&Whole) -> f64,
) -> Option<Estimate> {
    let runs = |pages| measured.whole_runs(Case { huge_pages, pages, pattern });
    let pairs: Vec<(f64, f64)> =
        runs(to)?.iter().zip(runs(of)?).map(|(a, b)| (figure(a), figure(b))).collect();
    stats::ratio(&pairs).ok()
}

/// Returns the size of whole processes that claims are about: of those with enough rounds for an interval the one that is
/// nearest to 64 huge pages.
fn claimed(measured: &Measured) -> Option<u64> {
    let far = |size: u64| if size > 64 { size as f64 / 64.0 } else { 64.0 / size.max(1) as f64 };
    let dense = measured.whole.iter().filter(|(case, _)| case.pattern == Pattern::Every);
    let sizes =
        dense.map(|(case, runs)| ((runs.len() as u64) < FEWEST, far(case.huge_pages), case.huge_pages));
    sizes.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, _, size)| size)
}

/// Compares the saves of redis with huge pages to those without. The percentiles are those of each save: the
/// commands behind a slow one are slow too, and would not be independent observations.
fn of_redis(saves: &[Save]) -> Vec<Ratio> {
    type OfSave = (&'static str, [&'static str; 2], fn(&Save) -> Option<f64>, f64);
    const ALL: [OfSave; 3] = [
        (
            "redis: p99 of a save",
            ["cow.redis.p99.thp-on", "cow.redis.p99.hugelift"],
            |save| Latencies::new(save.saving.clone()).carried(0.99),
            1.5,
        ),
        (
            "redis: p99.9 of a save",
            ["cow.redis.p999.thp-on", "cow.redis.p999.hugelift"],
            |save| Latencies::new(save.saving.clone()).carried(0.999),
            1.5,
        ),
        (
            "redis: fork(2)",
            ["cow.redis.fork.thp-on", "cow.redis.fork.hugelift"],
            |save| Some(save.fork_us as f64),
            1.5,
        ),
    ];
    let of = |side: Side| saves.iter().filter(move |save| save.side == side);
    let mut all = Vec::new();
    for (name, subjects, figure, margin) in ALL {
        for (subject, side) in subjects.into_iter().zip([Side::On, Side::Lifted]) {
            let pairs = of(Side::Off).zip(of(side)).filter_map(|(a, b)| Some((figure(a)?, figure(b)?)));
            let Ok(estimate) = stats::ratio(&pairs.collect::<Vec<_>>()) else { continue };
            let names = (side.name().into(), Side::Off.name().into());
            let of = name.to_string();
            all.push(Ratio { of, subject, huge_pages: None, names, estimate, margin, source: None });
        }
    }
    all
}

/// The fewest rounds for an interval.
pub(super) const FEWEST: u64 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_measure::stats::Interval;

    fn ratio(point: f64, interval: Option<(f64, f64)>) -> Ratio {
        let interval = interval.map(|(low, high)| Interval { low, high });
        Ratio {
            of: "x".into(),
            subject: "cow.x",
            huge_pages: Some(4),
            names: ("a".into(), "b".into()),
            estimate: Estimate { point, interval, count: 6 },
            margin: 1.5,
            source: None,
        }
    }

    #[test]
    fn a_word_is_certain_only_beyond_the_margin() {
        assert_eq!(ratio(2.0, Some((1.6, 2.5))).word(), ("slower", true));
        assert_eq!(ratio(1.4, Some((1.2, 1.7))).word(), ("slower", false));
        assert_eq!(ratio(0.5, Some((0.4, 0.6))).word(), ("faster", true));
        assert_eq!(ratio(0.8, Some((0.7, 0.9))).word(), ("faster", false));
        assert_eq!(ratio(1.0, Some((0.9, 1.1))).word(), ("no-difference", false));
        assert_eq!(ratio(9.0, None).word(), ("unknown", false));
    }

    #[test]
    fn issue_34_6_claims_are_about_the_size_nearest_to_64_with_an_interval() {
        let of = |sizes: &[(u64, usize)]| {
            let one = |&(huge_pages, runs): &(u64, usize)| {
                (
                    Case { huge_pages, pages: Pages::Small, pattern: Pattern::Every },
                    vec![Whole::default(); runs],
                )
            };
            claimed(&Measured { whole: sizes.iter().map(one).collect(), ..Measured::default() })
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(1, 30), (32, 10)]), Some(32));
        assert_eq!(of(&[(1, 30), (64, 30), (128, 6)]), Some(64));
        assert_eq!(of(&[(1, 30), (128, 6), (512, 6)]), Some(128));
        // Five rounds have no interval.
        assert_eq!(of(&[(1, 30), (64, 5)]), Some(1));
    }

    #[test]
    fn a_ratio_is_shown_with_its_interval() {
        assert_eq!(ratio(0.21, Some((0.19, 0.24))).shown(), "0.21 [0.19, 0.24]");
        assert_eq!(ratio(20.4, Some((18.0, 22.0))).shown(), "20 [18, 22]");
        assert_eq!(ratio(2.55, None).shown(), "2.5 (of 6 rounds, too few for an interval)");
    }
}
