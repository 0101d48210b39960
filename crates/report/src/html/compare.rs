// SPDX-License-Identifier: Apache-2.0
//! A [`Comparison`] as a page: for each variant the ratio of every pair as a point, the estimate with
//! its interval, the distribution, and the runs of both sides.

use crate::comparison::{interval, median, percent, remarks, title, value, verdict};
use crate::html::axis::{Axis, horizontal, svg, vertical};
use crate::html::page::{escape, json, page, table};
use hugelift_core::addr::human_bytes;
use hugelift_measure::comparison::Coverage;
use hugelift_measure::comparison::{Comparison, Figure, Finding, Run, Side, VariantResult, figures};
use std::fmt::Write as _;

/// Measures of a picture, in pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 290.0;
/// Where the points end and the distribution begins.
const MIDDLE: f64 = 720.0;

/// Returns the comparison as one HTML document. It holds the comparison as JSON, in the element
/// `comparison`.
///
/// # Errors
/// The comparison cannot be written as JSON.
pub fn document(comparison: &Comparison) -> serde_json::Result<String> {
    let setting = &comparison.setting;
    let mut body = format!("<p class=\"muted\">{}</p>\n", escape(&setting.host));
    for variant in &comparison.variants {
        let (class, words) = (class(variant), escape(&verdict(comparison, variant)));
        let _ = writeln!(body, "<p class=\"panel verdict {class}\">{words}</p>");
    }
    for remark in remarks(comparison) {
        let _ = writeln!(body, "<p>{}</p>", escape(&remark));
    }
    if let Some(load) = &setting.load {
        let _ = writeln!(body, "<p class=\"muted\">Load: <code>{}</code></p>", escape(load));
    }
    let bare = comparison.bare();
    for variant in &comparison.variants {
        let (Some(bare), Some(side)) = (bare, comparison.side(&variant.name)) else { continue };
        if variant.finding == Finding::NothingToLift {
            continue;
        }
        let _ = writeln!(body, "<h2>{} against bare</h2>", escape(&variant.name));
        // The figure of the verdict is first.
        let rest = figures(setting).iter().filter(|figure| **figure != setting.figure);
        for figure in std::iter::once(&setting.figure).chain(rest) {
            picture(&mut body, comparison, variant, *figure, bare, side);
        }
    }
    let _ = writeln!(body, "<h2>Medians</h2>\n{}", medians(comparison));
    let _ = writeln!(
        body,
        "<p class=\"muted\">Ratios: {}. The sides ran in turn, in random order within each pair. Huge is what \
         /proc/PID/smaps shows to be.</p>",
        escape(comparison.method)
    );
    body += &json("comparison", comparison)?;
    let heading = format!("hugelift compare: {}", setting.command.join(" "));
    Ok(page(&heading, &body, include_str!("compare.css"), ""))
}

fn class(variant: &VariantResult) -> &'static str {
    match variant.finding {
        Finding::Faster { .. } => "faster",
        Finding::Slower { .. } => "slower",
        Finding::NoDifference { .. }
        | Finding::NotHuge { .. }
        | Finding::NotSwitched
        | Finding::TooFew
        | Finding::NothingToLift => "neither",
    }
}

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
        (a > 0.0 && b > 0.0).then(|| Point { bare, other, values: (a, b), ratio: b / a })
    };
    pairs.filter_map(point).collect()
}

fn picture(
    out: &mut String,
    comparison: &Comparison,
    variant: &VariantResult,
    figure: Figure,
    bare: &Side,
    side: &Side,
) {
    let points = points(figure, bare, side);
    let name = title(comparison, figure);
    let Some(ratio) = variant.ratios.iter().find(|ratio| ratio.figure == figure) else { return };
    let caption = format!("{name}, {} / bare: {}", variant.name, interval(ratio));
    let _ = writeln!(out, "<figure>\n<figcaption>{}</figcaption>", escape(&caption));
    let ratios: Vec<f64> = points.iter().map(|point| point.ratio).collect();
    let bounds = ratio.low.into_iter().chain(ratio.high).chain([1.0]).chain(ratios.iter().copied());
    let (low, high) = ends(bounds);
    let y = Axis::new(low, high, BOTTOM, TOP);
    let last = points.iter().map(|point| point.bare.pair).max().unwrap_or(1) as f64;
    let x = Axis::new(0.5, last + 0.5, LEFT, MIDDLE);
    let mut content = horizontal(&x, BOTTOM, TOP, "pair");
    content += &vertical(&y, LEFT, WIDTH - 10.0, &format!("{name}: ratio to bare"));
    if let (Some(low), Some(high)) = (ratio.low, ratio.high) {
        let (top, bottom) = (y.at(high), y.at(low));
        let _ = writeln!(
            content,
            "<rect class=\"interval\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>95 % \
             interval: {low:.4} to {high:.4}</title></rect>",
            WIDTH - 10.0 - LEFT,
            (bottom - top).max(1.0)
        );
    }
    let line = |class: &str, at: f64, words: &str| {
        format!(
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"><title>{words}</title></line>\n",
            WIDTH - 10.0
        )
    };
    content += &line("one", y.at(1.0), "1: no difference");
    content += &line("estimate", y.at(ratio.point), &format!("estimate: {:.4}", ratio.point));
    content += &histogram(&ratios, &y);
    content += &dots(figure, &variant.name, &points, &x, &y);
    *out += &svg(WIDTH, HEIGHT, &caption, &content);
    *out += &runs(figure, &name, bare, side);
    *out += "</figure>\n";
}

