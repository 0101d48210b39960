// SPDX-License-Identifier: Apache-2.0
//! The grid of an object: each cell is a huge page, in which each tile takes its share.

use super::tile::Tile;
use crate::html::axis;
use crate::html::page::escape;
use hugelift_core::addr::{Addr, Range, human_bytes};
use hugelift_core::report::ObjectReport;
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The most cells: beyond, each cell stands for several huge pages.
const MOST_CELLS: u64 = 4096;
/// Up to this number of cells they are drawn large.
const FEW_CELLS: u64 = 512;
/// Width of the address at the left of a row, in pixels.
const MARGIN: f64 = 118.0;

/// The size of cells, in pixels, and how many a row has.
struct Size {
    columns: u64,
    cell: f64,
    gap: f64,
}

const LARGE: Size = Size { columns: 32, cell: 26.0, gap: 5.0 };
const SMALL: Size = Size { columns: 64, cell: 12.0, gap: 3.0 };

impl Size {
    fn pitch(&self) -> f64 {
        self.cell + self.gap
    }
}

/// Returns the picture of an object, and the bytes that a cell stands for. `tiles`, each with its part,
/// are sorted by address.
pub(super) fn grid(object: &ObjectReport, tiles: &[(Part, Tile)], page: u64) -> (String, u64) {
    let occupied =
        |unit: u64| blocks(tiles, unit, 0).iter().map(|(first, last)| last - first + 1).sum::<u64>();
    // Doubled until the cells are few enough, so that cells stay aligned.
    let unit = std::iter::successors(Some(page.max(1)), |unit| unit.checked_mul(2))
        .find(|unit| occupied(*unit) <= MOST_CELLS)
        .unwrap_or(1 << 63);
    let size = if occupied(unit) <= FEW_CELLS { LARGE } else { SMALL };
    let mut drawing = Drawing { size, unit, y: 0.0, out: String::new() };
    let mut rest = tiles;
    let mut before: Option<u64> = None;
    for (first, last) in blocks(tiles, unit, drawing.size.columns) {
        if let Some(before) = before {
            drawing.gap((first - before - 1).saturating_mul(unit));
        }
        let count = rest.partition_point(|(_, t)| t.range.start.0 / unit <= last);
        drawing.block(first, last, &rest[..count]);
        rest = &rest[count..];
        before = Some(last);
    }
    let width = MARGIN + drawing.size.columns as f64 * drawing.size.pitch();
    let label = format!("{}: one cell for every {}", object.path, human_bytes(unit));
    (axis::svg(width, drawing.y + 2.0, &label, &drawing.out), unit)
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

struct Drawing {
    size: Size,
    unit: u64,
    y: f64,
    out: String,
}

impl Drawing {
    fn gap(&mut self, bytes: u64) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            self.out,
            "<text class=\"gap\" x=\"{MARGIN:.0}\" y=\"{:.0}\">{} of other addresses</text>",
            self.y + 14.0,
            human_bytes(bytes)
        );
        self.y += 22.0;
    }

    /// Draws rows of cells from number `first` to `last`.
    fn block(&mut self, first: u64, last: u64, tiles: &[(Part, Tile)]) {
        for row in 0..=(last - first) / self.size.columns {
            let start = (first + row * self.size.columns).saturating_mul(self.unit);
            let _ = writeln!(
                self.out,
                "<text class=\"at\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                MARGIN - 10.0,
                self.top(first + row * self.size.columns, first) + self.size.cell / 2.0 + 4.0,
                Addr(start)
            );
        }
        let mut strips: BTreeMap<Part, String> = BTreeMap::new();
        for (part, tile) in tiles {
            self.tile(first, *part, tile, strips.entry(*part).or_default());
        }
        for (part, strip) in strips {
            let _ = writeln!(self.out, "<path class=\"p-{part}\" d=\"{strip}\"/>");
        }
        self.y = self.top(last, first) + self.size.pitch();
    }

    /// Returns the top of a cell in the block that starts with the cell `first`.
    fn top(&self, cell: u64, first: u64) -> f64 {
        self.y + ((cell - first) / self.size.columns) as f64 * self.size.pitch() + 1.0
    }

    /// Draws a tile: its share of each of its cells, and a line in `strip` under it.
    fn tile(&mut self, first: u64, part: Part, tile: &Tile, strip: &mut String) {
        let class = tile.appearance.class();
        let mut at = tile.range.start.0;
        while at < tile.range.end.0 {
            let number = at / self.unit;
            let start = number * self.unit;
            let end = start.saturating_add(self.unit).min(tile.range.end.0);
            let share = |bytes: u64| bytes as f64 / self.unit as f64 * self.size.cell;
            let column = ((number - first) % self.size.columns) as f64 * self.size.pitch() + MARGIN;
            let (left, top) = (column + share(at - start), self.top(number, first));
            // Wide enough to be seen.
            let width = share(end - at).max(0.6);
            let range = Range { start: Addr(at), end: Addr(end) };
            let _ = writeln!(
                self.out,
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{}\">\
                 <title>{range} ({})\n{part}, {}</title></rect>",
                left,
                top,
                width,
                self.size.cell,
                human_bytes(range.len()),
                escape(&tile.text)
            );
            let _ = write!(strip, "M{left:.2} {:.1}h{width:.2}", top + self.size.cell + 2.0);
            at = end;
        }
    }
}
