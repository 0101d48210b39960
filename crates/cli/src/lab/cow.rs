// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab cow`: what its user may ask for.

use super::OutputArgs;
use clap::{Args, ValueEnum};
use hugelift_lab::cow::Options;

/// Fork, and write while the child has its copy: the latency of each write, what it copies, and what
/// is left of the huge pages; then redis while it saves itself (BGSAVE)
///
/// redis runs as a server of its own in a temporary folder, on a unix socket, where redis-server is
/// installed. hugetlb takes pages of the pool, which root enlarges for as long as they are needed.
#[derive(Args, Debug)]
pub struct CowArgs {
    /// Memory of the parent, in huge pages, as in 1,64,512 [default: 1 to 4096; with --quick to 256]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    huge_pages: Vec<u64>,

    /// How often each fork is repeated at least [default: 3; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,

    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Writes, Part::Redis])]
    only: Vec<Part>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--only`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Forks and writes of this process
    Writes,
    /// redis while it saves itself
    Redis,
}

impl CowArgs {
    /// As the experiment wants it.
    pub fn options(&self) -> Options {
        let mut options = Options::usual(self.output.quick);
        if !self.huge_pages.is_empty() {
            options.huge_pages.clone_from(&self.huge_pages);
            options.huge_pages.sort_unstable();
            options.huge_pages.dedup();
        }
        options.rounds = self.rounds.unwrap_or(options.rounds);
        if !self.only.contains(&Part::Writes) {
            options.huge_pages.clear();
        }
        if !self.only.contains(&Part::Redis) {
            options.redis = None;
        }
        options
    }
}
