// SPDX-License-Identifier: Apache-2.0
//! The grid of an object: each cell is a huge page, in which each tile takes its share.
//!
//! A row is a picture of its own, so that as many rows as a window has room for are beside each other, and a cell
//! has the same size in each window:
//!
//! ```text
//!                    ##  __                      (how hot: only if the process was sampled)
//!     0x400000  [/T][TT][TT][TT][TT][TT][TT][T.]      0x1400000 [..][DD][D ]
//!               --- text                   - - rodata            ... data
//! ```
//!
//! The line under a cell shows the part: each part has a line of its own form, and where a part begins, its name.

use super::hot::{self, Hot};
use super::tile::Tile;
use crate::html::axis;
use crate::html::label::width;
use crate::html::page::escape;
use hugelift_core::addr::{Addr, Range, human_bytes};
use hugelift_core::heat::ObjectHeat;
use hugelift_core::report::ObjectReport;
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The most cells: beyond, each cell stands for several huge pages.
const MOST_CELLS: u64 = 4096;
/// Up to this number of cells they are drawn large.
const FEW_CELLS: u64 = 512;
/// Width of the address at the left of a row, in pixels.
const MARGIN: f64 = 120.0;
/// Height of a line of names of parts, and the size of their font, in pixels.
const NAMES: f64 = 14.0;
const NAME_SIZE: f64 = 10.0;
/// The length of the line before a name.
const SAMPLE: f64 = 14.0;
/// What is under a cell in its row: the line that shows the part.
const UNDER: f64 = 6.0;

/// The size of cells, in pixels, how many a row has, and the room above them for what shows how hot they are.
struct Size {
    columns: u64,
    cell: f64,
    gap: f64,
    above: f64,
}

/// Rows of both are about as wide, and fit in a narrow window.
const LARGE: Size = Size { columns: 8, cell: 26.0, gap: 5.0, above: 1.0 };
const SMALL: Size = Size { columns: 16, cell: 12.0, gap: 3.5, above: 1.0 };

impl Size {
    fn pitch(&self) -> f64 {
        self.cell + self.gap
    }

    fn width(&self) -> f64 {
        MARGIN + self.columns as f64 * self.pitch()
    }
}

/// Returns the rows of an object, and the bytes that a cell stands for. `tiles`, each with its part, are sorted by
/// address.
pub(super) fn grid(
    object: &ObjectReport,
    heat: Option<&ObjectHeat>,
    tiles: &[(Part, Tile)],
    page: u64,
) -> (String, u64) {
    let occupied =
        |unit: u64| blocks(tiles, unit, 0).iter().map(|(first, last)| last - first + 1).sum::<u64>();
    // Doubled until the cells are few enough, so that cells stay aligned.
    let unit = std::iter::successors(Some(page.max(1)), |unit| unit.checked_mul(2))
        .find(|unit| occupied(*unit) <= MOST_CELLS)
        .unwrap_or(1 << 63);
    let hot = heat.map(|heat| Hot::new(heat, unit));
    let above = if hot.is_some() { hot::LEVELS as f64 + 2.0 } else { 1.0 };
    let size = Size { above, ..if occupied(unit) <= FEW_CELLS { LARGE } else { SMALL } };
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    let mut before: Option<u64> = None;
    let mut out = String::new();
    let mut rest = tiles;
    for (first, last) in blocks(tiles, unit, size.columns) {
        if let Some(before) = before {
            let gap = human_bytes((first - before - 1).saturating_mul(unit));
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "<p class=\"gap\">{gap} of other addresses</p>");
        }
        let count = rest.partition_point(|(_, t)| t.range.start.0 / unit <= last);
        rows.clear();
        for (part, tile) in &rest[..count] {
            add(&mut rows, &size, unit, first, hot.as_ref(), *part, tile);
        }
        for cell in hot.iter().flat_map(|_| first..=last) {
            let column = ((cell - first) % size.columns) as f64 * size.pitch() + MARGIN;
            let level = hot.as_ref().and_then(|hot| hot.level(cell));
            if let (Some(level), Some(row)) = (level, rows.get_mut(&((cell - first) / size.columns))) {
                row.cells += &(hot::bar(level, column, size.above - 1.0, size.cell) + "\n");
            }
        }
        for (number, row) in &rows {
            let start = first.saturating_add(number * size.columns).saturating_mul(unit);
            out += &row.draw(object, &size, Addr(start));
        }
        rest = &rest[count..];
        before = Some(last);
    }
    (out, unit)
}

