// SPDX-License-Identifier: Apache-2.0
//! What the user wants to see of a report, the same for every experiment.

use crate::failure::Failure;
use anyhow::Context as _;
use clap::Args;
use hugelift_core::printable;
use hugelift_core::printable::Escape;
use hugelift_lab::results::{Report, VERSION};
use hugelift_os::io::output;
use hugelift_report::html::lab::document;
use hugelift_report::lab::{self as text, csv};
use serde_json::json;
use std::path::{Path, PathBuf};

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

    /// Write pictures and figures to FILE (- is standard output): one file that loads nothing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl OutputArgs {
    /// It is better to fail now than after ten minutes.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn check(&self) -> Result<(), Failure> {
        let folder = self.html.as_deref().and_then(Path::parent).filter(|f| !f.as_os_str().is_empty());
        match folder.filter(|f| !f.is_dir()) {
            Some(folder) => Err(format!("--html: there is no folder {}", folder.escaped()).into()),
            None => Ok(()),
        }
    }

    /// Prints the reports as they were asked for.
    ///
    /// # Errors
    /// The file or standard output cannot be written.
    pub fn print(&self, reports: &[Report]) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            let page = document(reports).context("HTML")?;
            if path.as_os_str() == "-" {
                return show(&page);
            }
            // Its message has its source in it.
            output::write(path, page.as_bytes()).map_err(|e| e.to_string())?;
        }
        show(&self.shown(reports)?)
    }

    fn shown(&self, reports: &[Report]) -> Result<String, Failure> {
        if self.json {
            let json = match reports {
                [one] => printable::json(one),
                many => printable::json(&json!({ "version": VERSION, "reports": many })),
            };
            return Ok(json.context("JSON")? + "\n");
        }
        if self.csv {
            let mut table = ::csv::Writer::from_writer(Vec::new());
            for row in csv::rows(reports) {
                table.write_record(row).context("CSV")?;
            }
            return Ok(String::from_utf8(table.into_inner().context("CSV")?).context("CSV")?);
        }
        let texts: Vec<String> = reports.iter().map(text::text).collect();
        Ok(texts.join("\n"))
    }
}

fn show(text: &str) -> Result<(), Failure> {
    Ok(hugelift_os::io::console::print(text)?)
}
