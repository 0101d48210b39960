// SPDX-License-Identifier: Apache-2.0
//! The result of a comparison of a bare program with lifted ones: every run, what was huge, and
//! what may be claimed. This is the JSON of `hugelift compare`, version [`VERSION`].
//! `hugelift_report::comparison` shows it as text.

pub mod by_part;
mod counters;
mod finding;
mod ratio;
mod setting;
mod side;

pub use crate::memory::{Coverage, Memory};
pub use crate::run::{Figure, Run};
pub use counters::side_by_side;
pub use finding::{Finding, VariantResult};
pub use ratio::{Ratio, ratio};
pub use setting::{Setting, figures};
pub use side::Side;

use crate::pmu::side_by_side::SideBySide;
use crate::stopping::Reached;
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// The value of [`Comparison::method`].
const METHOD: &str = "Hodges-Lehmann estimate of the ratio of each pair, \
     95 % interval by inverting Wilcoxon's signed-rank test";

/// The whole comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`VERSION`].
    pub version: u32,
    /// How the ratios are computed.
    pub method: &'static str,
    /// The settings and the machine.
    #[serde(flatten)]
    pub setting: Setting,
    /// The condition that ended it.
    pub reached: Reached,
    /// The bare side first.
    pub sides: Vec<Side>,
    /// Every other side compared with it.
    pub variants: Vec<VariantResult>,
    /// What was counted of each side, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<SideBySide>,
}

impl Comparison {
    /// Draws the conclusions from `sides`, of which the first is the bare one.
    pub fn new(setting: Setting, reached: Reached, sides: Vec<Side>) -> Comparison {
        let variants = match sides.split_first() {
            Some((bare, rest)) => rest.iter().map(|side| finding::compare(&setting, bare, side)).collect(),
            None => Vec::new(),
        };
        Comparison { version: VERSION, method: METHOD, setting, reached, sides, variants, counters: None }
    }

    /// Returns the bare side.
    pub fn bare(&self) -> Option<&Side> {
        self.sides.first()
    }

    /// Whether anything was measured.
    pub fn has_runs(&self) -> bool {
        self.sides.iter().any(|side| !side.runs.is_empty())
    }

    /// Returns a side by its name.
    pub fn side(&self, name: &str) -> Option<&Side> {
        self.sides.iter().find(|side| side.name == name)
    }
}
