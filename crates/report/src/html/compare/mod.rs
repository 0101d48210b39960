// SPDX-License-Identifier: Apache-2.0
//! A [`Comparison`] as a page: for each variant the ratio of every pair as a point, the estimate with
//! its interval, the distribution, and the runs of both sides.

mod pairs;
mod runs;

use crate::comparison::{interval, median, percent, remarks, title, value, verdict};
use crate::html::legend::legend;
use crate::html::page::{escape, json, page, table};
use hugelift_core::addr::human_bytes;
use hugelift_measure::comparison::Coverage;
use hugelift_measure::comparison::{Comparison, Figure, Finding, Ratio, Side, VariantResult, figures};
use std::fmt::Write as _;

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
        "<p class=\"muted\">Ratios: {}. Their axis is logarithmic: half the time is as far from 1 as twice the time. \
         The sides ran in turn, in random order within each pair. Huge is what /proc/PID/smaps shows to be.</p>",
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

/// Draws one figure of a variant: the pairs, and beside or below them the runs.
fn picture(
    out: &mut String,
    comparison: &Comparison,
    variant: &VariantResult,
    figure: Figure,
    bare: &Side,
    side: &Side,
) {
    let Some(ratio) = variant.ratios.iter().find(|ratio| ratio.figure == figure) else { return };
    let name = title(comparison, figure);
    let caption = format!("{name}, {} / bare: {}", variant.name, interval(ratio));
    let (pairs, mut entries) = pairs::draw(&caption, figure, &name, ratio, bare, side);
    let runs = runs::draw(figure, &name, bare, side);
    if !runs.is_empty() {
        entries.push(runs::median_entry());
    }
    let _ = writeln!(
        out,
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"charts\">\n{pairs}{runs}</div>\n{}</figure>",
        escape(&caption),
        legend(&entries)
    );
}

/// Returns the table of medians: a column for each side, so that it is not wider than a narrow window.
fn medians(comparison: &Comparison) -> String {
    let setting = &comparison.setting;
    let sides = &comparison.sides;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |title: &str, cell: &dyn Fn(&Side) -> String| {
        rows.push(std::iter::once(escape(title)).chain(sides.iter().map(cell)).collect());
    };
    let options = match setting.live {
        Some(_) => "options of hugelift attach",
        None => "options of hugelift run",
    };
    row(options, &|side| match &side.options {
        Some(options) => format!("<code>{}</code>", escape(&options.join(" "))),
        None => "not lifted".into(),
    });
    for &figure in figures(setting) {
        row(&title(comparison, figure), &|side| {
            median(side, |run| figure.of(run)).map_or_else(|| "-".into(), |v| escape(&value(figure, v)))
        });
    }
    let cover = |c: Coverage| format!("{} of {}", human_bytes(c.huge), human_bytes(c.whole));
    row("peak memory", &|side| side.peak_bytes.map_or_else(|| "-".into(), human_bytes));
    row("huge text", &|side| side.memory.map_or_else(|| "not seen".into(), |m| cover(m.text)));
    row("huge read-only data", &|side| side.memory.map_or_else(|| "not seen".into(), |m| cover(m.rodata)));

    let ratios = comparison.variants.iter().flat_map(|v| &v.ratios).filter(|r| r.figure == setting.figure);
    let half_width = |r: &Ratio| Some((r.high? / r.point).max(r.point / r.low?) - 1.0);
    let seen = ratios.filter_map(half_width).reduce(f64::max).map_or_else(String::new, |widest| {
        format!("; half-width of the widest interval of the verdict: {} %", percent(widest))
    });
    let pairs = comparison.bare().map_or(0, |bare| bare.runs.len());
    let columns: Vec<(&str, bool)> =
        std::iter::once(("", false)).chain(sides.iter().map(|side| (side.name.as_str(), true))).collect();
    table(&format!("{pairs} pairs{seen}"), &columns, &rows)
}

#[cfg(test)]
mod tests;
