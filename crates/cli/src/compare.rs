// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare`: measures whether a program is faster when it is lifted.

mod csv;
mod cut;
mod enough;
mod experiment;
mod known;
mod live;
mod nothing;
mod options;
mod progress;
mod under_load;

pub use options::CompareArgs;

use crate::colour::When;
use crate::failure::{Exit, Failure};
use crate::output;
use cut::Measured;
use experiment::Experiment;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::lookup::resolve;
use hugelift_measure::comparison::Comparison;
use hugelift_measure::comparison::by_part::PartsComparison;
use hugelift_report::comparison as comparison_text;
use hugelift_report::comparison::by_part::text as parts_text;
use hugelift_report::html::compare::document;
use live::{Members, Options};
use std::ffi::OsString;

/// Measures, and prints the comparison.
///
/// # Errors
/// The options make no sense, a run fails, or the result cannot be written.
pub fn run(args: &CompareArgs, colour: When) -> Result<Exit, Failure> {
    if let Some(members) = Members::of(&args.live) {
        return run_live(members, args, colour);
    }
    let argv: Vec<OsString> = match &args.server.server {
        Some(line) => {
            let words = shell_words::split(line).map_err(|e| format!("--server '{line}': {e}"))?;
            words.into_iter().map(OsString::from).collect()
        }
        None => args.command.clone(),
    };
    let Some(program) = argv.first() else {
        return Err("--server '' names no program".into());
    };
    // These fail before the first run, not in the middle of a measurement.
    let path = resolve(program)?;
    check(args)?;
    let measured = Experiment::new(args, argv)?.run(&path)?;
    print(measured, args, colour)
}

/// Compares processes that run with themselves, and prints the comparison.
fn run_live(members: Members, args: &CompareArgs, colour: When) -> Result<Exit, Failure> {
    let options =
        Options { counters: args.counters, ..Options::new(&args.live, &args.server, &args.enough)? };
    check(args)?;
    match options.by {
        Some(by) => print_parts(live::measure_parts(members, &options, by)?, args, colour),
        None => print(live::measure(members, &options)?, args, colour),
    }
}

/// Prints what each part gains, and then what has ended the experiment too soon. Returns the exit status.
fn print_parts(
    measured: Measured<PartsComparison>,
    args: &CompareArgs,
    colour: When,
) -> Result<Exit, Failure> {
    let Measured { comparison, said, exit } = measured;
    let coloured = colour.on_stdout();
    match args.json {
        true => console::print(&output::json(&comparison)?)?,
        false => output::print(&parts_text(&comparison, coloured), coloured)?,
    }
    Ok(end(said, exit))
}

/// Checks what would otherwise fail after the measurement, and warns of too few pairs.
fn check(args: &CompareArgs) -> Result<(), Failure> {
    output::check_html(args.html.as_deref())?;
    if let Some(warning) = args.enough.warning() {
        say(&warning);
    }
    Ok(())
}

/// Writes the page, if one is wanted, prints what is for standard output, and then what has ended the comparison
/// too soon. Returns the exit status.
fn print(measured: Measured, args: &CompareArgs, colour: When) -> Result<Exit, Failure> {
    let Measured { comparison, said, exit } = measured;
    show(&comparison, args, colour)?;
    Ok(end(said, exit))
}

/// Says what has ended a comparison too soon, and returns the exit status.
fn end(said: Option<String>, exit: Exit) -> Exit {
    said.iter().for_each(|line| say(line));
    exit
}

fn show(comparison: &Comparison, args: &CompareArgs, colour: When) -> Result<(), Failure> {
    if let Some(path) = &args.html {
        let page = document(comparison).map_err(|e| format!("cannot write JSON: {e}"))?;
        if let Some(page) = output::html(path, page)? {
            return Ok(console::print(&page)?);
        }
    }
    match (args.json, args.csv) {
        (true, _) => console::print(&output::json(comparison)?)?,
        (false, true) => console::print(&csv::csv(comparison)?)?,
        (false, false) => {
            let coloured = colour.on_stdout();
            output::print(&comparison_text::text(comparison, coloured), coloured)?;
        }
    }
    Ok(())
}
