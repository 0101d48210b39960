// SPDX-License-Identifier: Apache-2.0
//! The options for the output of an experiment, the same for all.

use crate::failure::Failure;
use crate::output;
use anyhow::Context as _;
use clap::Args;
use hugelift_lab::results::{Report, VERSION};
use hugelift_linux::io::console;
use hugelift_report::html::lab::document;
use hugelift_report::lab::{self as text, csv};
use serde_json::json;
use std::path::PathBuf;

/// Options of every experiment.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Measure less: at most 60 s
    #[arg(long)]
    pub quick: bool,

    /// Print JSON, version 1 of the schema: the machine, every figure, every curve
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print every row of every table as a line of comma-separated values
    #[arg(long)]
    csv: bool,

    /// Write pictures and figures to FILE (-: to standard output): one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl OutputArgs {
    /// Checks the options before a measurement of ten minutes.
    ///
    /// # Errors
    /// The folder of the `--html` file does not exist.
    pub fn check(&self) -> Result<(), Failure> {
        output::check_html(self.html.as_deref())
    }

    /// Prints the reports in the format that the options name.
    ///
    /// # Errors
    /// The file or standard output cannot be written.
    pub fn print(&self, reports: &[Report]) -> Result<(), Failure> {
        Ok(console::print(&self.shown(reports)?)?)
    }

    /// Writes the page, if one is wanted; returns what is for standard output.
    fn shown(&self, reports: &[Report]) -> Result<String, Failure> {
        if let Some(path) = &self.html
            && let Some(page) = output::html(path, document(reports).context("HTML")?)?
        {
            return Ok(page);
        }
        if self.json {
            return match reports {
                [one] => output::json(one),
                many => output::json(&json!({ "version": VERSION, "reports": many })),
            };
        }
        if self.csv {
            return output::csv(csv::rows(reports));
        }
        let texts: Vec<String> = reports.iter().map(text::text).collect();
        Ok(texts.join("\n"))
    }
}
