// SPDX-License-Identifier: Apache-2.0
//! The text at the end of a command's help.

use clap::builder::Styles;

/// The end of a command's help.
#[derive(Debug)]
pub struct Ending {
    /// The words behind `hugelift`; none for `hugelift` itself.
    pub(super) command: &'static str,
    /// Each exit status, and when it is returned.
    pub status: &'static [(&'static str, &'static str)],
    /// The examples, the most usual first: each command line, and what it does.
    pub examples: &'static [(&'static str, &'static str)],
}

impl Ending {
    /// Returns the text for `-h`.
    pub(super) fn short(&self) -> String {
        let examples: String = self.examples.iter().take(1).map(example).collect();
        heading("Example") + examples.trim_end()
    }

    /// Returns the text for `--help`.
    pub(super) fn long(&self) -> String {
        let width = self.status.iter().map(|(status, _)| status.len()).max().unwrap_or(0);
        let line = |(status, when): &(&str, &str)| format!("  {status:width$}  {when}\n");
        let statuses: String = self.status.iter().map(line).collect();
        let examples: String = self.examples.iter().map(example).collect();
        heading("Exit status") + &statuses + "\n" + &heading("Examples") + examples.trim_end()
    }
}

/// Returns the text of an example.
pub(super) fn example((line, what): &(&str, &str)) -> String {
    format!("  {line}\n      {what}\n")
}

/// Returns a heading in the style of clap's own.
fn heading(text: &str) -> String {
    let style = Styles::styled();
    let style = style.get_header();
    format!("{style}{text}:{style:#}\n")
}
