// SPDX-License-Identifier: Apache-2.0
//! The ratio of every pair in the order of the runs, with the estimate and its interval; beside them how often
//! each ratio occurs.
//!
//! ```text
//!   ratio to bare                        pairs
//!      ▲ 1 above: 50.0
//!   2 -|  ▲        .                   |
//!   1 -|- - - - - - - - - - - - - - - -|- - -
//!      |//.//////////./////////.///////|//// 0.588
//!  0.5-|====.====.========.==.==.=.====|=### 0.502
//!      |///////./////.//////.///////./.|//// 0.420
//!      '--1----5----10-------------'   0   3
//! ```

use crate::comparison::value;
use crate::html::axis::{Axis, WIDTH, chart, horizontal, name as name_of_axis, vertical, vertical_room};
use crate::html::label::{SMALL, cut, spread};
use crate::html::legend::Entry;
use crate::html::page::escape;
use crate::html::range::{Place, Shown};
use hugelift_lab::results::unit::Unit;
use hugelift_measure::comparison::{Figure, Ratio, Run, Side};
use std::fmt::Write as _;

/// Measures of the picture, in pixels.
const HEIGHT: f64 = 272.0;
const BOTTOM: f64 = 228.0;
/// Where the points end, and where the distribution begins and ends.
const POINTS_END: f64 = 258.0;
const BINS: (f64, f64) = (276.0, 340.0);
/// The height of the strip, at an end of the axis, of the marks of what is beyond it.
const STRIP: f64 = 16.0;

/// The ratio of one pair.
struct Point<'a> {
    bare: &'a Run,
    other: &'a Run,
    values: (f64, f64),
    ratio: f64,
}

fn points<'a>(figure: Figure, bare: &'a Side, side: &'a Side) -> Vec<Point<'a>> {
    let pairs = bare.runs.iter().zip(&side.runs);
    let point = |(bare, other): (&'a Run, &'a Run)| {
        let (a, b) = (figure.of(bare)?, figure.of(other)?);
        let ratio = b / a;
        (a > 0.0 && b > 0.0 && ratio > 1e-99 && ratio < 1e99).then_some(Point {
            bare,
            other,
            values: (a, b),
            ratio,
        })
    };
    pairs.filter_map(point).collect()
}

/// Draws the pairs of a figure, whose name is `name`. Returns the picture and its legend.
pub(super) fn draw(
    caption: &str,
    figure: Figure,
    name: &str,
    ratio: &Ratio,
    bare: &Side,
    side: &Side,
) -> (String, Vec<Entry>) {
    let points = points(figure, bare, side);
    let ratios: Vec<f64> = points.iter().map(|point| point.ratio).collect();
    let usable = |v: &f64| *v > 1e-99 && *v < 1e99;
    let interval = ratio.low.zip(ratio.high).filter(|(low, high)| usable(low) && usable(high));
    let estimate = Some(ratio.point).filter(usable);
    let fixed: Vec<f64> = estimate.into_iter().chain([1.0]).collect();
    let wanted: Vec<f64> = interval.into_iter().flat_map(|(low, high)| [low, high]).collect();
    let shown = Shown::new(&fixed, &ratios, &wanted);
    let beyond = Beyond::new(&shown, &ratios);

    let mut top = 24.0;
    if !beyond.words.is_empty() {
        top += 14.0;
    }
    let strip = |any: bool| if any { STRIP } else { 0.0 };
    let y = shown.axis(BOTTOM - strip(beyond.below > 0), top + strip(beyond.above > 0), 1.0);
    let left = vertical_room(&y);
    let last = points.iter().map(|point| point.bare.pair).max().unwrap_or(1) as f64;
    let x = Axis::new(0.5, last + 0.5, left, POINTS_END).in_unit(Unit::Count);

    let mut content = name_of_axis(&format!("ratio to bare: {name}"), BINS.0 - 8.0);
    let _ = writeln!(
        content,
        "<g class=\"axis\"><text x=\"{:.1}\" y=\"13\" text-anchor=\"end\">pairs</text></g>",
        BINS.1
    );
    if !beyond.words.is_empty() {
        let words = escape(&cut(&beyond.words, WIDTH - left, SMALL));
        let _ =
            writeln!(content, "<text class=\"note\" x=\"{left:.1}\" y=\"{:.1}\">{words}</text>", top - 7.0);
    }
    content += &horizontal(&x, BOTTOM, top, BINS.0 - 10.0, "pair");
    content += &vertical(&y, left, BINS.1);
    let end = BINS.1;
    if let Some((low, high)) = interval {
        let (high_at, low_at) = (y.at(shown.clamp(high)), y.at(shown.clamp(low)));
        let _ = writeln!(
            content,
            "<rect class=\"interval\" x=\"{left:.1}\" y=\"{high_at:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>95 % \
             interval: {low:.4} to {high:.4}</title></rect>",
            end - left,
            (low_at - high_at).max(1.0)
        );
    }
    let line = |class: &str, at: f64, words: &str| {
        format!(
            "<line class=\"{class}\" x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{end:.1}\" y2=\"{at:.1}\"><title>{words}\
             </title></line>\n"
        )
    };
    content += &line("one", y.at(1.0), "1: no difference");
    content += &histogram(&ratios, &shown, &y);
    if let Some(estimate) = estimate {
        content += &line("estimate", y.at(estimate), &format!("estimate: {estimate:.4}"));
    }
    content += &dots(figure, &side.name, &points, &x, &y, &shown, top);
    content += &labels(estimate, interval, &shown, &y, top);
    (chart(HEIGHT, caption, &content), entries(figure, name, estimate, interval, &beyond))
}

