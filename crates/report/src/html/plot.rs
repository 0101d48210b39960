// SPDX-License-Identifier: Apache-2.0
//! A [`Plot`] as SVG: curves over two axes. The legend is beside them, so that it covers no curve.

use crate::html::axis::{Axis, horizontal, svg, vertical};
use crate::html::page::escape;
use hugelift_lab::results::unit::Unit;
use hugelift_lab::results::{Hue, Plot, Point, Scale, Series, Shape};
use std::fmt::Write as _;

/// Measures of a picture, in pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 730.0;
const BOTTOM: f64 = 325.0;
/// Height of a row of names of marks; the rows are between the name of the vertical axis and the curves.
const ROW: f64 = 15.0;
/// About the width of a letter in such a name.
const LETTER: f64 = 6.4;
/// Longer names are cut in the legend, where a tooltip has all of them.
const LETTERS: usize = 26;

/// The CSS of the pictures.
pub const CSS: &str = include_str!("plot.css");

/// Returns the picture; empty where there is nothing to draw.
pub fn draw(plot: &Plot) -> String {
    let drawn = |p: &&Point| visible(p.x, &plot.x) && visible(p.y, &plot.y);
    let points = || plot.series.iter().flat_map(|series| &series.points).filter(drawn);
    if points().next().is_none() {
        return String::new();
    }
    let beyond = |p: &Point| p.range.into_iter().flat_map(|(low, high)| [low, high]).chain([p.y]);
    let x = axis(&plot.x, points().map(|p| p.x), LEFT, RIGHT, 0.0);
    let marks = marks(plot, &x);
    let top = 40.0 + ROW * marks.iter().map(|m| m.row + 1).max().unwrap_or(0) as f64;
    let seen = |y: &f64| visible(*y, &plot.y);
    let y = axis(&plot.y, points().flat_map(beyond).filter(seen), BOTTOM, top, 0.05);

    let mut content = horizontal(&x, BOTTOM, top, &plot.x.unit.with(&plot.x.name));
    // The name of the axis is above the names of the marks.
    content += &vertical(&y, LEFT, RIGHT, "");
    let _ = writeln!(
        content,
        "<g class=\"axis\"><text class=\"name\" x=\"{:.1}\" y=\"18\">{}</text></g>",
        8.0,
        escape(&plot.y.unit.with(&plot.y.name))
    );
    for mark in &marks {
        let height = 40.0 + ROW * mark.row as f64;
        let _ = writeln!(
            content,
            "<g class=\"mark\"><line x1=\"{0:.1}\" y1=\"{1:.1}\" x2=\"{0:.1}\" y2=\"{BOTTOM}\"/>\
             <text x=\"{2:.1}\" y=\"{1:.1}\">{3}</text></g>",
            mark.at,
            height,
            mark.text_at,
            escape(mark.name)
        );
    }
    for (i, series) in plot.series.iter().enumerate() {
        content += &curve(series, plot, &x, &y);
        content += &legend(series, i);
    }
    svg(WIDTH, HEIGHT, &plot.title, &content)
}

/// Whether a value has a place on the axis.
fn visible(value: f64, scale: &Scale) -> bool {
    value.is_finite() && (value > 0.0 || !scale.logarithmic)
}

/// Makes an axis from the smallest to the largest of the values, with a margin.
fn axis(scale: &Scale, values: impl Iterator<Item = f64>, from: f64, to: f64, room: f64) -> Axis {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    let axis = if scale.logarithmic {
        let more = (high / low).powf(room).max(1.0 + room);
        Axis::logarithmic(low / more, high * more, from, to)
    } else {
        let low = if scale.from_zero { low.min(0.0) } else { low };
        let more = (high - low) * room;
        Axis::new(if low < 0.0 || !scale.from_zero { low - more } else { low }, high + more, from, to)
    };
    axis.in_unit(scale.unit)
}

/// A mark with its place: its name is in a row where it covers no other name.
struct Placed<'a> {
    at: f64,
    text_at: f64,
    row: usize,
    name: &'a str,
}

fn marks<'a>(plot: &'a Plot, x: &Axis) -> Vec<Placed<'a>> {
    let on = |at: f64| (LEFT..=RIGHT).contains(&at);
    let mut sorted: Vec<(f64, &str)> = plot.marks.iter().map(|m| (x.at(m.x), m.name.as_str())).collect();
    sorted.retain(|(at, _)| on(*at));
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Where each row's last name ends.
    let mut ends: Vec<f64> = Vec::new();
    let place = |(at, name): (f64, &'a str)| {
        let wide = name.chars().count() as f64 * LETTER;
        let text_at = (at + 3.0).min(WIDTH - wide);
        let row = ends.iter().position(|end| *end + 8.0 < text_at).unwrap_or(ends.len());
        if row == ends.len() {
            ends.push(0.0);
        }
        ends[row] = text_at + wide;
        Placed { at, text_at, row, name }
    };
    sorted.into_iter().map(place).collect()
}

