// SPDX-License-Identifier: Apache-2.0
//! Axes of SVG charts: ticks at round values, labels with a unit, a grid.

use crate::html::label::{NORMAL, SMALL, cut, width};
use crate::html::page::escape;
use hugelift_lab::results::unit::Unit;
use std::fmt::Write as _;

/// A scale that maps values to pixels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
    unit: Unit,
}

/// A marked value.
#[derive(Clone, PartialEq, Debug)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// Its label, with the decimals that the distance of the ticks needs.
    pub label: String,
}

impl Axis {
    /// Makes an axis with `low` at the pixel `from` and `high` at `to` (which is smaller than `from` on
    /// a vertical axis). Values that are not finite count as 0; equal values give an axis around them.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let fine = |x: f64| if x.is_finite() { x.clamp(-1e300, 1e300) } else { 0.0 };
        let (low, high) = (fine(low).min(fine(high)), fine(low).max(fine(high)));
        // Values closer than this would have the same label.
        let about = (low.abs().max(high.abs()) * 1e-9).max(1e-300);
        let (low, high) = if high - low > about {
            (low, high)
        } else {
            let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low - half, high + half)
        };
        Axis { low, high, from, to, logarithmic: false, unit: Unit::Ratio }
    }

    /// Makes a logarithmic axis, or a linear one if an end is not positive.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let axis = Axis::new(low, high, from, to);
        Axis { logarithmic: axis.low >= 1e-100, ..axis }
    }

    /// Sets the unit of the labels: bytes, in powers of two, and seconds are written into each label.
    pub fn in_unit(self, unit: Unit) -> Axis {
        Axis { unit, ..self }
    }

    /// Returns the pixel of a value; values beyond the ends lie beyond the pixels of the ends.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(1e-300) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Returns about `count` round values between the ends: at steps of 1, 2 or 5 times a power of ten,
    /// or on a logarithmic axis powers of ten (of two for bytes).
    pub fn ticks(&self, count: usize) -> Vec<Tick> {
        let values = if self.logarithmic { self.powers(count) } else { Vec::new() };
        // A short range holds too few powers: even steps show more of it.
        let short = self.unit != Unit::Bytes && self.high < self.low * 10.0;
        if values.len() < if short { 4 } else { 2 } {
            let even = self.evenly(count);
            if even.len() >= values.len() {
                return even;
            }
        }
        let tick = |value: f64| Tick { value, label: self.label(value, power_digits(value)) };
        values.into_iter().map(tick).collect()
    }

    fn powers(&self, count: usize) -> Vec<f64> {
        let bytes = self.unit == Unit::Bytes;
        let base: f64 = if bytes { 2.0 } else { 10.0 };
        let (first, last) = (self.low.log(base), self.high.log(base));
        let step = ((last - first) / count.max(1) as f64).ceil().max(1.0);
        // Powers of ten that are far apart get 2 and 5 times them in between.
        let between: &[f64] = match (last - first) * 3.0 <= count as f64 {
            true if !bytes => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let first = (first / step - 1e-9).floor() * step;
        (0..=count + 2)
            .flat_map(|i| between.iter().map(move |m| m * base.powf(first + i as f64 * step)))
            .filter(|v| *v >= self.low * (1.0 - 1e-9) && *v <= self.high * (1.0 + 1e-9))
            .collect()
    }

    fn label(&self, value: f64, decimals: usize) -> String {
        if matches!(self.unit, Unit::Bytes | Unit::Seconds) {
            // Writes "10 µs" rather than "10.0 µs".
            let label = self.unit.show(value);
            let (number, unit) = label.split_once(' ').unwrap_or((&label, ""));
            let number = match number.split_once('.') {
                Some((whole, rest)) if rest.bytes().all(|b| b == b'0') => whole,
                _ => number,
            };
            return format!("{number} {unit}").trim_end().to_string();
        }
        if self.unit == Unit::PerSecond && (1e6..1e9).contains(&value) {
            return format!("{} M", (value / 1e4).round() / 1e2);
        }
        if value.abs() >= 1e7 || decimals > 6 && value != 0.0 {
            // Ticks are round, so few digits are enough: 2e9 rather than 2000000000.
            let label = format!("{value:.3e}");
            let (digits, power) = label.split_once('e').unwrap_or((&label, "0"));
            return format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'));
        }
        format!("{value:.decimals$}")
    }

    fn evenly(&self, count: usize) -> Vec<Tick> {
        let rough = (self.high - self.low) / count.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
        let step = match self.unit {
            Unit::Bytes => 2f64.powf(rough.log2().ceil()),
            // Counts are whole numbers.
            Unit::Count => step.unwrap_or(power * 10.0).max(1.0),
            _ => step.unwrap_or(power * 10.0),
        };
        // The power of ten of the step gives the decimals; the two more ticks below allow for rounding.
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.low / step - 1e-9).ceil();
        (0..=2 * count + 2)
            .map(|i| (first + i as f64) * step)
            .take_while(|value| *value <= self.high + step * 1e-9)
            .map(|value| {
                let label = self.label(value, decimals);
                // A zero has no sign.
                let zero = label.bytes().all(|b| matches!(b, b'-' | b'0' | b'.'));
                let label = if zero { label.trim_start_matches('-').to_string() } else { label };
                Tick { value, label }
            })
            .collect()
    }
}

