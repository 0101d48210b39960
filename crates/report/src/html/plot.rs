// SPDX-License-Identifier: Apache-2.0
//! A [`Plot`] as SVG: curves over two axes. The legend is below them, so that it covers no curve.
//!
//! A named place on the x axis is a dotted line with a letter above it, which the legend explains. Letters are
//! small, so however close such places are, their letters are beside each other, in the order of the places.

use crate::html::axis::{Axis, WIDTH, chart, horizontal, name as name_of_axis, vertical, vertical_room};
use crate::html::label::{NORMAL, spread};
use crate::html::legend::{Entry, legend};
use crate::html::page::escape;
use hugelift_lab::results::unit::Unit;
use hugelift_lab::results::{Hue, Plot, Point, Scale, Series, Shape};
use std::fmt::Write as _;

/// Measures of a picture, in pixels.
const HEIGHT: f64 = 276.0;
const RIGHT: f64 = 384.0;
const BOTTOM: f64 = 232.0;
/// The letters of marks, and the room that each takes.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LETTER: f64 = 13.0;
/// The line on which letters stand, and where the dotted lines of their marks begin.
const LETTERS_AT: f64 = 31.0;
const MARKS_AT: f64 = 44.0;

/// The CSS of the pictures.
pub const CSS: &str = include_str!("plot.css");

/// Returns the picture and its legend; empty where there is nothing to draw.
pub fn draw(plot: &Plot) -> String {
    let drawn = |p: &&Point| visible(p.x, &plot.x) && visible(p.y, &plot.y);
    let points = || plot.series.iter().flat_map(|series| &series.points).filter(drawn);
    if points().next().is_none() {
        return String::new();
    }
    let beyond = |p: &Point| p.range.into_iter().flat_map(|(low, high)| [low, high]).chain([p.y]);
    let seen = |y: &f64| visible(*y, &plot.y);
    let top = if plot.marks.is_empty() { 24.0 } else { MARKS_AT };
    let y = axis(&plot.y, points().flat_map(beyond).filter(seen), BOTTOM, top, 0.05);
    let left = vertical_room(&y);
    let x = axis(&plot.x, points().map(|p| p.x), left, RIGHT, 0.0);
    let marks = marks(plot, &x, left);

    let mut content = name_of_axis(&plot.y.unit.with(&plot.y.name), WIDTH - 8.0);
    content += &horizontal(&x, BOTTOM, top, WIDTH, &plot.x.unit.with(&plot.x.name));
    content += &vertical(&y, left, RIGHT);
    for mark in &marks {
        let _ = writeln!(
            content,
            "<g class=\"mark\"><path d=\"M{0:.1} {1:.1}L{2:.1} {MARKS_AT}V{BOTTOM}\"/>\
             <text x=\"{0:.1}\" y=\"{LETTERS_AT}\" text-anchor=\"middle\">{3}<title>{4}</title></text></g>",
            mark.letter_at,
            LETTERS_AT + 3.0,
            mark.at,
            mark.letter,
            escape(&mark.words)
        );
    }
    let mut entries = Vec::new();
    for series in &plot.series {
        content += &curve(series, plot, &x, &y);
        entries.push(entry(series));
    }
    entries.extend(marks.into_iter().map(|mark| {
        let sign = format!("<text x=\"13\" y=\"11\" text-anchor=\"middle\">{}</text>", mark.letter);
        Entry::new("mark", sign, mark.words)
    }));
    chart(HEIGHT, &plot.title, &content) + &legend(&entries)
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

/// A mark with its place, and that of its letter.
struct Placed {
    at: f64,
    letter_at: f64,
    letter: char,
    /// Its name and its value.
    words: String,
}

/// Returns the marks on the axis, as many as there are letters, from left to right.
fn marks(plot: &Plot, x: &Axis, left: f64) -> Vec<Placed> {
    let on = |at: f64| (left - 0.5..=RIGHT + 0.5).contains(&at);
    let mut sorted: Vec<(f64, String)> = plot
        .marks
        .iter()
        .map(|m| (x.at(m.x), format!("{}: {}", m.name, figure(m.x, plot.x.unit))))
        .filter(|(at, _)| on(*at))
        .take(LETTERS.len())
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at: Vec<f64> = sorted.iter().map(|(at, _)| *at).collect();
    let places = spread(&at, LETTER, NORMAL / 2.0, WIDTH - NORMAL / 2.0);
    let letters = LETTERS.chars().zip(places);
    sorted
        .into_iter()
        .zip(letters)
        .map(|((at, words), (letter, letter_at))| Placed { at, letter_at, letter, words })
        .collect()
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
        let _ = write!(out, "<path{} d=\"{path}\"/>", class_of_line(series.shape));
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
            let sign = sign(series.hue, x.at(point.x), y.at(point.y), 2.6);
            let words = escape(&words(series, plot, point));
            let _ = write!(out, "<path class=\"point\" d=\"{sign}\"><title>{words}</title></path>");
        }
    }
    out + "</g>\n"
}

/// Returns the class of a line. Steps have no points, so the form of their line tells them apart.
fn class_of_line(shape: Shape) -> &'static str {
    match shape {
        Shape::Dashed => " class=\"dashed\"",
        Shape::Steps => " class=\"steps\"",
        Shape::Line | Shape::Points => "",
    }
}

