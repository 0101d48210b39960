// SPDX-License-Identifier: Apache-2.0
//! The tables of reports as one table, for comma-separated values: it has a column for each key of any
//! table, with empty cells in the rows of other tables.

use hugelift_lab::results::{Cell, Report};

/// Returns a line of titles, then every row of every table. Numbers have all their digits and the unit
/// in which the key of their column ends.
pub fn rows(reports: &[Report]) -> Vec<Vec<String>> {
    let mut keys: Vec<&str> = vec!["experiment", "table"];
    for column in reports.iter().flat_map(|r| &r.outcome.tables).flat_map(|t| &t.columns) {
        if !keys.contains(&column.key.as_str()) {
            keys.push(&column.key);
        }
    }
    let mut all = vec![keys.iter().map(ToString::to_string).collect()];
    for report in reports {
        for table in &report.outcome.tables {
            for row in &table.rows {
                let mut line = vec![String::new(); keys.len()];
                line[0].clone_from(&report.experiment);
                line[1].clone_from(&table.caption);
                for (cell, column) in row.iter().zip(&table.columns) {
                    let at = keys.iter().position(|key| *key == column.key).unwrap_or(0);
                    line[at] = value(cell);
                }
                all.push(line);
            }
        }
    }
    all
}

fn value(cell: &Cell) -> String {
    match cell {
        Cell::Number(value) => value.to_string(),
        Cell::Text(text) => text.clone(),
        Cell::Nothing => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::report;
    use hugelift_lab::results::unit::Unit;
    use hugelift_lab::results::{Column, Table};

    #[test]
    fn tables_of_different_columns_are_one() {
        let mut report = report();
        let mut other = Table::new("tasks", vec![Column::new("tasks", "tasks", Unit::Count)]);
        other.rows.push(vec![2u64.into()]);
        report.outcome.tables.push(other);
        let rows = rows(&[report]);
        assert_eq!(rows[0], ["experiment", "table", "pages", "size_bytes", "latency_ns", "tasks"]);
        assert_eq!(rows[1], ["tlb", "latency of a load", "4 kB", "1048576", "1.5", ""]);
        assert_eq!(rows[2][4], "");
        assert_eq!(rows[3], ["tlb", "tasks", "", "", "", "2"]);
    }
}
