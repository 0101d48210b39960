// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab tlb`: what its user may ask for.

use super::OutputArgs;
use crate::failure::Failure;
use crate::program::path_of;
use clap::Args;
use hugelift_core::quantity;
use hugelift_lab::tlb::Options;
use hugelift_lab::tlb::program::{of_process, of_program};
use std::ffi::OsString;

/// What a random load and a random jump cost on each kind of pages, by how much memory is in use:
/// where TLBs and caches end, and what huge pages save at the size of a program
///
/// One cache line of each 4 kB is used, in random order. Small pages, transparent huge pages, and
/// what the hugetlb pools have; as root hugelift enlarges the pools for the time of the experiment.
#[derive(Args, Debug)]
pub struct TlbArgs {
    /// What huge pages save at the size of this program's text
    #[arg(long, value_name = "PROG", conflicts_with = "pid")]
    program: Option<OsString>,

    /// What huge pages save at the size of this process's text and heap
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..1 << 31))]
    pid: Option<u32>,

    /// The largest working set, as in 512M [default: 4G, with --quick 1G, if half of the free
    /// memory is enough]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    largest: Option<u64>,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl TlbArgs {
    /// As the experiment wants it.
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

/// From 1 MB to 64 GB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = Some(quantity::bytes(text)?).filter(|bytes| (1 << 20..=64 << 30).contains(bytes));
    bytes.ok_or_else(|| format!("'{text}' is no size from 1M to 64G, as in 512M"))
}
