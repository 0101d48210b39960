// SPDX-License-Identifier: Apache-2.0
//! The runs of both sides on one scale, with the median of each.

use crate::comparison::value;
use crate::html::axis::{WIDTH, chart, horizontal};
use crate::html::label::{NORMAL, cut, width};
use crate::html::legend::Entry;
use crate::html::page::escape;
use crate::html::range::{Place, Shown};
use hugelift_lab::results::unit::Unit;
use hugelift_measure::comparison::{Figure, Side};
use hugelift_measure::stats;
use std::fmt::Write as _;

/// Measures of the picture, in pixels.
const HEIGHT: f64 = 190.0;
const BOTTOM: f64 = 148.0;
const LEFT: f64 = 20.0;
const RIGHT: f64 = 380.0;
/// The height of a side: its name, and under it its runs.
const ROW: f64 = 68.0;
/// The width of the strip, at an end of the axis, of the marks of what is beyond it.
const STRIP: f64 = 14.0;

/// Draws the runs; empty if no run has the figure.
pub(super) fn draw(figure: Figure, name: &str, bare: &Side, side: &Side) -> String {
    let values = |side: &Side| -> Vec<(usize, f64)> {
        let value = |run| figure.of(run).filter(|v| v.abs() < 1e99);
        side.runs.iter().filter_map(|run| Some((run.pair, value(run)?))).collect()
    };
    let rows = [("bare", "bare", values(bare)), (side.name.as_str(), "lifted", values(side))];
    let of = |row: &(_, _, Vec<(usize, f64)>)| row.2.iter().map(|(_, v)| *v).collect::<Vec<f64>>();
    let all: Vec<f64> = rows.iter().flat_map(of).collect();
    if all.is_empty() {
        return String::new();
    }
    let medians: Vec<f64> = rows.iter().filter_map(|row| stats::median(&of(row)).ok()).collect();
    let shown = Shown::new(&medians, &all, &[]);
    // The axis of times has the unit that suits the largest.
    let (unit, scale) = match (figure, all.iter().map(|v| shown.clamp(*v)).fold(0.0, f64::max)) {
        (Figure::Metric | Figure::Rate, _) => ("", 1.0),
        (_, high) if high >= 1.0 => (", s", 1.0),
        (_, high) if high >= 1e-3 => (", ms", 1e3),
        _ => (", µs", 1e6),
    };
    let any = |place| all.iter().any(|v| shown.place(*v) == place);
    let strip = |place| if any(place) { STRIP } else { 0.0 };
    let x = shown.axis(LEFT + strip(Place::Below), RIGHT - strip(Place::Above), scale);
    let mut content = horizontal(&x, BOTTOM, 8.0, WIDTH, &format!("{name} of each run{unit}"));
    for (i, row @ (name, class, values)) in rows.iter().enumerate() {
        let top = 4.0 + ROW * i as f64;
        let median = stats::median(&of(row)).ok();
        content += &heading(top + 14.0, name, figure, median, values, &shown);
        let middle = top + 42.0;
        if let Some(median) = median {
            let at = x.at(median * scale);
            let _ = writeln!(
                content,
                "<line class=\"median\" x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>",
                middle - 19.0,
                middle + 19.0
            );
        }
        for (pair, v) in values {
            // Dots of equal times are shifted so that they do not cover each other.
            let y = middle + ((pair * 7) % 5) as f64 * 6.0 - 12.0;
            let sign = match shown.place(*v) {
                Place::On => {
                    format!("circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\"", x.at(v * scale))
                }
                Place::Below => format!("path class=\"{class} beyond\" d=\"{}\"", arrow(LEFT + 2.0, y, 8.0)),
                Place::Above => {
                    format!("path class=\"{class} beyond\" d=\"{}\"", arrow(RIGHT - 2.0, y, -8.0))
                }
            };
            let element = sign.split(' ').next().unwrap_or_default();
            let _ = writeln!(
                content,
                "<{sign}><title>{}, pair {pair}: {}</title></{element}>",
                escape(name),
                value(figure, *v)
            );
        }
    }
    chart(HEIGHT, &format!("{name} of each run"), &content)
}

/// Returns what the line at a median means.
pub(super) fn median_entry() -> Entry {
    Entry::new("", "<line class=\"median\" x1=\"13\" y1=\"0\" x2=\"13\" y2=\"14\"/>", "the median of a side")
}

/// Writes the name of a side, its median, and how many runs are beyond the axis.
fn heading(
    y: f64,
    name: &str,
    figure: Figure,
    median: Option<f64>,
    values: &[(usize, f64)],
    shown: &Shown,
) -> String {
    let mut words = median.map_or_else(|| ": no runs".into(), |v| format!(": median {}", value(figure, v)));
    for (place, sign) in [(Place::Below, "◀"), (Place::Above, "▶")] {
        let beyond = values.iter().map(|(_, v)| *v).filter(|v| shown.place(*v) == place);
        let farthest = beyond.clone().reduce(if place == Place::Below { f64::min } else { f64::max });
        let Some(farthest) = farthest else { continue };
        let farthest = match figure {
            Figure::Metric | Figure::Rate => value(figure, farthest),
            _ => Unit::Seconds.show(farthest),
        };
        let _ = match beyond.count() {
            1 => write!(words, "  {sign} {farthest}"),
            count => write!(words, "  {sign} {count}: to {farthest}"),
        };
    }
    let room = WIDTH - LEFT - 4.0;
    let words = cut(&words, room - 40.0, NORMAL);
    let name = cut(name, room - width(&words, NORMAL), NORMAL);
    format!("<text class=\"side\" x=\"{LEFT:.1}\" y=\"{y:.1}\">{}{}</text>\n", escape(&name), escape(&words))
}

/// Returns the path of a triangle with its tip at the point and its base `length` pixels to the right.
fn arrow(x: f64, y: f64, length: f64) -> String {
    let half = length.abs() / 2.0;
    format!("M{x:.1} {y:.1}L{:.1} {:.1}L{:.1} {:.1}Z", x + length, y - half, x + length, y + half)
}
