// SPDX-License-Identifier: Apache-2.0
//! Makes the manual pages and the completions of hugelift from the definition of its options: `man/*.1` and
//! `completions/*` in the folder that is given; with `--reference` what the pages in that folder say of options. It is no
//! part of hugelift, and is not installed.

mod completions;
mod markdown;
mod page;
mod reference;
mod values;

use anyhow::{Context as _, Result, bail};
use clap::Command;
use std::ffi::OsString;
use std::path::PathBuf;

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = hugelift_cli::definition();
    match words.as_slice() {
        [option, folder] if option == "--reference" => reference::write_all(&command, &PathBuf::from(folder)),
        [folder] => {
            let folder = PathBuf::from(folder);
            page::write_all(&command, &folder.join("man")).context("manual pages")?;
            completions::write_all(command, &folder.join("completions")).context("completions")
        }
        _ => bail!("usage: hugelift-manual [--reference] FOLDER"),
    }
}

/// Returns the definition in which each subcommand has its full name, and the options that all commands have.
fn built(command: &Command) -> Command {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    command
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}
