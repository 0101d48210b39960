// SPDX-License-Identifier: Apache-2.0
//! `hugelift top`: which processes execute most code, and how much of it is on huge pages.

mod draw;
mod live;
mod suggestion;
mod view;

use crate::colour::When;
use crate::failure::{Exit, Failure};
use crate::output;
use clap::Args;
use hugelift_core::quantity;
use hugelift_core::table::{LEFT, RIGHT, Table};
use hugelift_linux::io::console;
use hugelift_linux::io::terminal;
use hugelift_measure::processes::reader::Processes;
use hugelift_measure::processes::{Column, Row, VERSION, rows, sort};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;

/// Show the processes with the most busy text, and how much of it is on huge pages
///
/// TEXT is the size of the code of the executable and all its shared objects. TEXT×CPU is that size
/// in MB, times the number of CPUs that the process keeps busy: where it is large and HUGE is small,
/// try `hugelift run` or `hugelift compare`. IN USE, on the screen, is the code that it uses, by samples: `hugelift advise`
/// compares it with what the CPU's TLBs hold. `?` stands for what may not be read (another user's
/// process), `-` for what was not read or sampled.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Time between two readings, from 100ms to 1h, as in 5 (seconds), 500ms or 1m
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,

    /// Print the table once, after one interval
    #[arg(long)]
    once: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long, requires = "once")]
    json: bool,

    /// How many processes are printed, and for how many HUGE is read at a time
    #[arg(short, long, value_name = "N", default_value_t = 40)]
    number: usize,
}

/// `--interval`
fn interval(text: &str) -> Result<Duration, String> {
    quantity::duration_between(text, Duration::from_millis(100), Duration::from_secs(3600))
}

/// Runs until the user quits, or prints once.
///
/// # Errors
/// `/proc` cannot be read, there is no terminal, or the result cannot be printed.
pub fn run(args: &TopArgs, colour: When) -> Result<Exit, Failure> {
    if args.once {
        once(args)?
    } else {
        live::live(args.interval, args.number, colour.on_stdout())?
    }
    Ok(Exit::SUCCESS)
}

/// What `--once --json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    version: u32,
    /// The interval over which the rates were measured.
    interval_s: f64,
    /// Sorted by busy text, the busiest first.
    processes: &'a [Row],
    /// Why no process has a `walk_share`.
    no_walk_share: Option<&'a str>,
}

fn once(args: &TopArgs) -> Result<(), Failure> {
    let mut processes = Processes::new();
    // The first reading is for the counters alone, and starts those of the PMU.
    let before = processes.read(&[], args.number, Duration::ZERO)?;
    std::thread::sleep(args.interval);
    // This is the last reading: there is time for the coverage of all.
    let now = processes.read(&[], args.number, Duration::from_secs(60))?;
    let mut rows = rows(&before, &now);
    sort(&mut rows, Column::BusyText, false);
    rows.truncate(args.number);
    let shown = if args.json {
        let interval_s = now.at.saturating_sub(before.at).as_secs_f64();
        let no_walk_share = now.no_walks.as_deref();
        let shown = Shown { version: VERSION, interval_s, processes: &rows, no_walk_share };
        output::json(&shown)?
    } else {
        #[allow(clippy::disallowed_methods, reason = "asks about the terminal, and writes nothing")]
        let width = std::io::stdout().is_terminal().then(terminal::width).flatten();
        text(&rows, width.unwrap_or(usize::MAX))
    };
    Ok(console::print(&shown)?)
}

/// Returns the table as lines of at most `width` columns.
fn text(rows: &[Row], width: usize) -> String {
    let mut columns = view::columns(rows, width);
    // The code in use is sampled on a screen, which has time for it.
    columns.retain(|column| *column != Column::InUse);
    let mut table = Table::new(columns.iter().map(|c| if c.is_number() { RIGHT } else { LEFT }));
    table.row(columns.iter().map(|c| c.title()));
    for row in rows {
        table.row(columns.iter().map(|c| c.cell(row)));
    }
    table.clipped(width)
}
