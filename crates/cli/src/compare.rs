// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare`: is a program faster lifted?

mod csv;
mod experiment;
mod known;
mod nothing;
mod options;
mod progress;
mod under_load;

pub use options::CompareArgs;

use crate::failure::Failure;
use experiment::Experiment;
use hugelift_core::printable;
use hugelift_core::printable::Escape;
use hugelift_measure::comparison::Comparison;
use hugelift_os::io::console::{self, say};
use hugelift_os::io::output;
use hugelift_os::launch::lookup::resolve;
use hugelift_report::comparison as comparison_text;
use hugelift_report::html::compare::document;
use std::ffi::OsString;
use std::path::Path;

/// Measures and prints; returns the exit status.
pub fn compare(args: &CompareArgs) -> i32 {
    match try_compare(args) {
        Ok(()) => 0,
        Err(failure) => {
            say(&failure.message);
            failure.status
        }
    }
}

fn try_compare(args: &CompareArgs) -> Result<(), Failure> {
    let argv: Vec<OsString> = match &args.server.server {
        Some(line) => {
            let words = shell_words::split(line).map_err(|e| anyhow::anyhow!("--server '{line}': {e}"))?;
            words.into_iter().map(OsString::from).collect()
        }
        None => args.command.clone(),
    };
    let Some(program) = argv.first() else {
        return Err(anyhow::anyhow!("--server '' names no program").into());
    };
    // It is better to fail now than in the midst of a round.
    let path = resolve(program)?;
    let folder = args.html.as_deref().and_then(Path::parent).filter(|f| !f.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|f| !f.is_dir()) {
        return Err(anyhow::anyhow!("--html: there is no folder {}", folder.escaped()).into());
    }
    if let Some(warning) = args.enough.warning() {
        say(&warning);
    }
    let comparison = Experiment::new(args, argv)?.run(&path)?;
    print(&comparison, args)
}

fn print(comparison: &Comparison, args: &CompareArgs) -> Result<(), Failure> {
    let picture = args.html.as_ref().map(|path| {
        let picture = document(comparison).map_err(anyhow::Error::from)?;
        if path.as_os_str() == "-" {
            return Ok(Some(picture));
        }
        // Its message has its source in it.
        output::write(path, picture.as_bytes()).map_err(|e| anyhow::anyhow!("{e}"))?;
        Ok::<_, anyhow::Error>(None)
    });
    let shown = if let Some(picture) = picture.transpose()?.flatten() {
        picture
    } else if args.json {
        let json = printable::json(comparison).map_err(anyhow::Error::from)?;
        json + "\n"
    } else if args.csv {
        String::from_utf8(csv::csv(comparison)?).map_err(anyhow::Error::from)?
    } else {
        comparison_text::text(comparison)
    };
    Ok(console::print(&shown)?)
}
