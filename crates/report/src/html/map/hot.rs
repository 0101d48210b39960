// SPDX-License-Identifier: Apache-2.0
//! How hot the cells of a grid are: each has a bar above it, which is the higher and the stronger in colour the more of the
//! samples are in its huge pages.

use hugelift_core::heat::{Heat, ObjectHeat, percent};
use hugelift_core::printable::thousands;
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The heights of bars, in pixels: the hottest cell has the greatest one.
pub(super) const LEVELS: u64 = 8;

/// The samples of each cell of an object.
pub(super) struct Hot {
    cells: BTreeMap<u64, u64>,
    most: u64,
    all: u64,
}

impl Hot {
    /// Adds up the samples by cells of `unit` bytes.
    pub fn new(object: &ObjectHeat, unit: u64) -> Hot {
        let mut cells: BTreeMap<u64, u64> = BTreeMap::new();
        for span in &object.spans {
            *cells.entry(span.start / unit).or_default() += span.samples;
        }
        Hot { most: cells.values().copied().max().unwrap_or(0), cells, all: object.samples }
    }

    /// Returns the height of a cell's bar, from 1 to [`LEVELS`]; `None` if no sample is in it.
    pub fn level(&self, cell: u64) -> Option<u64> {
        let samples = self.cells.get(&cell).filter(|samples| **samples > 0)?;
        u64::try_from((u128::from(*samples) * u128::from(LEVELS)).div_ceil(u128::from(self.most.max(1)))).ok()
    }

    /// Returns the line of a tooltip on the part of a cell, with the newline before it; only code has one.
    pub fn line(&self, cell: u64, part: Part) -> String {
        match (part, self.cells.get(&cell).copied().unwrap_or(0)) {
            (Part::Text, 0) => "\nno samples".into(),
            (Part::Text, n) => {
                format!("\n{} samples, {} of this object's", thousands(n), percent(n, self.all))
            }
            _ => String::new(),
        }
    }
}

/// Returns the paragraph on all of it, and the legend of the bars; nothing if it was not sampled.
pub(super) fn summary(heat: Option<&Heat>) -> String {
    let Some(heat) = heat else { return String::new() };
    let mut out = format!("<p>Code in use: {}.", heat.says());
    if heat.samples > 0 {
        let kernel =
            heat.kernel_samples.map_or(String::new(), |n| format!(", {} in the kernel", heat.share(n)));
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            out,
            " {} in code that the process has made itself{kernel}. The bar above a cell is the higher the more of its \
             object's samples are there: ",
            heat.share(heat.jit_samples)
        );
        let _ = write!(
            out,
            "<span class=\"key\"><svg viewBox=\"0 0 52 8\" width=\"52\" height=\"8\" aria-hidden=\"true\">{}</svg>few to \
             most</span>.",
            (1..=LEVELS)
                .map(|level| bar(level, (level - 1) as f64 * 6.5, LEVELS as f64, 5.5))
                .collect::<String>()
        );
    }
    out + "</p>\n"
}

/// Returns a bar of this level that stands on the line `bottom`.
pub(super) fn bar(level: u64, left: f64, bottom: f64, width: f64) -> String {
    format!("<path class=\"h-{level}\" d=\"M{left:.2} {bottom:.1}h{width:.2}v-{level}h-{width:.2}z\"/>")
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;
    use crate::html::geometry;
    use hugelift_core::heat::{PagesInUse, SpanHeat};
    use hugelift_core::report::example::report;
    use proptest::prelude::*;

    const HUGE: u64 = 2 << 20;

    fn heat(spans: &[(u64, u64)]) -> Heat {
        let samples = spans.iter().map(|(_, samples)| samples).sum();
        let spans = spans.iter().map(|(page, samples)| SpanHeat { start: page * HUGE, samples: *samples });
        let object = ObjectHeat {
            path: "/bin/<x>".to_string().into(),
            samples,
            pages: PagesInUse::default(),
            huge_pages: 114,
            hot_huge_pages: 28,
            spans: spans.collect(),
        };
        Heat {
            milliseconds: 2000,
            ended: false,
            threads: 1,
            sampled_threads: 1,
            samples: samples + 100,
            lost_samples: 0,
            period_ns: 1_000_000,
            sample_cost_ns: 2000,
            kernel_samples: Some(100),
            jit_samples: 0,
            other_samples: 0,
            page_size: 4096,
            huge_page_size: HUGE,
            pages: PagesInUse::default(),
            objects: vec![object],
        }
    }

    #[test]
    fn issue_31_3_the_map_shows_how_hot_it_is() {
        let mut report = report(&[(2 * HUGE, 12 * HUGE)], HUGE);
        let cold = document(&report).unwrap();
        assert!(!cold.contains("class=\"h-") && !cold.contains("no samples"), "{cold}");
        report.heat = Some(heat(&[(2, 800), (3, 1), (11, 99)]));
        let page = document(&report).unwrap();
        geometry::check(&page);
        for want in [
            "Code in use: 1 000 samples of CPU time in 2.0 s. ",
            "10.0 % in the kernel",
            "99 % of the samples are in 28 huge pages of 114",
            "\n800 samples, 88.9 % of this object's</title>",
            "\n1 samples, 0.1 % of this object's</title>",
            "\nno samples</title>",
        ] {
            assert!(page.contains(want), "{want}: {page}");
        }
        // One of each in the legend.
        let bars = |level: u64| page.matches(&format!("<path class=\"h-{level}\"")).count() - 1;
        assert_eq!([1, 2, 8].map(bars), [2, 0, 1]);
    }

    #[test]
    fn issue_31_3_a_process_that_slept_has_a_map() {
        let mut report = report(&[(2 * HUGE, 12 * HUGE)], HUGE);
        report.heat = Some(Heat { samples: 0, objects: vec![], ..heat(&[]) });
        let page = document(&report).unwrap();
        assert!(page.contains("Code in use: no samples in 2.0 s: the process slept.</p>"), "{page}");
        assert!(!page.contains("class=\"h-"), "{page}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn issue_31_3_any_heat_makes_a_picture(
            spans in prop::collection::vec((0u64..9000, 0u64..u64::MAX / 4096), 0..40), pages in 1u64..9000,
        ) {
            let mut report = report(&[(HUGE, HUGE + pages * HUGE)], HUGE);
            report.heat = Some(heat(&spans));
            let page = document(&report).unwrap();
            geometry::check(&page);
            prop_assert!(page.len() < 4 << 20, "{} bytes", page.len());
        }
    }
}