/// Returns the path of a point: each hue has a form of its own, for readers to whom colours look alike.
fn sign(hue: Hue, x: f64, y: f64, r: f64) -> String {
    match hue {
        // Circles.
        Hue::Small => {
            format!("M{:.1} {y:.1}a{r} {r} 0 1 0 {1:.1} 0a{r} {r} 0 1 0 -{1:.1} 0Z", x - r, 2.0 * r)
        }
        // Squares.
        Hue::Thp => {
            let half = r * 0.9;
            format!("M{:.1} {:.1}h{2:.1}v{2:.1}h-{2:.1}Z", x - half, y - half, 2.0 * half)
        }
        // Triangles.
        Hue::Hugetlb => {
            let side = r * 1.2;
            format!("M{x:.1} {:.1}l{side:.1} {:.1}h-{:.1}Z", y - side, 2.0 * side, 2.0 * side)
        }
        // Diamonds.
        Hue::Giant => {
            let half = r * 1.3;
            format!("M{x:.1} {:.1}l{half:.1} {half:.1}l-{half:.1} {half:.1}l-{half:.1} -{half:.1}Z", y - half)
        }
        // Triangles that stand on their tips.
        Hue::First => {
            let side = r * 1.2;
            format!("M{x:.1} {:.1}l{side:.1} -{:.1}h-{1:.1}Z", y + side, 2.0 * side)
        }
        // Upright bars.
        Hue::Second => {
            format!("M{:.1} {:.1}h{:.1}v{:.1}h-{2:.1}Z", x - r * 0.5, y - r * 1.3, r, r * 2.6)
        }
        // Crosses.
        Hue::Third => {
            let (arm, thick) = (r * 0.9, r * 0.8);
            format!(
                "M{:.1} {:.1}h{thick:.1}v{arm:.1}h{arm:.1}v{thick:.1}h-{arm:.1}v{arm:.1}h-{thick:.1}v-{arm:.1}h-{arm:.1}\
                 v-{thick:.1}h{arm:.1}Z",
                x - thick / 2.0,
                y - thick / 2.0 - arm
            )
        }
        // Flat ones.
        Hue::Ideal => format!("M{:.1} {:.1}h{:.1}v{:.1}h-{2:.1}Z", x - r, y - r * 0.4, 2.0 * r, 0.8 * r),
    }
}

/// Returns a value with its unit.
fn figure(value: f64, unit: Unit) -> String {
    format!("{} {}", unit.show(value), unit.name()).trim_end().to_string()
}

/// Returns the tooltip of a point.
fn words(series: &Series, plot: &Plot, point: &Point) -> String {
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

/// Returns the entry of a curve in the legend.
fn entry(series: &Series) -> Entry {
    let line = match series.shape {
        Shape::Points => String::new(),
        shape => format!("<path{} d=\"M0 7H26\"/>", class_of_line(shape)),
    };
    let point = match series.shape {
        Shape::Steps => String::new(),
        _ => format!("<path class=\"point\" d=\"{}\"/>", sign(series.hue, 13.0, 7.0, 3.2)),
    };
    Entry::new(&format!("curve {}", class(series.hue)), format!("{line}{point}"), series.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::geometry;
    use crate::lab::tests::report;
    use hugelift_lab::results::Mark;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_shape_is_drawn_and_named() {
        let plot = report().outcome.plots.remove(0);
        let svg = draw(&plot);
        // A legend entry for each curve and each mark.
        assert_eq!(svg.matches("<li>").count(), 6, "{svg}");
        // Three shapes have a line, each also in the legend; one of them is dashed.
        for line in ["<path d=\"M0 7H26\"/>", "<path class=\"steps\" d=\"M0 7H26\"/>"] {
            assert_eq!(svg.matches(line).count(), 1, "{svg}");
        }
        assert_eq!(svg.matches("<path class=\"dashed\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("<title>4 kB\n").count(), 3, "{svg}");
        assert!(svg.contains("working set") && svg.contains("latency, ns"), "{svg}");
        assert!(svg.contains("aria-label=\"latency &lt;of&gt; a load\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        geometry::check(&svg);
    }

    #[test]
    fn each_hue_has_points_of_its_own_form() {
        let hues =
            [Hue::Small, Hue::Thp, Hue::Hugetlb, Hue::Giant, Hue::Ideal, Hue::First, Hue::Second, Hue::Third];
        let signs: BTreeSet<String> = hues.iter().map(|hue| sign(*hue, 10.0, 10.0, 3.0)).collect();
        assert_eq!(signs.len(), hues.len(), "{signs:?}");
    }

    #[test]
    fn a_mark_has_a_letter_and_the_legend_its_name_and_value() {
        let svg = draw(&report().outcome.plots.remove(0));
        for words in ["L1: 1.9 MB", "close to it: 2.0 MB"] {
            assert!(svg.contains(&format!("<span>{words}</span>")), "{words}: {svg}");
        }
    }

    proptest! {
        #[test]
        fn marks_do_not_collide(places in prop::collection::vec(1e6..1.1e9f64, 0..60)) {
            let mut plot = report().outcome.plots.remove(0);
            let mark = |&x: &f64| Mark { x, name: format!("<{x}> & a long name ").repeat(9) };
            plot.marks = places.iter().map(mark).collect();
            geometry::check(&draw(&plot));
        }

        #[test]
        fn any_curves_stay_in_the_picture(
            points in prop::collection::vec((1e-9..1e12f64, 1e-12..1e15f64), 1..80),
            logarithmic in any::<bool>(),
        ) {
            let mut plot = report().outcome.plots.remove(0);
            let point = |&(x, y): &(f64, f64)| Point { x, y, range: Some((y * 0.5, y * 2.0)) };
            plot.series[0].points = points.iter().map(point).collect();
            for scale in [&mut plot.x, &mut plot.y] {
                scale.logarithmic = logarithmic;
                scale.name = "a long <name> ".repeat(12);
            }
            geometry::check(&draw(&plot));
        }
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
