// SPDX-License-Identifier: Apache-2.0
//! Figures as people read them.

use hugelift_measure::comparison::{Figure, Ratio};

/// Returns a share as a percentage with two significant digits.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p >= 9.95 => format!("{percent:.0}"),
        p if p >= 0.995 => format!("{percent:.1}"),
        _ => format!("{percent:.2}"),
    }
}

/// Returns seconds in s, ms or µs.
pub(crate) fn seconds(value: f64) -> String {
    match value.abs() {
        v if v >= 1.0 => format!("{value:.3} s"),
        v if v >= 1e-3 => format!("{:.2} ms", value * 1e3),
        _ => format!("{:.2} µs", value * 1e6),
    }
}

/// Returns a figure's value with its unit; what the user counts or measures has none.
pub(crate) fn value(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Metric | Figure::Latency | Figure::Rate if value.abs() >= 1000.0 => format!("{value:.0}"),
        Figure::Metric | Figure::Latency | Figure::Rate => format!("{value:.3}"),
        _ => seconds(value),
    }
}

/// Returns a ratio as `0.953 [0.941, 0.966]`.
pub(crate) fn interval(ratio: &Ratio) -> String {
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!("{:.3} [{low:.3}, {high:.3}]", ratio.point),
        _ => format!("{:.3} (no interval: {} of at least 6 pairs)", ratio.point, ratio.pairs),
    }
}
