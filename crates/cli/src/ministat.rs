// SPDX-License-Identifier: Apache-2.0
//! `hugelift ministat`: compares samples in files, as ministat(1) does.

use crate::failure::{Exit, Failure};
use clap::Args;
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::io::console;
use hugelift_linux::io::read::read_within;
use hugelift_linux::io::terminal;
use hugelift_measure::ministat::{Confidence, Layout, MOST_SAMPLES, PLOT_WIDTH, Sample, Show, text};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Columns of the frame around a plot.
const FRAME: usize = 2;

/// Compare samples of numbers: difference by Student's t, and a plot in text
///
/// One number a line. Prints what FreeBSD's ministat(1) prints, and takes its options. Each further
/// sample is compared with the first.
#[derive(Args, Debug)]
pub struct MinistatArgs {
    /// Print statistics and differences, no plot
    #[arg(short = 'A')]
    no_plot: bool,

    /// Print statistics only: no plot and no differences
    #[arg(short = 'n')]
    numbers: bool,

    /// Print no names and no head of the table, for other programs to read; usually with -n
    #[arg(short = 'q')]
    quiet: bool,

    /// Draw the bars of mean and standard deviation in a line for each sample
    #[arg(short = 's')]
    separate: bool,

    /// The column that has the numbers
    #[arg(short = 'C', value_name = "COLUMN", default_value_t = 1, value_parser = column)]
    column: usize,

    /// Confidence level for a difference, in percent: 80, 90, 95, 98, 99 or 99.5
    #[arg(short = 'c', value_name = "LEVEL", default_value = "95", value_parser = confidence)]
    confidence: Confidence,

    /// Characters that separate columns
    #[arg(short = 'd', value_name = "CHARS", default_value = " \t", hide_default_value = true)]
    delimiters: String,

    /// Columns of the plot [default: as wide as the terminal, or 74]
    #[arg(short = 'w', value_name = "WIDTH", value_parser = width)]
    width: Option<usize>,

    /// Up to seven files; - or none is standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn column(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&column| column > 0).ok_or_else(|| "columns are counted from 1".into())
}

fn confidence(text: &str) -> Result<Confidence, String> {
    let level = text.parse().ok().and_then(Confidence::from_percent);
    level.ok_or_else(|| "levels are 80, 90, 95, 98, 99 and 99.5".into())
}

fn width(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|width| (2..=10_000).contains(width))
        .ok_or_else(|| "a number from 2 to 10000".into())
}

/// Reads the samples, compares them, and prints the result.
///
/// # Errors
/// A file cannot be read, or has no sample in it.
pub fn run(args: &MinistatArgs) -> Result<Exit, Failure> {
    let standard_input = [PathBuf::from("-")];
    let files = if args.files.is_empty() { &standard_input[..] } else { &args.files };
    if files.len() > MOST_SAMPLES {
        return Err(
            format!("ministat compares at most {MOST_SAMPLES} files; {} are given", files.len()).into()
        );
    }
    if files.iter().filter(|file| is_standard_input(file)).count() > 1 {
        return Err(Failure::new("ministat can read only one sample from standard input; - is given twice"));
    }
    let layout = Layout { column: args.column, delimiters: args.delimiters.clone() };
    let samples = files.iter().map(|file| sample(file, &layout)).collect::<Result<Vec<_>, _>>()?;
    let width = || args.width.or_else(terminal_width).unwrap_or(PLOT_WIDTH);
    let show = Show {
        confidence: args.confidence,
        plot: (!args.no_plot && !args.numbers).then(width),
        separate: args.separate,
        differences: !args.numbers,
        heads: !args.quiet,
    };
    console::print(&text(&samples, &show))?;
    Ok(Exit::SUCCESS)
}

fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn terminal_width() -> Option<usize> {
    terminal::width().map(|width| width.saturating_sub(FRAME)).filter(|&width| width > 1)
}

/// No file of figures is larger: all of it is kept in memory.
const MAX_FIGURES: u64 = 256 << 20;

fn sample(file: &Path, layout: &Layout) -> Result<Sample, Failure> {
    let (name, bytes) = if is_standard_input(file) {
        ("<stdin>".into(), read_within(std::io::stdin().lock(), MAX_FIGURES))
    } else {
        (file.escaped().to_string(), File::open(file).and_then(|file| read_within(file, MAX_FIGURES)))
    };
    let bytes = bytes.map_err(|error| format!("cannot read {name}: {error}"))?;
    let sample = Sample::parse(name.clone(), &text_to_parse(&bytes), layout);
    Ok(sample.map_err(|error| format!("{name}: {error} (-C COLUMN and -d CHARS choose another column)"))?)
}
