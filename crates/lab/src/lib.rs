// SPDX-License-Identifier: Apache-2.0
//! The experiments behind hugelift's defaults, to be repeated on any machine.
//!
//! An experiment is a file or folder with its options and
//! `run(&Options, &mut Progress) -> Result<Outcome>`. It asks [`progress::Progress`] before each
//! step whether to go on (ctrl-C, the time), and gives back what it has when told to stop.
//! [`perform()`] makes a report of it. A setting of the kernel that an experiment changes is a
//! [`setting::Setting`], which puts it back.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod block;
pub mod clock;
pub mod contention;
pub mod cow;
pub mod knees;
pub mod latency;
pub mod machine;
pub mod memcpy;
pub mod memory;
pub mod munmap;
pub mod perform;
pub mod progress;
pub mod reclaim;
pub mod results;
pub mod saved;
pub mod setting;
pub mod tlb;

pub use perform::{Experiment, perform};

/// Held by a test that forks: its child shares the memory of all tests as long as it lives, and some
/// tests measure how many processes share theirs.
#[cfg(test)]
fn forking() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// All experiments, in the order of `hugelift lab all`.
pub const ALL: &[Experiment] =
    &[tlb::EXPERIMENT, memcpy::EXPERIMENT, cow::EXPERIMENT, munmap::EXPERIMENT, reclaim::EXPERIMENT];
