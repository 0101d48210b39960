// SPDX-License-Identifier: Apache-2.0
//! The result of an experiment on the parts of a process: what each of them gains. This is the JSON of
//! `hugelift compare --pid --by`, version [`VERSION`].

use super::finding::{self, Finding};
use super::ratio::Ratio;
use super::setting::Setting;
use crate::live::by_part::{Pair, effects};
use crate::stopping::Reached;
use hugelift_core::printable::Untrusted;
use hugelift_core::snapshot::Part;
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// The value of [`PartsComparison::method`].
const METHOD: &str = "a random half of the parts is on huge pages in the first period of a pair, the others in the second; \
     Hodges-Lehmann estimate of the ratio for each part, 95 % intervals for all parts together by inverting Wilcoxon's \
     signed-rank test (Bonferroni)";

/// How code and read-only data are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Text and read-only data of each object.
    Part,
    /// Each object.
    Object,
    /// The code in use, the rest of the code, and the read-only data of each object.
    Heat,
}

/// Whether code is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Warmth {
    /// The fewest huge pages that had nearly all samples.
    Hot,
    /// The others.
    Cold,
}

/// A part that is on huge pages and on small ones in turn.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Unit {
    /// The file; none if it is all that is small of several files, or memory that the process has written to.
    pub object: Option<Untrusted>,
    /// What of it; none if it is all.
    pub part: Option<Part>,
    /// Whether it is code in use; none unless it is code, divided by heat.
    pub warmth: Option<Warmth>,
    /// Its size.
    pub bytes: u64,
}

/// A part, and what it gains.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UnitResult {
    /// The part.
    #[serde(flatten)]
    pub unit: Unit,
    /// What may be claimed.
    #[serde(flatten)]
    pub finding: Finding,
    /// The ratio of the figure on huge pages to that on small ones; none without a pair.
    pub ratio: Option<Ratio>,
}

/// The whole comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PartsComparison {
    /// [`VERSION`].
    pub version: u32,
    /// How the ratios are computed.
    pub method: &'static str,
    /// The settings and the machine.
    #[serde(flatten)]
    pub setting: Setting,
    /// How the process is divided.
    pub by: By,
    /// The condition that ended it.
    pub reached: Reached,
    /// The parts, the largest first.
    pub parts: Vec<UnitResult>,
    /// What smaps did not show on huge pages and on small ones in turn, and memory that the process has written to; it was the
    /// same in all periods.
    pub left_out: Vec<Unit>,
    /// Every pair.
    pub pairs: Vec<Pair>,
}

impl PartsComparison {
    /// Draws the conclusions.
    pub fn new(
        setting: Setting,
        by: By,
        reached: Reached,
        units: Vec<Unit>,
        left_out: Vec<Unit>,
        pairs: Vec<Pair>,
    ) -> PartsComparison {
        let estimates = effects(&pairs, units.len()).unwrap_or_default();
        let result = |(index, unit): (usize, Unit)| match estimates.get(index) {
            Some(estimate) => UnitResult {
                unit,
                finding: finding::of_estimate(estimate, setting.higher_is_better, true),
                ratio: Some(Ratio::of(setting.figure, estimate)),
            },
            None => UnitResult { unit, finding: Finding::TooFew, ratio: None },
        };
        let parts = units.into_iter().enumerate().map(result).collect();
        PartsComparison { version: VERSION, method: METHOD, setting, by, reached, parts, left_out, pairs }
    }
}
