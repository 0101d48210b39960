// SPDX-License-Identifier: Apache-2.0
//! The output of `hugelift ministat`.

use super::difference::Difference;
use super::number::general;
use super::plot::{PLOT_WIDTH, SYMBOLS, plot};
use super::sample::Sample;
use super::student::Confidence;
use std::fmt::Write as _;

/// What to print, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Show {
    /// The confidence of the differences.
    pub confidence: Confidence,
    /// Columns of the plot; `None` for no plot.
    pub plot: Option<usize>,
    /// Whether the bar of each sample has a line of its own.
    pub separate: bool,
    /// Whether the others are compared with the first.
    pub differences: bool,
    /// Whether the names and the head of the table are printed.
    pub heads: bool,
}

impl Default for Show {
    fn default() -> Show {
        Show {
            confidence: Confidence::DEFAULT,
            plot: Some(PLOT_WIDTH),
            separate: false,
            differences: true,
            heads: true,
        }
    }
}

/// Prints the names of the samples (at most [`super::MOST_SAMPLES`]), their plot, their figures, and
/// how each differs from the first.
pub fn text(samples: &[Sample], show: &Show) -> String {
    let mut out = String::new();
    let marked = || samples.iter().zip(SYMBOLS.iter().skip(1));
    if show.heads {
        for (sample, symbol) in marked() {
            let _ = writeln!(out, "{symbol} {}", sample.name());
        }
    }
    if let Some(width) = show.plot {
        out += &plot(samples, width, show.separate);
    }
    if show.heads {
        let _ = writeln!(
            out,
            "{:>5}{:>14}{:>14}{:>14}{:>14}{:>14}",
            "N", "Min", "Max", "Median", "Avg", "Stddev"
        );
    }
    for (index, (sample, symbol)) in marked().enumerate() {
        let figures = [sample.min(), sample.max(), sample.median(), sample.mean(), sample.deviation()];
        let figures: String = figures.iter().map(|figure| format!(" {:>13}", general(*figure, 8))).collect();
        let _ = writeln!(out, "{symbol} {:>3}{figures}", sample.values().len());
        if show.differences && index > 0 {
            out += &against(&Difference::between(&samples[0], sample, show.confidence), show.confidence);
        }
    }
    out
}

fn against(found: &Difference, confidence: Confidence) -> String {
    let percent = confidence.percent();
    if !found.proven() {
        return format!("No difference proven at {percent:.1}% confidence\n");
    }
    format!(
        "Difference at {percent:.1}% confidence\n\t{} +/- {}\n\t{}% +/- {}%\n\t(Student's t, pooled s = {})\n",
        general(found.difference, 6),
        general(found.error, 6),
        general(found.difference * 100.0 / found.reference, 6),
        general(found.share_error * 100.0, 6),
        general(found.pooled, 6)
    )
}
