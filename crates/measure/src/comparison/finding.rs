// SPDX-License-Identifier: Apache-2.0
//! What may be claimed about a variant, by its ratios and by what was huge.

use super::ratio::{Ratio, ratio};
use super::setting::{Setting, figures};
use super::side::Side;
use crate::live;
use crate::stats::{Estimate, Verdict};
use serde::Serialize;

/// What may be claimed about a variant.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Finding {
    /// The variant is better by these shares (0.03 is 3 %).
    Faster {
        /// The least share.
        from: f64,
        /// The largest share.
        to: f64,
    },
    /// The variant is worse by these shares.
    Slower {
        /// The least share.
        from: f64,
        /// The largest share.
        to: f64,
    },
    /// The interval contains 1.
    NoDifference {
        /// The measurement could not have shown a difference smaller than this share.
        smallest_seen: f64,
    },
    /// The figures are better, but no huge page was seen: nothing is claimed.
    NotHuge {
        /// The least share.
        from: f64,
        /// The largest share.
        to: f64,
    },
    /// A running process had no more on huge pages in the lifted periods than in the bare ones: nothing
    /// is claimed.
    NotSwitched,
    /// Fewer than six pairs.
    TooFew,
    /// No part of the program holds a whole huge page, so nothing was measured.
    NothingToLift,
}

/// One variant compared with the bare program.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VariantResult {
    /// The variant.
    pub name: String,
    /// The verdict on `Setting::figure`.
    #[serde(flatten)]
    pub finding: Finding,
    /// No part of the program holds a whole huge page.
    pub nothing_to_lift: bool,
    /// The ratios of all figures.
    pub ratios: Vec<Ratio>,
}

/// Compares the runs of `side` with those of the bare side.
pub(super) fn compare(setting: &Setting, bare: &Side, side: &Side) -> VariantResult {
    let estimate = ratio(setting.figure, &bare.runs, &side.runs);
    // Where smaps could not be read, no gain is claimed.
    let huge = side.memory.is_some_and(|memory| memory.lifted() > 0) || side.writable_gain(bare) > 0;
    let nothing_to_lift = side.liftable == Some(0);
    let finding = match estimate {
        Some(_)
            if setting
                .live
                .as_ref()
                .is_some_and(|live| !live::was_switched(&bare.runs, &side.runs, live.memory)) =>
        {
            Finding::NotSwitched
        }
        Some(estimate) => of_estimate(&estimate, setting.higher_is_better, huge),
        None if nothing_to_lift && side.runs.is_empty() => Finding::NothingToLift,
        None => Finding::TooFew,
    };
    let ratios = figures(setting)
        .iter()
        .filter_map(|&figure| Some(Ratio::of(figure, &ratio(figure, &bare.runs, &side.runs)?)));
    VariantResult { name: side.name.clone(), finding, nothing_to_lift, ratios: ratios.collect() }
}

/// Returns what an estimate of the ratio shows. `huge` says whether huge pages were seen.
pub(super) fn of_estimate(estimate: &Estimate, higher_is_better: bool, huge: bool) -> Finding {
    let (Some(interval), Some(width)) = (estimate.interval, estimate.half_width()) else {
        return Finding::TooFew;
    };
    let below = (1.0 - interval.high, 1.0 - interval.low);
    let above = (interval.low - 1.0, interval.high - 1.0);
    let (better, (from, to)) = match estimate.verdict(1.0) {
        Verdict::TooFew => return Finding::TooFew,
        Verdict::Undecided => return Finding::NoDifference { smallest_seen: width },
        Verdict::Less => (!higher_is_better, below),
        Verdict::More => (higher_is_better, above),
    };
    match (better, huge) {
        (true, true) => Finding::Faster { from, to },
        (true, false) => Finding::NotHuge { from, to },
        (false, _) => Finding::Slower { from, to },
    }
}
