// SPDX-License-Identifier: Apache-2.0
//! Axes of SVG charts: round ticks, labels with a unit, a faint grid.

use crate::html::page::escape;
use std::fmt::Write as _;

/// From values to pixels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// A value to be marked.
#[derive(Clone, PartialEq, Debug)]
pub struct Tick {
    /// Where.
    pub value: f64,
    /// With as many decimals as the distance of the ticks needs.
    pub label: String,
}

impl Axis {
    /// Shows `low` at the pixel `from` and `high` at `to` (smaller than `from` on a
    /// vertical axis). Values that are no numbers, or all the same, give an axis about them.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let fine = |x: f64| if x.is_finite() { x.clamp(-1e300, 1e300) } else { 0.0 };
        let (low, high) = (fine(low).min(fine(high)), fine(low).max(fine(high)));
        // Closer together than this, they could not be told apart by their labels.
        let about = (low.abs().max(high.abs()) * 1e-9).max(1e-300);
        let (low, high) = if high - low > about {
            (low, high)
        } else {
            let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low - half, high + half)
        };
        Axis { low, high, from, to }
    }

    /// The pixel of a value; values beyond the ends lie beyond the pixels.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// About `count` round values (1, 2 or 5 times a power of ten apart) between the ends.
    pub fn ticks(&self, count: usize) -> Vec<Tick> {
        let rough = (self.high - self.low) / count.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
        let step = step.unwrap_or(power * 10.0);
        // Two to spare against rounding; the power of ten of the step gives the decimals.
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.low / step - 1e-9).ceil();
        (0..=2 * count + 2)
            .map(|i| (first + i as f64) * step)
            .take_while(|value| *value <= self.high + step * 1e-9)
            .map(|value| {
                let label = format!("{value:.decimals$}");
                // A zero has no sign.
                let zero = label.bytes().all(|b| matches!(b, b'-' | b'0' | b'.'));
                let label = if zero { label.trim_start_matches('-').to_string() } else { label };
                Tick { value, label }
            })
            .collect()
    }
}

/// A horizontal axis at height `y`, named below with its unit ("time of a run, ms"); grid
/// lines reach up to `top`.
pub fn horizontal(axis: &Axis, y: f64, top: f64, name: &str) -> String {
    let (mut grid, mut labels) = (String::new(), String::new());
    // Writing to a String cannot fail, here and below.
    for tick in axis.ticks(((axis.to - axis.from).abs() / 90.0) as usize + 1) {
        let x = axis.at(tick.value);
        let _ = write!(grid, "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>");
        let _ = write!(
            labels,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + 5.0,
            y + 18.0,
            tick.label
        );
    }
    format!(
        "<g class=\"grid\">{grid}</g>\n<g class=\"axis\"><line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
         {labels}<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>\n",
        axis.from,
        axis.to,
        (axis.from + axis.to) / 2.0,
        y + 36.0,
        escape(name)
    )
}

/// A vertical axis at `x`, named above with its unit; grid lines reach right to `right`.
pub fn vertical(axis: &Axis, x: f64, right: f64, name: &str) -> String {
    let (mut grid, mut labels) = (String::new(), String::new());
    for tick in axis.ticks(((axis.to - axis.from).abs() / 45.0) as usize + 1) {
        let y = axis.at(tick.value);
        let _ = write!(grid, "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>");
        let _ = write!(
            labels,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x - 5.0,
            x - 8.0,
            y + 4.0,
            tick.label
        );
    }
    format!(
        "<g class=\"grid\">{grid}</g>\n<g class=\"axis\"><line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
         {labels}<text class=\"name\" x=\"{x:.1}\" y=\"{:.1}\">{}</text></g>\n",
        axis.from,
        axis.to,
        axis.from.min(axis.to) - 10.0,
        escape(name)
    )
}

/// A picture of `width` by `height` pixels that says in `label` what is to be seen in it.
pub fn svg(width: f64, height: f64, label: &str, content: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
         aria-label=\"{}\">\n{content}</svg>\n",
        escape(label)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64, count: usize) -> Vec<String> {
        Axis::new(low, high, 0.0, 100.0).ticks(count).into_iter().map(|t| t.label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(0.0, 10.0, 5), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(0.71, 0.84, 4), ["0.75", "0.80"]);
        assert_eq!(labels(-0.1, 0.1, 4), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
        assert_eq!(labels(1e6, 3e6, 2), ["1000000", "2000000", "3000000"]);
        assert_eq!(labels(-30.0, -10.0, 2), ["-30", "-20", "-10"]);
    }

    #[test]
    fn ends_lie_at_their_pixels() {
        let axis = Axis::new(2.0, 4.0, 300.0, 100.0);
        assert_eq!((axis.at(2.0), axis.at(3.0), axis.at(4.0)), (300.0, 200.0, 100.0));
    }

    #[test]
    fn hostile_values_give_a_finite_axis_with_ticks() {
        for low in [0.0, 1.0, -5.0, 1e-320, 1e300, -1e308, f64::NAN, f64::INFINITY] {
            for high in [0.0, 1.0, 1.0 + 1e-15, 1e308, f64::NAN, f64::NEG_INFINITY] {
                let axis = Axis::new(low, high, 0.0, 600.0);
                let ticks = axis.ticks(6);
                assert!((2..=16).contains(&ticks.len()), "{low} {high}: {ticks:?}");
                assert!(ticks.iter().all(|t| (-1.0..601.0).contains(&axis.at(t.value))), "{low} {high}");
                let drawn = horizontal(&axis, 100.0, 0.0, "<x>") + &vertical(&axis, 0.0, 100.0, "y");
                assert!(
                    !drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("<x>"),
                    "{drawn}"
                );
            }
        }
    }
}