fn class(hue: Hue) -> &'static str {
    match hue {
        Hue::Small => "small",
        Hue::Thp => "thp",
        Hue::Hugetlb => "hugetlb",
        Hue::Giant => "giant",
        Hue::Ideal => "ideal",
        Hue::First => "first",
        Hue::Second => "second",
        Hue::Third => "third",
    }
}

fn curve(series: &Series, plot: &Plot, x: &Axis, y: &Axis) -> String {
    let drawn = |p: &&Point| visible(p.x, &plot.x) && visible(p.y, &plot.y);
    let points: Vec<&Point> = series.points.iter().filter(drawn).collect();
    let mut out = format!("<g class=\"curve {}\">", class(series.hue));
    // Writing to a String cannot fail, here and below.
    if series.shape != Shape::Points {
        let mut path = String::new();
        let mut last = None;
        for point in &points {
            let (px, py) = (x.at(point.x), y.at(point.y));
            let _ = match last {
                None => write!(path, "M{px:.1} {py:.1}"),
                Some(_) if series.shape == Shape::Steps => write!(path, "H{px:.1}V{py:.1}"),
                Some(_) => write!(path, "L{px:.1} {py:.1}"),
            };
            last = Some(px);
        }
        let dashed = if series.shape == Shape::Dashed { " class=\"dashed\"" } else { "" };
        let _ = write!(out, "<path{dashed} d=\"{path}\"/>");
    }
    if series.shape != Shape::Steps {
        for point in &points {
            if let Some((low, high)) = point.range.filter(|(l, h)| visible(*l, &plot.y) && h.is_finite()) {
                let px = x.at(point.x);
                let _ = write!(
                    out,
                    "<line class=\"range\" x1=\"{px:.1}\" y1=\"{:.1}\" x2=\"{px:.1}\" y2=\"{:.1}\"/>",
                    y.at(low),
                    y.at(high)
                );
            }
            let _ = write!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"><title>{}</title></circle>",
                x.at(point.x),
                y.at(point.y),
                escape(&words(series, plot, point))
            );
        }
    }
    out + "</g>\n"
}

/// Returns the tooltip of a point.
fn words(series: &Series, plot: &Plot, point: &Point) -> String {
    let figure =
        |value: f64, unit: Unit| format!("{} {}", unit.show(value), unit.name()).trim_end().to_string();
    let mut out = format!(
        "{}\n{}: {}\n{}: {}",
        series.name,
        plot.x.name,
        figure(point.x, plot.x.unit),
        plot.y.name,
        figure(point.y, plot.y.unit)
    );
    if let Some((low, high)) = point.range {
        let _ = write!(out, " ({} to {})", plot.y.unit.show(low), figure(high, plot.y.unit));
    }
    out
}

fn legend(series: &Series, row: usize) -> String {
    let y = 58.0 + 22.0 * row as f64;
    let (x, end) = (RIGHT + 22.0, RIGHT + 48.0);
    let sign = match series.shape {
        Shape::Points => format!("<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>", (x + end) / 2.0),
        Shape::Dashed => format!("<path class=\"dashed\" d=\"M{x:.1} {y:.1}H{end:.1}\"/>"),
        Shape::Line | Shape::Steps => format!("<path d=\"M{x:.1} {y:.1}H{end:.1}\"/>"),
    };
    let mut name: String = series.name.chars().take(LETTERS).collect();
    if series.name.chars().count() > LETTERS {
        name.pop();
        name.push('…');
    }
    format!(
        "<g class=\"legend curve {}\">{sign}<text x=\"{:.1}\" y=\"{:.1}\">{}<title>{}</title></text></g>\n",
        class(series.hue),
        end + 8.0,
        y + 4.0,
        escape(&name),
        escape(&series.name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::report;

    #[test]
    fn every_shape_is_drawn_and_named() {
        let plot = report().outcome.plots.remove(0);
        let svg = draw(&plot);
        assert_eq!(svg.matches("class=\"legend").count(), 4, "{svg}");
        // Three shapes have a line, each also in the legend.
        assert_eq!(svg.matches("<path").count(), 6, "{svg}");
        assert_eq!(svg.matches("<title>4 kB\n").count(), 3, "{svg}");
        assert!(svg.contains("working set") && svg.contains("latency, ns"), "{svg}");
        assert!(svg.contains("aria-label=\"latency &lt;of&gt; a load\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn marks_that_are_close_have_rows_of_their_own() {
        let plot = report().outcome.plots.remove(0);
        let x = axis(&plot.x, [1e6, 1e9].into_iter(), LEFT, RIGHT, 0.0);
        let rows: Vec<usize> = marks(&plot, &x).iter().map(|m| m.row).collect();
        assert_eq!(rows, [0, 1]);
    }

    #[test]
    fn nothing_to_draw_is_no_picture() {
        let mut plot = report().outcome.plots.remove(0);
        for series in &mut plot.series {
            series.points.iter_mut().for_each(|p| p.y = -1.0);
        }
        assert_eq!(draw(&plot), "");
        plot.series.clear();
        assert_eq!(draw(&plot), "");
    }
}
