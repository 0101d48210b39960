// SPDX-License-Identifier: Apache-2.0
//! What comes out.

use super::distances::Distances;
use super::gains::Gain;
use super::plan::Way;

/// A separated file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Separated {
    /// How it was done.
    pub way: Way,
    /// How far each part moved.
    pub distances: Distances,
    /// The file.
    pub bytes: Vec<u8>,
    /// What each `PT_LOAD` gains and costs, by address.
    pub gains: Vec<Gain>,
    /// How many bits of the load address are no longer random.
    pub aslr_bits_lost: u32,
}
