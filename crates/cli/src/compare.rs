// SPDX-License-Identifier: Apache-2.0
//! `hugelift compare`: is a program faster lifted?

mod csv;
mod experiment;
mod options;
mod progress;
mod under_load;

pub use options::CompareArgs;

use crate::failure::Failure;
use experiment::Experiment;
use hugelift_core::comparison::Comparison;
use hugelift_core::comparison_text;
use hugelift_core::html::compare::document;
use hugelift_os::console::say;
use hugelift_os::output;
use hugelift_os::program::resolve;
use std::ffi::OsString;
use std::io::Write as _;
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
    resolve(program)?;
    let folder = args.html.as_deref().and_then(Path::parent).filter(|f| !f.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|f| !f.is_dir()) {
        return Err(anyhow::anyhow!("--html: there is no folder {}", folder.display()).into());
    }
    if let Some(warning) = args.enough.warning() {
        say(&warning);
    }
    let comparison = Experiment::new(args, argv)?.run()?;
    print(&comparison, args)
}

fn print(comparison: &Comparison, args: &CompareArgs) -> Result<(), Failure> {
    let picture = args.html.as_ref().map(|path| {
        let picture = document(comparison).map_err(anyhow::Error::from)?;
        if path.as_os_str() == "-" {
            return Ok(Some(picture.into_bytes()));
        }
        // Its message has its source in it.
        output::write(path, picture.as_bytes()).map_err(|e| anyhow::anyhow!("{e}"))?;
        Ok::<_, anyhow::Error>(None)
    });
    let shown = if let Some(picture) = picture.transpose()?.flatten() {
        picture
    } else if args.json {
        let json = serde_json::to_string(comparison).map_err(anyhow::Error::from)?;
        (json + "\n").into_bytes()
    } else if args.csv {
        csv::csv(comparison)?
    } else {
        comparison_text::text(comparison).into_bytes()
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(&shown).and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::anyhow!("cannot write to standard output: {error}").into())
        }
        _ => Ok(()),
    }
}