/// Returns the decimals that a power of ten below 1 needs.
fn power_digits(value: f64) -> usize {
    (-value.log10().floor()).clamp(0.0, 12.0) as usize
}

/// Draws a horizontal axis at height `y`, in a picture of `room` pixels, with its name and unit ("time of a
/// run, ms") below and grid lines up to `top`. A tick whose label has no room has no label.
pub fn horizontal(axis: &Axis, y: f64, top: f64, room: f64, name: &str) -> String {
    let (mut grid, mut labels) = (String::new(), String::new());
    // Where the last label ends.
    let mut end = 0.0;
    // Writing to a String cannot fail, here and below.
    for tick in axis.ticks(((axis.to - axis.from).abs() / 62.0) as usize + 1) {
        let x = axis.at(tick.value);
        let _ = write!(grid, "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>");
        let half = width(&tick.label, SMALL) / 2.0;
        let middle = x.min(room - half);
        if middle - half < end {
            continue;
        }
        end = middle + half + 6.0;
        let _ = write!(
            labels,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + 5.0,
            y + 17.0,
            tick.label
        );
    }
    let name = cut(name, room - 8.0, NORMAL);
    let half = width(&name, NORMAL) / 2.0;
    format!(
        "<g class=\"grid\">{grid}</g>\n<g class=\"axis\"><line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
         {labels}<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>\n",
        axis.from,
        axis.to,
        ((axis.from + axis.to) / 2.0).min(room - half).max(half),
        y + 34.0,
        escape(&name)
    )
}

/// Draws a vertical axis at `x`, with grid lines to `right`; [`name`] is above it. A tick whose label has no room
/// has no label.
pub fn vertical(axis: &Axis, x: f64, right: f64) -> String {
    let (mut grid, mut labels) = (String::new(), String::new());
    // Where the last label is.
    let mut last = f64::INFINITY;
    for tick in vertical_ticks(axis) {
        let y = axis.at(tick.value);
        let _ = write!(grid, "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>");
        if (last - y).abs() < SMALL * 1.3 {
            continue;
        }
        last = y;
        let _ = write!(
            labels,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x - 4.0,
            x - 7.0,
            y + 4.0,
            tick.label
        );
    }
    format!(
        "<g class=\"grid\">{grid}</g>\n<g class=\"axis\"><line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
         {labels}</g>\n",
        axis.from, axis.to
    )
}

/// Returns the ticks of a vertical axis.
fn vertical_ticks(axis: &Axis) -> Vec<Tick> {
    axis.ticks(((axis.to - axis.from).abs() / 42.0) as usize + 1)
}