/// Draws a dot for each pair, with a tooltip.
fn dots(figure: Figure, variant: &str, points: &[Point], x: &Axis, y: &Axis) -> String {
    let mut out = String::new();
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
        let _ = writeln!(
            out,
            "<circle class=\"pair\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}</title></circle>",
            x.at(point.bare.pair as f64),
            y.at(point.ratio),
            escape(&words)
        );
    }
    out
}

/// Returns the smallest and the largest value with a margin.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let room = (high - low).max(0.01 * high.abs()) * 0.06;
    (low - room, high + room)
}

/// Draws the distribution of the ratios as bars along the axis `y`.
fn histogram(values: &[f64], y: &Axis) -> String {
    if values.is_empty() {
        return String::new();
    }
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    let count = ((values.len() as f64).sqrt().ceil() as usize * 2).clamp(4, 40);
    let width = ((high - low) / count as f64).max(1e-12);
    let mut bins = vec![0usize; count];
    for value in values {
        bins[(((value - low) / width) as usize).min(count - 1)] += 1;
    }
    let most = bins.iter().copied().max().unwrap_or(1).max(1) as f64;
    let scale = Axis::new(0.0, most, MIDDLE + 20.0, WIDTH - 20.0);
    let mut out = String::new();
    for (bin, &n) in bins.iter().enumerate().filter(|(_, n)| **n > 0) {
        let (from, to) = (low + bin as f64 * width, low + (bin + 1) as f64 * width);
        let (top, bottom) = (y.at(to), y.at(from));
        let pairs = if n == 1 { "pair" } else { "pairs" };
        let _ = writeln!(
            out,
            "<rect class=\"bin\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{n} {pairs} from \
             {from:.4} to {to:.4}</title></rect>",
            scale.at(0.0),
            scale.at(n as f64) - scale.at(0.0),
            (bottom - top - 0.5).max(1.0)
        );
    }
    out
}

/// Draws the runs of both sides on one scale.
fn runs(figure: Figure, name: &str, bare: &Side, side: &Side) -> String {
    let values = |side: &Side| -> Vec<(usize, f64)> {
        side.runs.iter().filter_map(|run| Some((run.pair, figure.of(run)?))).collect()
    };
    let rows = [("bare", "bare", values(bare)), (side.name.as_str(), "lifted", values(side))];
    let all = || rows.iter().flat_map(|(_, _, values)| values.iter().map(|(_, v)| *v));
    if all().next().is_none() {
        return String::new();
    }
    let (low, high) = ends(all());
    // The axis of times has the unit that suits the largest.
    let (unit, factor) = match (figure, high) {
        (Figure::Metric | Figure::Rate, _) => (String::new(), 1.0),
        (_, high) if high >= 1.0 => (", s".into(), 1.0),
        (_, high) if high >= 1e-3 => (", ms".into(), 1e3),
        _ => (", µs".into(), 1e6),
    };
    let x = Axis::new(low * factor, high * factor, 130.0, WIDTH - 20.0);
    let mut content = horizontal(&x, 120.0, 10.0, &format!("{name} of each run{unit}"));
    for (row, (name, class, values)) in rows.iter().enumerate() {
        let y = 40.0 + 50.0 * row as f64;
        let short: String = name.chars().take(16).collect();
        let _ = writeln!(
            content,
            "<text x=\"120\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y + 4.0,
            escape(&short)
        );
        for (pair, v) in values {
            // Dots of equal times are shifted so that they do not cover each other.
            let aside = ((pair * 7) % 5) as f64 * 5.0 - 10.0;
            let _ = writeln!(
                content,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}, pair {pair}: {}</title></circle>",
                x.at(v * factor),
                y + aside,
                escape(name),
                value(figure, *v)
            );
        }
    }
    svg(WIDTH, 160.0, &format!("{name} of each run"), &content)
}

fn medians(comparison: &Comparison) -> String {
    let names: Vec<String> =
        figures(&comparison.setting).iter().map(|&figure| title(comparison, figure)).collect();
    let options = match comparison.setting.live {
        Some(_) => "options of hugelift attach",
        None => "options of hugelift run",
    };
    let mut columns: Vec<(&str, bool)> = vec![("side", false), (options, false)];
    columns.extend(names.iter().map(|name| (name.as_str(), true)));
    columns.extend([("peak memory", true), ("huge text", true), ("huge read-only data", true)]);
    let rows: Vec<Vec<String>> = comparison
        .sides
        .iter()
        .map(|side| {
            let options = side.options.as_ref().map_or_else(|| "not lifted".to_string(), |o| o.join(" "));
            let mut row = vec![escape(&side.name), format!("<code>{}</code>", escape(&options))];
            row.extend(figures(&comparison.setting).iter().map(|&figure| {
                median(side, |run| figure.of(run)).map_or_else(String::new, |v| escape(&value(figure, v)))
            }));
            let cover = |c: Coverage| format!("{} of {}", human_bytes(c.huge), human_bytes(c.whole));
            row.push(side.peak_bytes.map_or_else(String::new, human_bytes));
            row.push(side.memory.map_or_else(|| "not seen".into(), |m| cover(m.text)));
            row.push(side.memory.map_or_else(|| "not seen".into(), |m| cover(m.rodata)));
            row
        })
        .collect();
    let widest =
        comparison.variants.iter().flat_map(|v| &v.ratios).filter(|r| r.figure == comparison.setting.figure);
    let widest =
        widest.filter_map(|r| Some((r.high? / r.point).max(r.point / r.low?) - 1.0)).reduce(f64::max);
    let seen = widest.map_or_else(String::new, |w| {
        format!("; half-width of the widest interval of the verdict: {} %", percent(w))
    });
    let pairs = comparison.bare().map_or(0, |bare| bare.runs.len());
    table(&format!("{pairs} pairs{seen}"), &columns, &rows)
}
