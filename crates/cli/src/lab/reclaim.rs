// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab reclaim`: what its user may ask for.

use super::OutputArgs;
use clap::Args;

/// Drop references to pages and wait until nobody uses them: one lock, epochs, a lock-free list, and two
/// libraries beside them; a model for more cores
#[derive(Args, Debug)]
pub struct ReclaimArgs {
    #[command(flatten)]
    pub output: OutputArgs,
}