/// Returns where a vertical axis must stand so that its labels have room at its left.
pub fn vertical_room(axis: &Axis) -> f64 {
    vertical_ticks(axis).iter().map(|tick| width(&tick.label, SMALL)).fold(24.0, f64::max) + 9.0
}

/// Writes the name of a vertical axis above it, at the left end of a picture of `room` pixels.
pub fn name(name: &str, room: f64) -> String {
    let name = escape(&cut(name, room, NORMAL));
    format!("<g class=\"axis\"><text class=\"name\" x=\"2\" y=\"13\">{name}</text></g>\n")
}

/// Returns a picture of `width` by `height` pixels; `label` describes it to screen readers.
pub fn svg(width: f64, height: f64, label: &str, content: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
         aria-label=\"{}\">\n{content}</svg>\n",
        escape(label)
    )
}

/// Returns a chart of [`WIDTH`] by `height` pixels, which becomes as wide as its place in the page.
pub fn chart(height: f64, label: &str, content: &str) -> String {
    svg(WIDTH, height, label, content).replacen("<svg ", "<svg class=\"chart\" ", 1)
}

/// The width of a chart, in pixels. This is narrow, so that its text can be read in a narrow window; in a wide one
/// two charts are beside each other, and a little larger.
pub const WIDTH: f64 = 400.0;

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
    fn logarithmic_ticks_are_powers() {
        let labels = |low, high, unit, count| -> Vec<String> {
            let axis = Axis::logarithmic(low, high, 0.0, 100.0).in_unit(unit);
            axis.ticks(count).into_iter().map(|t| t.label).collect()
        };
        let kb = 1024.0;
        assert_eq!(
            labels(256.0 * kb, 4.0 * kb * kb * kb, Unit::Bytes, 7),
            ["256 kB", "1 MB", "4 MB", "16 MB", "64 MB", "256 MB", "1 GB", "4 GB"]
        );
        assert_eq!(labels(0.8, 300.0, Unit::Nanoseconds, 8), ["1", "2", "5", "10", "20", "50", "100", "200"]);
        assert_eq!(labels(0.05, 2e4, Unit::Nanoseconds, 7), ["0.1", "1", "10", "100", "1000", "10000"]);
        assert_eq!(labels(1e-6, 1e-2, Unit::Seconds, 5), ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]);
        // A range too short for powers.
        assert_eq!(labels(3.0, 5.0, Unit::Nanoseconds, 2), ["3", "4", "5"]);
        let axis = Axis::logarithmic(1.0, 100.0, 0.0, 200.0);
        assert_eq!((axis.at(1.0), axis.at(10.0).round(), axis.at(100.0)), (0.0, 100.0, 200.0));
        // On a linear axis bytes are round too.
        let even = Axis::new(0.0, 3.5 * kb * kb, 0.0, 1.0).in_unit(Unit::Bytes);
        let even: Vec<String> = even.ticks(4).into_iter().map(|t| t.label).collect();
        assert_eq!(even, ["0 B", "1 MB", "2 MB", "3 MB"]);
        let tasks = Axis::new(0.0, 4.0, 0.0, 1.0).in_unit(Unit::Count).ticks(8);
        assert_eq!(tasks.iter().map(|t| t.label.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3", "4"]);
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
                let log = Axis::logarithmic(low, high, 0.0, 600.0);
                assert!(log.ticks(6).len() <= 32 && log.at(low.max(0.0)).is_finite() || !low.is_finite());
                let axis = Axis::new(low, high, 0.0, 600.0);
                let ticks = axis.ticks(6);
                assert!((2..=16).contains(&ticks.len()), "{low} {high}: {ticks:?}");
                assert!(ticks.iter().all(|t| (-1.0..601.0).contains(&axis.at(t.value))), "{low} {high}");
                let drawn = horizontal(&axis, 100.0, 0.0, 400.0, "<x>") + &vertical(&axis, 0.0, 100.0);
                assert!(
                    !drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("<x>"),
                    "{drawn}"
                );
            }
        }
    }
}
