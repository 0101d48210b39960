// SPDX-License-Identifier: Apache-2.0
//! A report of an experiment as text.

pub mod csv;

use hugelift_core::printable::printable;
use hugelift_core::table::{self, LEFT, RIGHT};
use hugelift_lab::results::unit::Unit;
use hugelift_lab::results::{Cell, Column, Ended, Report, Table};
use std::fmt::Write as _;

/// Returns all of it but the curves, which [`crate::html::lab`] draws.
pub fn text(report: &Report) -> String {
    let mut out = format!("lab {}{}\n", report.experiment, disturbed(report));
    let _ = writeln!(out, "  {}", printable(&report.title));
    for line in report.machine.lines() {
        let _ = writeln!(out, "  {}", printable(&line));
    }
    let quick = if report.quick { ", quick" } else { "" };
    let _ = writeln!(out, "  {}, {:.1} s{quick}", printable(&report.date), report.seconds);
    for (i, line) in report.outcome.listing.iter().enumerate() {
        out += if i == 0 { "\n" } else { "" };
        let _ = writeln!(out, "{}", printable(line));
    }
    for table in report.outcome.tables.iter().filter(|table| !table.detail) {
        out.push('\n');
        out += &table_text(table);
    }
    let details = report.outcome.tables.iter().filter(|table| table.detail);
    for (i, table) in details.enumerate() {
        let rows = table.rows.len();
        out += if i == 0 { "\n" } else { "" };
        let _ = writeln!(out, "{}: {rows} rows with --csv, --json or --html", printable(&table.caption));
    }
    let ended = how_it_ended(report.ended);
    let notes = ended.into_iter().map(str::to_string).chain(report.outcome.notes.iter().cloned());
    for (i, note) in notes.enumerate() {
        out += if i == 0 { "\n" } else { "" };
        let _ = writeln!(out, "note: {}", printable(&note));
    }
    if !report.outcome.advice.is_empty() {
        let _ = writeln!(out, "\n{}", printable(&report.outcome.advice.join(" ")));
    }
    out
}

/// Returns how disturbed the experiment was, as the rest of a line that begins with its name.
pub(crate) fn disturbed(report: &Report) -> String {
    match &report.disturbance {
        Some(disturbance) => format!(", {}", disturbance.line()),
        None => ": /proc/stat does not say whether other programs disturbed it".into(),
    }
}

/// Returns a note on a report that is not complete.
pub(crate) fn how_it_ended(ended: Ended) -> Option<&'static str> {
    match ended {
        Ended::Complete => None,
        Ended::TimeOver => Some("the time was up before everything was measured: this is a part"),
        Ended::Interrupted => Some("interrupted: this is what was measured until then"),
    }
}

/// Returns the text of a cell.
pub(crate) fn cell(cell: &Cell, unit: Unit) -> String {
    match cell {
        Cell::Number(value) => unit.show(*value),
        Cell::Text(text) => printable(text),
        Cell::Nothing => "-".into(),
    }
}

/// Whether a column holds numbers, which are aligned to the right.
pub(crate) fn is_numbers(column: &Column) -> bool {
    column.unit != Unit::Text
}

fn table_text(table: &Table) -> String {
    let sides = table.columns.iter().map(|column| if is_numbers(column) { RIGHT } else { LEFT });
    let mut text = table::Table::new(sides).indented(2);
    text.row(table.columns.iter().map(|column| printable(&column.unit.with(&column.title))));
    for row in &table.rows {
        text.row(row.iter().zip(&table.columns).map(|(c, column)| cell(c, column.unit)));
    }
    format!("{}\n{text}", printable(&table.caption))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hugelift_lab::results::claim::Claim;
    use hugelift_lab::results::disturbance::Disturbance;
    use hugelift_lab::results::{Hue, Mark, Outcome, Plot, Point, Sample, Scale, Series, Shape, VERSION};

    /// Returns a report with one of each kind of content.
    pub(crate) fn report() -> Report {
        let mut table = Table::new(
            "latency of a load",
            vec![
                Column::new("pages", "pages", Unit::Text),
                Column::new("size_bytes", "working set", Unit::Bytes),
                Column::new("latency_ns", "latency", Unit::Nanoseconds),
            ],
        );
        table.rows.push(vec!["4 kB".into(), (1u64 << 20).into(), 1.5.into()]);
        table.rows.push(vec!["THP".into(), (1u64 << 30).into(), f64::NAN.into()]);
        let points = [(1 << 20, 1.5), (1 << 25, 20.0), (1 << 30, 200.0)];
        let point = |(x, y): (i32, f64)| Point { x: f64::from(x), y, range: Some((y * 0.9, y * 1.2)) };
        let series = |name: &str, hue, shape| Series {
            name: name.into(),
            hue,
            shape,
            points: points.map(point).to_vec(),
        };
        Report {
            version: VERSION,
            experiment: "tlb".into(),
            title: "what a page costs".into(),
            quick: true,
            ended: Ended::Interrupted,
            seconds: 1.25,
            date: "2026-01-31T12:00:00Z".into(),
            machine: hugelift_lab::results::machine::Machine::default(),
            disturbance: Some(Disturbance { load: 0.5, steps: 1, ..Disturbance::default() }),
            outcome: Outcome {
                claims: vec![Claim::word("tlb.load", "known", true)],
                advice: vec!["Use huge pages.".into(), "It is \u{1b}[31mworth it.".into()],
                notes: vec!["no root".into()],
                tables: vec![table],
                plots: vec![Plot {
                    title: "latency <of> a load".into(),
                    x: Scale::logarithmic("working set", Unit::Bytes),
                    y: Scale::logarithmic("latency", Unit::Nanoseconds),
                    series: vec![
                        series("4 kB", Hue::Small, Shape::Line),
                        series("model & bound", Hue::Ideal, Shape::Dashed),
                        series("histogram", Hue::First, Shape::Steps),
                        series("dots", Hue::Second, Shape::Points),
                    ],
                    marks: vec![
                        Mark { x: 2e6, name: "L1".into() },
                        Mark { x: 2.1e6, name: "close to it".into() },
                    ],
                }],
                samples: vec![Sample {
                    name: "load".into(),
                    unit: Unit::Nanoseconds,
                    values: vec![1.0, 2.0],
                }],
                listing: vec!["average:5".into()],
            },
        }
    }

    #[test]
    fn a_report_as_text() {
        let text = text(&report());
        assert!(
            text.starts_with(
                "lab tlb, undisturbed: other programs used 0.0 % of the CPUs, load 0.5\n  what a page costs\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("  pages  working set  latency, ns\n  4 kB          1 MB         1.50\n"),
            "{text}"
        );
        assert!(text.contains("\n\naverage:5\n\nlatency of a load\n"), "{text}");
        assert!(text.contains("  THP           1 GB            -\n"), "{text}");
        assert!(text.contains("\nnote: interrupted") && text.contains("\nnote: no root\n"), "{text}");
        assert!(text.ends_with("\nUse huge pages. It is \\x1b[31mworth it.\n"), "{text}");
    }

    #[test]
    fn details_are_only_counted() {
        let mut report = report();
        report.outcome.tables[0].detail = true;
        let text = text(&report);
        assert!(text.contains("\nlatency of a load: 2 rows with --csv, --json or --html\n"), "{text}");
        assert!(!text.contains("1 GB"), "{text}");
    }

    #[test]
    fn json_is_read_back_the_same() {
        let report = report();
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#""rows":[["4 kB",1048576.0,1.5],["THP",1073741824.0,null]]"#), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
