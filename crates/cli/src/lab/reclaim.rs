// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift lab reclaim`.

use super::output::OutputArgs;
use clap::Args;

/// Drop references to pages, and wait until no thread uses them: one lock, epochs, a lock-free list,
/// and two libraries for comparison; a model for more cores
#[derive(Args, Debug)]
pub struct ReclaimArgs {
    #[command(flatten)]
    pub output: OutputArgs,
}
