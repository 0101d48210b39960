// SPDX-License-Identifier: Apache-2.0
//! Tables in text: columns padded to their widest cell, two spaces between them.
//!
//! comfy-table and tabled draw frames, and wrap what is too wide. Here lines stand between the rows
//! ([`Table::across`]), nothing is wrapped, and no line ends in spaces.

use std::fmt;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Spaces between two columns.
const GAP: usize = 2;

/// How the cells of a column are padded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    right: bool,
    width: usize,
}

/// A column of text.
pub const LEFT: Column = Column { right: false, width: 0 };
/// A column of numbers.
pub const RIGHT: Column = Column { right: true, width: 0 };

impl Column {
    /// The same column, with at least this width.
    pub const fn at_least(self, width: usize) -> Column {
        Column { width, ..self }
    }
}

/// Rows of cells, and lines between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    columns: Vec<Column>,
    indent: usize,
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Line {
    Row(Vec<String>),
    /// Begins a gap behind the start of the column.
    Across(usize, String),
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), indent: 0, lines: Vec::new() }
    }

    /// The same table with `indent` spaces in front of each line.
    pub fn indented(self, indent: usize) -> Table {
        Table { indent, ..self }
    }

    /// Adds a row: titles or values.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(Line::Row(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a line that is in no column. It begins below `column`, two spaces to the right.
    pub fn across(&mut self, column: usize, text: String) {
        self.lines.push(Line::Across(column, text));
    }

    /// The lines, each cut off after `width` columns of a terminal.
    pub fn clipped(&self, width: usize) -> String {
        self.to_string().lines().map(|line| clip(line, width).trim_end().to_string() + "\n").collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.width).collect();
        for line in &self.lines {
            let Line::Row(cells) = line else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.width());
            }
        }
        widths
    }

    fn show(&self, line: &Line, widths: &[usize]) -> String {
        let mut out = " ".repeat(self.indent);
        match line {
            Line::Row(cells) => {
                for ((cell, column), width) in cells.iter().zip(&self.columns).zip(widths) {
                    let padding = " ".repeat(width - cell.width());
                    let [before, after] = if column.right { [&*padding, ""] } else { ["", &*padding] };
                    out.extend([before, cell, after, &" ".repeat(GAP)]);
                }
            }
            Line::Across(column, text) => {
                let start: usize = widths.iter().take(*column).map(|width| width + GAP).sum();
                out += &" ".repeat(start + GAP);
                out += text;
            }
        }
        out
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let widths = self.widths();
        self.lines.iter().try_for_each(|line| writeln!(f, "{}", self.show(line, &widths).trim_end()))
    }
}

fn clip(line: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    line.chars().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([LEFT, RIGHT, LEFT]);
        table.row(["OBJECT", "SIZE", "STATE"]);
        table.row(["a", "1.5 MB", "good"]);
        table.across(1, "a reason, wider than its column".into());
        table.row(["longer name", "2 MB", ""]);
        let expected = "OBJECT         SIZE  STATE\n\
                        a            1.5 MB  good\n               a reason, wider than its column\n\
                        longer name    2 MB\n";
        assert_eq!(table.to_string(), expected);
        assert_eq!(Table::new([LEFT]).to_string(), "");
    }

    #[test]
    fn at_least_so_wide_and_indented() {
        let mut table = Table::new([RIGHT.at_least(4), LEFT]).indented(2);
        table.row(["1", "one"]);
        assert_eq!(table.to_string(), "     1  one\n");
        table.row(["10000", "more"]);
        assert_eq!(table.to_string(), "      1  one\n  10000  more\n");
    }

    #[test]
    fn wide_characters_count_as_the_terminal_shows_them() {
        let mut table = Table::new([LEFT, LEFT]);
        table.row(["文字", "x"]);
        table.row(["é\u{301}", "y"]);
        assert_eq!(table.to_string(), "文字  x\né\u{301}     y\n");
        assert_eq!(table.clipped(3), "文\né\u{301}\n");
    }
}
