// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift lab memcpy`.

use super::output::OutputArgs;
use clap::Args;
use hugelift_core::quantity;
use hugelift_lab::memcpy::Options;

/// Copy blocks whose source was written, or never: the huge zero page, a trap for benchmarks
///
/// Memory that was never written reads as a zero page: a small one comes out of the L1 cache, a
/// huge one may not. Each copy is timed with huge pages off and on for its mappings (madvise), and
/// the kind of pages of each source is read from the kernel. If perf is installed, its own benchmark
/// runs too. As root hugelift also times a source that was read while the huge zero page was off.
#[derive(Args, Debug)]
pub struct MemcpyArgs {
    /// Sizes of the blocks, as in 1M,64M,1G [default: 256 kB to 1 GB; with --quick to 64 MB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,

    /// The number of times that each copy is timed [default: 25; with --quick 15]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Parses a size from 1 kB to 64 GB.
fn size(text: &str) -> Result<usize, String> {
    let bytes = Some(quantity::bytes(text)?).filter(|bytes| (1 << 10..=1 << 36).contains(bytes));
    bytes
        .and_then(|b| usize::try_from(b).ok())
        .ok_or_else(|| format!("'{text}' is not a size from 1k to 64G, as in 16M"))
}

impl MemcpyArgs {
    /// Returns the options in the form of the experiment.
    pub fn options(&self) -> Options {
        let mut options = Options::usual(self.output.quick);
        if !self.sizes.is_empty() {
            options.sizes.clone_from(&self.sizes);
            options.sizes.sort_unstable();
            options.sizes.dedup();
        }
        options.rounds = self.rounds.map_or(options.rounds, usize::from);
        options
    }
}
