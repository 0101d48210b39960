// SPDX-License-Identifier: Apache-2.0
//! The experiments behind hugelift's defaults. They can be repeated on any machine.
//!
//! | modules | hold |
//! |---|---|
//! | [`tlb`], [`memcpy`], [`cow`], [`munmap`], [`reclaim`] | the experiments |
//! | [`walks`] | what other CPUs would do: a trace of a program through models of their TLBs |
//! | [`perform()`], [`progress`] | what runs an experiment, shows how far it is and stops it |
//! | [`results`] | what an experiment returns: plain data, the same for all |
//! | [`read_machine`], [`saved`] | the description of the machine in a report; the last reports, for `hugelift doctor` |
//! | [`memory`], `block` | memory on a known kind of pages |
//! | `disturbance` | what other programs take from a step while it is measured |
//! | `clock`, `cpus`, `setting` | clocks, the CPUs of this process, settings of the kernel that are put back |
//! | `knees`, `latency`, `contention` | what figures mean: bends of a curve, percentiles, a model of more cores |
//!
//! An experiment is a file or folder with its options and
//! `run(&Options, &mut Progress) -> Result<Outcome>`. Before each step it asks [`progress::Progress`]
//! whether it may go on (ctrl-C or the end of its time stop it), and it returns what it has measured
//! until then. An experiment that changes a setting of the kernel holds a `setting::Setting`, which puts
//! the old value back.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod block;
mod clock;
mod contention;
pub mod cow;
mod cpus;
mod disturbance;
mod knees;
mod latency;
pub mod memcpy;
pub mod memory;
pub mod munmap;
mod perform;
pub mod progress;
pub mod read_machine;
pub mod reclaim;
pub mod results;
pub mod saved;
pub mod setting;
pub mod tlb;
pub mod walks;

pub use perform::{Experiment, perform};

/// Serialises the tests that fork or use the hugetlb pool: a child shares the memory of all tests while it
/// lives, and some tests measure how many processes share theirs. The lock of the file keeps the tests of
/// other programs, which use the same pool, away.
#[cfg(test)]
fn alone() -> impl Sized {
    use nix::fcntl::{Flock, FlockArg};
    let path = std::env::temp_dir().join("hugelift-tests.lock");
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path);
    Flock::lock(file.expect("the lock of the tests"), FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .expect("flock")
}

/// All experiments, in the order of `hugelift lab all`.
pub const ALL: &[Experiment] =
    &[tlb::EXPERIMENT, memcpy::EXPERIMENT, cow::EXPERIMENT, munmap::EXPERIMENT, reclaim::EXPERIMENT];
