// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift lab cow`.

use super::output::OutputArgs;
use clap::{Args, ValueEnum};
use hugelift_lab::cow::Options;

/// Fork, and write while the child shares the memory: how long each write takes, how much it copies,
/// and which huge pages are left; then whole processes that do this, and redis while it saves its data
/// (BGSAVE)
///
/// If redis-server is installed, a redis server is started in a temporary folder, on a unix socket.
/// hugetlb takes pages of the pool; as root hugelift enlarges the pool for the experiment.
#[derive(Args, Debug)]
pub struct CowArgs {
    /// Memory of the parent, in huge pages, as in 1,64,512 [default: 1 to 4096, for whole processes 1, 64, 128, 256 and
    /// 512; with --quick 1, 4, 16, for whole processes 1 and 32]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    huge_pages: Vec<u64>,

    /// Forks, and whole processes of each kind, for each size of up to 64 huge pages; six for more, one above 512 [default: 30; with --quick 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,

    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Writes, Part::Processes, Part::Redis])]
    only: Vec<Part>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--only`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Forks and writes of this process
    Writes,
    /// Whole processes, from their start to their end
    Processes,
    /// redis while it saves its data
    Redis,
}

impl CowArgs {
    /// Returns the options in the form of the experiment.
    pub fn options(&self) -> Options {
        let mut options = Options::usual(self.output.quick);
        if !self.huge_pages.is_empty() {
            options.huge_pages.clone_from(&self.huge_pages);
            options.huge_pages.sort_unstable();
            options.huge_pages.dedup();
            options.whole.clone_from(&options.huge_pages);
        }
        options.rounds = self.rounds.unwrap_or(options.rounds);
        if !self.only.contains(&Part::Writes) {
            options.huge_pages.clear();
        }
        if !self.only.contains(&Part::Processes) {
            options.whole.clear();
        }
        if !self.only.contains(&Part::Redis) {
            options.redis = None;
        }
        options
    }
}
