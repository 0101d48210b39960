// SPDX-License-Identifier: Apache-2.0
//! The plot: each value is a symbol in its column, values of one column are stacked, and each sample
//! has a bar from one standard deviation below its mean to one above.

use super::sample::Sample;
use std::fmt::Write as _;

/// The most samples in a plot, which has no more symbols.
pub const MOST_SAMPLES: usize = 7;

/// Columns of the plot where the output is not a terminal.
pub const PLOT_WIDTH: usize = 74;

/// The symbol of each sample. Where samples overlap, the plot has the symbol of the bitwise OR of their
/// numbers (from 1).
pub(super) const SYMBOLS: [char; 8] = [' ', 'x', '+', '*', '%', '#', '@', 'O'];

/// The columns and the range of values that they cover.
struct Scale {
    low: f64,
    step: f64,
    width: usize,
}

impl Scale {
    /// Covers all values and bars; `None` if they are one value.
    fn new(samples: &[Sample], width: usize) -> Option<Scale> {
        let ends = |sample: &Sample| {
            let (mean, deviation) = (sample.mean(), sample.deviation());
            (sample.min().min(mean - deviation), sample.max().max(mean + deviation))
        };
        let all = samples.iter().map(ends);
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (least, greatest)| {
            (low.min(least), high.max(greatest))
        });
        // Half a column of margin on either side.
        let step = (high - low) / (width as f64 - 1.0);
        (step > 0.0 && step.is_finite()).then_some(Scale { low: low - 0.5 * step, step, width })
    }

    fn column(&self, value: f64) -> usize {
        (((value - self.low) / self.step) as usize).min(self.width - 1)
    }
}

/// Draws the plot, `width` columns wide without its frame. `separate`: the bar of each sample has a line
/// of its own.
pub(super) fn plot(samples: &[Sample], width: usize, separate: bool) -> String {
    let Some(scale) = Scale::new(samples, width) else {
        return "[no plot, span is zero width]\n".into();
    };
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        draw(&mut rows, &scale, sample, index + 1);
    }
    let edge = format!("+{}+\n", "-".repeat(width));
    let mut out = edge.clone();
    for row in rows.iter().rev() {
        let symbols: String = row.iter().map(|&number| SYMBOLS[number % SYMBOLS.len()]).collect();
        let _ = writeln!(out, "|{symbols}|");
    }
    let mut bars = vec![vec![' '; width]; if separate { samples.len() } else { 1 }];
    for (index, sample) in samples.iter().enumerate() {
        bar(&mut bars[if separate { index } else { 0 }], &scale, sample);
    }
    for bar in bars {
        let _ = writeln!(out, "|{}|", bar.iter().collect::<String>());
    }
    out + &edge
}

/// Draws the values of the sample with this number. The rows get the height of this sample: what an
/// earlier one has above is lost, as with the original.
fn draw(rows: &mut Vec<Vec<usize>>, scale: &Scale, sample: &Sample, number: usize) {
    let mut heights = vec![0; scale.width];
    for value in sample.values() {
        heights[scale.column(*value)] += 1;
    }
    rows.resize_with(heights.iter().copied().max().unwrap_or(0), || vec![0; scale.width]);
    for (column, height) in heights.into_iter().enumerate() {
        for row in &mut rows[..height] {
            row[column] |= number;
        }
    }
}

fn bar(line: &mut [char], scale: &Scale, sample: &Sample) {
    let (mean, deviation) = (sample.mean(), sample.deviation());
    let (from, to) = (scale.column(mean - deviation), scale.column(mean + deviation));
    // In a shared line the marks of other samples stay.
    for cell in line[from..=to].iter_mut().filter(|cell| **cell == ' ') {
        *cell = '_';
    }
    line[from] = '|';
    line[to] = '|';
    line[scale.column(sample.median())] = 'M';
    line[scale.column(mean)] = 'A';
}