/// What is beyond the axis.
struct Beyond {
    below: usize,
    above: usize,
    /// What a note in the picture says; empty if nothing is beyond the axis.
    words: String,
}

impl Beyond {
    fn new(shown: &Shown, ratios: &[f64]) -> Beyond {
        let at = |place| ratios.iter().copied().filter(move |ratio| shown.place(*ratio) == place);
        let (above, below) = (at(Place::Above).count(), at(Place::Below).count());
        let mut words = Vec::new();
        let range = |low: f64, high: f64| match (short(low), short(high)) {
            (low, high) if low == high => low,
            (low, high) => format!("{low} to {high}"),
        };
        let least = |place| at(place).fold(f64::INFINITY, f64::min);
        let most = |place| at(place).fold(0.0, f64::max);
        if above > 0 {
            words.push(format!("▲ {above} above: {}", range(least(Place::Above), most(Place::Above))));
        }
        if below > 0 {
            words.push(format!("▼ {below} below: {}", range(least(Place::Below), most(Place::Below))));
        }
        Beyond { below, above, words: words.join("  ") }
    }
}

/// Draws a dot for each pair, with a tooltip; for a pair beyond the axis a triangle at its end.
fn dots(
    figure: Figure,
    variant: &str,
    points: &[Point],
    x: &Axis,
    y: &Axis,
    shown: &Shown,
    top: f64,
) -> String {
    let mut out = String::from("<g class=\"points\">\n");
    let radius = if points.len() > 60 { 2.4 } else { 3.4 };
    for point in points {
        let first = if point.bare.position < point.other.position { "bare" } else { variant };
        let words = format!(
            "pair {}: {:.4}\nbare {}\n{} {}\n{first} ran first",
            point.bare.pair,
            point.ratio,
            value(figure, point.values.0),
            variant,
            value(figure, point.values.1)
        );
        let at = x.at(point.bare.pair as f64);
        let sign = match shown.place(point.ratio) {
            Place::On => {
                format!("circle class=\"pair\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"{radius}\"", y.at(point.ratio))
            }
            Place::Above => format!("path class=\"pair beyond\" d=\"{}\"", triangle(at, top + 3.0, 9.0)),
            Place::Below => format!("path class=\"pair beyond\" d=\"{}\"", triangle(at, BOTTOM - 3.0, -9.0)),
        };
        let element = sign.split(' ').next().unwrap_or_default();
        let _ = writeln!(out, "<{sign}><title>{}</title></{element}>", escape(&words));
    }
    out + "</g>\n"
}

/// Returns the path of a triangle with its tip at the point and its base `height` pixels below.
fn triangle(x: f64, y: f64, height: f64) -> String {
    let half = height.abs() / 2.0;
    format!("M{x:.1} {y:.1}L{:.1} {:.1}L{:.1} {:.1}Z", x - half, y + height, x + half, y + height)
}

