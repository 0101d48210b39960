// SPDX-License-Identifier: Apache-2.0
//! Reports of experiments as one page: the machine, the advice, the charts, the tables.

use crate::html::page::{escape, json, page, table};
use crate::html::plot;
use crate::lab::{cell, disturbed, how_it_ended, is_numbers};
use hugelift_lab::results::{Report, Table};
use std::fmt::Write as _;

/// Tables with more rows are folded.
const LONG: usize = 24;

/// Returns one HTML document. It holds the reports as JSON, a list in the element `reports`.
///
/// # Errors
/// A report cannot be written as JSON.
pub fn document(reports: &[Report]) -> serde_json::Result<String> {
    let mut body = String::new();
    // Writing to a String cannot fail, here and below.
    if let [first, _, ..] = reports {
        machine(&mut body, first);
        body += "<nav><ul>\n";
        for report in reports {
            let name = escape(&report.experiment);
            let _ = writeln!(body, "<li><a href=\"#{name}\">{name}</a>: {}</li>", escape(&report.title));
        }
        body += "</ul></nav>\n";
    }
    for report in reports {
        section(&mut body, report, reports.len() > 1);
    }
    body += &json("reports", &reports)?;
    let title = match reports {
        [one] => format!("hugelift lab {}: {}", one.experiment, one.title),
        _ => "hugelift lab: what huge pages do on this machine".to_string(),
    };
    Ok(page(&title, &body, &(plot::CSS.to_string() + include_str!("lab.css")), ""))
}

fn machine(out: &mut String, report: &Report) {
    for line in report.machine.lines() {
        let _ = writeln!(out, "<p class=\"muted\">{}</p>", escape(&line));
    }
}

fn section(out: &mut String, report: &Report, among_others: bool) {
    let _ = writeln!(out, "<section id=\"{}\">", escape(&report.experiment));
    if among_others {
        let _ = writeln!(out, "<h2>lab {}: {}</h2>", escape(&report.experiment), escape(&report.title));
    } else {
        machine(out, report);
    }
    let quick = if report.quick { ", quick" } else { "" };
    let name = escape(&report.experiment);
    let _ = writeln!(out, "<p class=\"muted\">lab {name}{}</p>", escape(&disturbed(report)));
    let _ = writeln!(out, "<p class=\"muted\">{}, {:.1} s{quick}</p>", escape(&report.date), report.seconds);
    if !report.outcome.advice.is_empty() {
        let _ = writeln!(out, "<p class=\"panel advice\">{}</p>", escape(&report.outcome.advice.join(" ")));
    }
    if let Some(words) = how_it_ended(report.ended) {
        let _ = writeln!(out, "<p><strong>{}</strong></p>", escape(words));
    }
    let mut figures = String::new();
    for plot in &report.outcome.plots {
        let picture = plot::draw(plot);
        if !picture.is_empty() {
            let title = escape(&plot.title);
            let _ = writeln!(figures, "<figure>\n<figcaption>{title}</figcaption>\n{picture}</figure>");
        }
    }
    if !figures.is_empty() {
        let _ = writeln!(out, "<div class=\"charts\">\n{figures}</div>");
    }
    if !report.outcome.listing.is_empty() {
        let _ =
            writeln!(out, "<pre class=\"mono scroll\">{}</pre>", escape(&report.outcome.listing.join("\n")));
    }
    for table in &report.outcome.tables {
        numbers(out, table);
    }
    for note in &report.outcome.notes {
        let _ = writeln!(out, "<p class=\"muted\">{}</p>", escape(note));
    }
    *out += "</section>\n";
}

fn numbers(out: &mut String, from: &Table) {
    let titles: Vec<String> = from.columns.iter().map(|c| c.unit.with(&c.title)).collect();
    let columns: Vec<(&str, bool)> =
        titles.iter().zip(&from.columns).map(|(title, c)| (title.as_str(), is_numbers(c))).collect();
    let rows: Vec<Vec<String>> = from
        .rows
        .iter()
        .map(|row| row.iter().zip(&from.columns).map(|(c, column)| escape(&cell(c, column.unit))).collect())
        .collect();
    let table = table(&from.caption, &columns, &rows);
    if from.detail || rows.len() > LONG {
        let caption = escape(&from.caption);
        let _ =
            writeln!(out, "<details><summary>{caption}: {} rows</summary>\n{table}</details>", rows.len());
    } else {
        *out += &table;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::report;

    #[test]
    fn one_and_many() {
        let one = document(&[report()]).unwrap();
        assert!(one.contains("<title>hugelift lab tlb: what a page costs</title>"), "{one}");
        assert!(one.contains("Use huge pages.") && one.contains("interrupted: this is"), "{one}");
        assert_eq!(one.matches("<svg class=\"chart\"").count(), 1);
        let mut long = report();
        long.experiment = "other".into();
        let row = long.outcome.tables[0].rows[0].clone();
        long.outcome.tables[0].rows = vec![row; LONG + 1];
        let many = document(&[report(), long]).unwrap();
        assert_eq!(many.matches("<section id=").count(), 2);
        assert!(many.contains("href=\"#other\"") && many.contains("25 rows</summary>"), "{many}");
        assert!(!many.contains("<of>"), "{many}");
    }
}