/// Returns the first and the last cell of each run of cells; at most `join` empty ones do not end a run.
fn blocks(tiles: &[(Part, Tile)], unit: u64, join: u64) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (_, tile) in tiles {
        let (first, last) = (tile.range.start.0 / unit, tile.range.end.0.saturating_sub(1) / unit);
        match all.last_mut() {
            Some(block) if first <= block.1.saturating_add(join + 1) => block.1 = block.1.max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

/// A row of cells.
#[derive(Default)]
struct Row {
    /// The shares of tiles, as SVG.
    cells: String,
    /// The line under the cells of each part.
    lines: BTreeMap<Part, String>,
    /// The parts that begin here, or that the first row of a block continues, and where.
    names: Vec<(Part, f64)>,
}

/// Adds a tile to the rows of the block that begins with the cell `first`: its share of each of its cells, and a
/// line under it.
fn add(
    rows: &mut BTreeMap<u64, Row>,
    size: &Size,
    unit: u64,
    first: u64,
    hot: Option<&Hot>,
    part: Part,
    tile: &Tile,
) {
    let class = tile.appearance.class();
    let begins = !rows.values().any(|row| row.names.iter().any(|(named, _)| *named == part));
    let mut at = tile.range.start.0;
    while at < tile.range.end.0 {
        let number = at / unit;
        let start = number * unit;
        let end = start.saturating_add(unit).min(tile.range.end.0);
        let share = |bytes: u64| bytes as f64 / unit as f64 * size.cell;
        let column = ((number - first) % size.columns) as f64 * size.pitch() + MARGIN;
        let left = column + share(at - start);
        // Wide enough to be seen.
        let width = share(end - at).max(0.6);
        let range = Range { start: Addr(at), end: Addr(end) };
        let row = rows.entry((number - first) / size.columns).or_default();
        if begins && at == tile.range.start.0 {
            row.names.push((part, left));
        }
        let _ = writeln!(
            row.cells,
            "<rect class=\"{class}\" x=\"{left:.2}\" y=\"{}\" width=\"{width:.2}\" height=\"{}\">\
             <title>{range} ({})\n{part}, {}{}</title></rect>",
            size.above,
            size.cell,
            human_bytes(range.len()),
            escape(&tile.text),
            hot.map(|hot| hot.line(number, part)).unwrap_or_default()
        );
        let line = row.lines.entry(part).or_default();
        let _ = write!(line, "M{left:.2} {:.1}h{width:.2}", size.above + size.cell + 3.0);
        at = end;
    }
}

impl Row {
    /// Draws the row, which begins at the address `start`.
    fn draw(&self, object: &ObjectReport, size: &Size, start: Addr) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<text class=\"at\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{start}</text>",
            MARGIN - 10.0,
            size.above + size.cell / 2.0 + 4.0
        );
        out += &self.cells;
        for (part, line) in &self.lines {
            let _ = writeln!(out, "<path class=\"p-{part}\" d=\"{line}\"/>");
        }
        let mut height = size.above + size.cell + UNDER;
        // Where the last name ends.
        let mut end = f64::INFINITY;
        for (part, left) in &self.names {
            let name = part.to_string();
            let needed = SAMPLE + 4.0 + width(&name, NAME_SIZE);
            let mut x = left.max(end + 7.0).min(size.width() - needed);
            if x < end + 7.0 {
                // The first, or there is no room: a line of its own, under its cell or as near as there is room.
                height += NAMES;
                x = left.min(size.width() - needed);
            }
            let y = height - NAMES / 2.0;
            let _ = writeln!(
                out,
                "<path class=\"p-{part}\" d=\"M{x:.1} {y:.1}h{SAMPLE}\"/>\
                 <text class=\"part\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
                x + SAMPLE + 4.0,
                y + 3.5
            );
            end = x + needed;
        }
        let label = format!("{}: from {start}", object.path);
        axis::svg(size.width(), height + 1.0, &label, &out)
    }
}