/// Draws the distribution of the ratios as bars along the axis `y`.
fn histogram(ratios: &[f64], shown: &Shown, y: &Axis) -> String {
    let count = ((ratios.len() as f64).sqrt().ceil() as usize * 2).clamp(4, 40);
    let bins = shown.bins(ratios, count);
    let most = bins.iter().map(|(_, n)| *n).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let at = |n: usize| BINS.0 + (BINS.1 - BINS.0) * n as f64 / most as f64;
    let mut out = String::new();
    for &((from, to), n) in bins.iter().filter(|(_, n)| *n > 0) {
        let (top, bottom) = (y.at(to), y.at(from));
        let pairs = if n == 1 { "pair" } else { "pairs" };
        // At least two pixels, around the middle, if all ratios are the same.
        let height = (bottom - top - 0.5).max(2.0);
        let _ = writeln!(
            out,
            "<rect class=\"bin\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{n} {pairs} \
             from {from:.4} to {to:.4}</title></rect>",
            BINS.0,
            (top + bottom - height) / 2.0,
            at(n) - BINS.0
        );
    }
    let _ = writeln!(
        out,
        "<g class=\"axis\"><line x1=\"{0:.1}\" y1=\"{BOTTOM:.1}\" x2=\"{1:.1}\" y2=\"{BOTTOM:.1}\"/>\
         <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">0</text>\
         <text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{most}</text></g>",
        BINS.0,
        BINS.1,
        BOTTOM + 17.0
    );
    out
}

/// Writes the estimate and the ends of the interval at the right of the picture, at their heights, or as near as
/// there is room.
fn labels(estimate: Option<f64>, interval: Option<(f64, f64)>, shown: &Shown, y: &Axis, top: f64) -> String {
    let (low, high) = interval.unzip();
    let all = [(high, "end"), (estimate, "middle"), (low, "end")];
    let all: Vec<(f64, &str)> = all.into_iter().filter_map(|(v, class)| Some((v?, class))).collect();
    let at: Vec<f64> = all.iter().map(|(v, _)| y.at(shown.clamp(*v))).collect();
    let at = spread(&at, SMALL * 1.25, top + 4.0, BOTTOM - 4.0);
    let mut out = String::new();
    for ((value, class), at) in all.into_iter().zip(at) {
        let arrow = match shown.place(value) {
            Place::Above => "▲",
            Place::Below => "▼",
            Place::On => "",
        };
        let words = cut(&format!("{arrow}{}", short(value)), WIDTH - BINS.1 - 6.0, SMALL);
        let _ = writeln!(
            out,
            "<text class=\"figure {class}\" x=\"{:.1}\" y=\"{:.1}\">{words}</text>",
            BINS.1 + 6.0,
            at + 4.0
        );
    }
    out
}

fn entries(
    figure: Figure,
    name: &str,
    estimate: Option<f64>,
    interval: Option<(f64, f64)>,
    beyond: &Beyond,
) -> Vec<Entry> {
    let mut all = vec![Entry::new(
        "",
        "<circle class=\"pair\" cx=\"13\" cy=\"7\" r=\"3.4\"/>",
        "a pair; bars: how many pairs",
    )];
    if beyond.above + beyond.below > 0 {
        let sign = format!(
            "<path class=\"pair beyond\" d=\"{}\"/><path class=\"pair beyond\" d=\"{}\"/>",
            triangle(8.0, 2.5, 9.0),
            triangle(18.0, 11.5, -9.0)
        );
        all.push(Entry::new("", sign, "a pair beyond the axis"));
    }
    if let Some(estimate) = estimate {
        let sign = "<line class=\"estimate\" x1=\"0\" y1=\"7\" x2=\"26\" y2=\"7\"/>";
        all.push(Entry::new("", sign, format!("estimate {}", short(estimate))));
    }
    if let Some((low, high)) = interval {
        let sign = "<rect class=\"interval\" x=\"0\" y=\"1\" width=\"26\" height=\"12\"/>";
        all.push(Entry::new("", sign, format!("95 % interval {} to {}", short(low), short(high))));
    }
    let more = match figure {
        Figure::Metric | Figure::Rate => format!("above it more {name}"),
        _ => format!("below it less {name}"),
    };
    let sign = "<line class=\"one\" x1=\"0\" y1=\"7\" x2=\"26\" y2=\"7\"/>";
    all.push(Entry::new("", sign, format!("1: as bare; {more}")));
    all
}

/// Returns a ratio in few characters.
fn short(ratio: f64) -> String {
    match ratio {
        r if !(1e-3..1e5).contains(&r) => format!("{r:.1e}"),
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 10.0 => format!("{r:.1}"),
        r if r >= 0.1 => format!("{r:.3}"),
        r => format!("{r:.4}"),
    }
}
