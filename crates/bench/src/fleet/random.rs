// SPDX-License-Identifier: Apache-2.0
//! Numbers that a seed decides: SplitMix64 (Steele, Lea, Flood, 2014). Each machine has its own sequence, so that a
//! change of one input leaves the draws of all else as they are.

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// Returns the sequence of this seed, machine and purpose.
    pub fn of(seed: u64, machine: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ machine.wrapping_mul(STEP) ^ purpose.rotate_left(32));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
