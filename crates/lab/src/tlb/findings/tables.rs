// SPDX-License-Identifier: Apache-2.0
//! The tables and plots of the curves.

use super::saved::Saved;
use crate::memory::Pages;
use crate::results::unit::Unit;
use crate::results::{Column, Hue, Mark, Plot, Point, Scale, Series, Shape, Table};
use crate::tlb::access::Access;
use crate::tlb::curve::Curve;
use crate::tlb::naming::{Named, What};
use crate::tlb::summary;

/// The name of the curve of adjacent lines.
const CACHES: &str = "caches alone";

pub(super) fn name(pages: Option<Pages>) -> String {
    pages.map_or_else(|| CACHES.into(), Pages::name)
}

pub(super) fn table_of_saved(saved: &[Saved]) -> Table {
    let mut table = Table::new(
        "saved by huge pages if all of the memory is in use; least and most are those of a sweep",
        vec![
            Column::new("what", "what", Unit::Text),
            Column::new("access", "access", Unit::Text),
            Column::new("size_bytes", "size", Unit::Bytes),
            Column::new("small_ns", "small pages", Unit::Nanoseconds),
            Column::new("best_pages", "fastest on", Unit::Text),
            Column::new("best_ns", "time there", Unit::Nanoseconds),
            Column::new("saved_ns", "saved", Unit::Nanoseconds),
            Column::new("saved_percent", "saved", Unit::Percent),
            Column::new("least_percent", "least", Unit::Percent),
            Column::new("most_percent", "most", Unit::Percent),
        ],
    );
    for s in saved {
        let (least, most) = s.range();
        table.rows.push(vec![
            s.what.as_str().into(),
            s.access.name().into(),
            s.bytes.into(),
            s.small.into(),
            s.best.0.name().into(),
            s.best.1.into(),
            (s.small - s.best.1).into(),
            s.middle().into(),
            least.into(),
            most.into(),
        ]);
    }
    table
}

pub(super) fn table_of_knees(found: &[Named]) -> Table {
    let mut table = Table::new(
        "where an access becomes slower in most sweeps, and whose reach ends there",
        vec![
            Column::new("access", "access", Unit::Text),
            Column::new("pages", "pages", Unit::Text),
            Column::new("reach_of", "reach of", Unit::Text),
            Column::new("size_bytes", "working set", Unit::Bytes),
            Column::new("entries", "entries", Unit::Count),
            Column::new("stated_entries", "CPU states", Unit::Count),
            Column::new("seen", "sweeps", Unit::Text),
            Column::new("before_ns", "before", Unit::Nanoseconds),
            Column::new("until_bytes", "until", Unit::Bytes),
            Column::new("after_ns", "after", Unit::Nanoseconds),
        ],
    );
    for n in found {
        let knee = &n.found.knee;
        table.rows.push(vec![
            n.access.name().into(),
            name(n.pages).into(),
            words(n.what).into(),
            knee.reach().into(),
            // For a cache these are lines.
            n.entries().map(f64::round).into(),
            n.stated.into(),
            format!("{} of {}", n.found.seen, n.found.sweeps).into(),
            knee.before.into(),
            knee.until.into(),
            knee.after.into(),
        ]);
    }
    table
}

pub(super) fn table_of_curves(curves: &[Curve]) -> Table {
    let mut table = Table::detail(
        "each working set",
        vec![
            Column::new("access", "access", Unit::Text),
            Column::new("pages", "pages", Unit::Text),
            Column::new("size_bytes", "working set", Unit::Bytes),
            Column::new("median_ns", "median of the sweeps", Unit::Nanoseconds),
            Column::new("low_ns", "lowest", Unit::Nanoseconds),
            Column::new("high_ns", "highest", Unit::Nanoseconds),
        ],
    );
    for curve in curves {
        for p in summary::points(&curve.sweeps) {
            table.rows.push(vec![
                curve.access.name().into(),
                name(curve.pages).into(),
                p.bytes.into(),
                p.median.into(),
                p.range.0.into(),
                p.range.1.into(),
            ]);
        }
    }
    table
}

pub(super) fn plot(access: Access, curves: &[Curve], found: &[Named]) -> Option<Plot> {
    let series = |curve: &Curve| Series {
        name: name(curve.pages),
        hue: curve.pages.map_or(Hue::Ideal, Pages::hue),
        shape: if curve.pages.is_none() { Shape::Dashed } else { Shape::Line },
        points: summary::points(&curve.sweeps)
            .iter()
            .map(|p| Point { x: p.bytes, y: p.median, range: Some(p.range) })
            .collect(),
    };
    let series: Vec<Series> = curves.iter().filter(|c| c.access == access).map(series).collect();
    let shown = found.iter().filter(|n| n.access == access && n.what != What::Unknown);
    let shown = shown.filter(|n| n.pages.is_none_or(|p| p == Pages::Small));
    let mark = |n: &Named| {
        let pages = if n.pages.is_some() { format!(", {}", name(n.pages)) } else { String::new() };
        Mark { x: n.found.knee.reach(), name: format!("{}{pages}", words(n.what)) }
    };
    (!series.is_empty()).then(|| Plot {
        title: format!("time of a {}: one in each 4 kB, in random order", access.name()),
        x: Scale::logarithmic("working set", Unit::Bytes),
        y: Scale::logarithmic(&format!("time of a {}", access.name()), Unit::Nanoseconds),
        series,
        marks: shown.map(mark).collect(),
    })
}

fn words(what: What) -> String {
    match what {
        What::Tlb { level, coalesced: false } => format!("L{level} TLB"),
        What::Tlb { level, coalesced: true } => format!("L{level} TLB, coalesced"),
        What::ByOrder(level) => format!("L{level} TLB by order, not sure"),
        What::Cache(level) => format!("L{level} cache"),
        What::Unknown => "unknown cause".into(),
    }
}
