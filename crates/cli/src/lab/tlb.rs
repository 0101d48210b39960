// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift lab tlb`.

use super::output::OutputArgs;
use crate::failure::Failure;
use crate::process_id;
use crate::program::path_of;
use clap::Args;
use hugelift_core::quantity;
use hugelift_lab::tlb::Options;
use hugelift_lab::tlb::program::{of_process, of_program};
use std::ffi::OsString;

/// Time random loads and random jumps in working sets of growing size on each kind of pages: where
/// TLBs and caches end, and what huge pages save at the size of a program
///
/// One cache line of each 4 kB is used, in random order. The pages are small ones, transparent huge
/// pages, and those of the hugetlb pools; as root hugelift enlarges the pools for the experiment.
#[derive(Args, Debug)]
pub struct TlbArgs {
    /// Say what huge pages save at the size of this program's text
    #[arg(long, value_name = "PROG", conflicts_with = "pid")]
    program: Option<OsString>,

    /// Say what huge pages save at the size of this process's text and heap
    #[arg(long, value_name = "PID", value_parser = process_id::parse)]
    pid: Option<u32>,

    /// The largest working set, as in 512M [default: 4G, with --quick 512M, but at most half of the
    /// free memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    largest: Option<u64>,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl TlbArgs {
    /// Returns the options in the form of the experiment.
    ///
    /// # Errors
    /// The program or process cannot be read.
    pub fn options(&self) -> Result<Options, Failure> {
        let sizes = match (&self.program, self.pid) {
            (Some(program), _) => Some(of_program(&path_of(program)?)?),
            (None, Some(pid)) => Some(of_process(pid)?),
            (None, None) => None,
        };
        Ok(Options { quick: self.output.quick, largest: self.largest, sizes })
    }
}

/// Parses a size from 1 MB to 64 GB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = Some(quantity::bytes(text)?).filter(|bytes| (1 << 20..=64 << 30).contains(bytes));
    bytes.ok_or_else(|| format!("'{text}' is not a size from 1M to 64G, as in 512M"))
}
