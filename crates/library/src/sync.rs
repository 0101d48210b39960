// SPDX-License-Identifier: Apache-2.0
//! The primitives of the registry. The test under the model checker (tests/loom.rs) compiles the registry a
//! second time, with its own version of this module.

pub use hugelift_epoch::{Contract, Epochs};
pub use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Returns a number that differs between threads, so that they begin to search for a slot at different ones.
pub fn place() -> usize {
    let local = 0_u8;
    // Stacks of threads are at least 16 kB apart.
    (&raw const local).addr() >> 14
}
