// SPDX-License-Identifier: Apache-2.0
//! Makes the manual pages and the completions of hugelift from the definition of its options: `man/*.1` and
//! `completions/*` in the folder that is given. It is no part of hugelift, and is not installed.

mod completions;
mod page;

use anyhow::{Context as _, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [folder] = words.as_slice() else { bail!("usage: hugelift-manual FOLDER") };
    let folder = PathBuf::from(folder);
    let command = hugelift_cli::definition();
    page::write_all(command.clone(), &folder.join("man")).context("manual pages")?;
    completions::write_all(command, &folder.join("completions")).context("completions")
}
