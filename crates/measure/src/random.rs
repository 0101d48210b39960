// SPDX-License-Identifier: Apache-2.0
//! Random numbers for orders: splitmix64 (Steele, Lea & Flood 2014), which is enough for that.

use std::time::{SystemTime, UNIX_EPOCH};

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same sequence for the same seed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// Another sequence at each run.
    pub fn from_clock() -> Random {
        Random(SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64))
    }

    /// The next number, any of 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// Puts the items into an order of which each is as likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_orders_keep_all() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Random::seeded(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut all = order(3);
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<u32>>());
        assert_eq!(Random::seeded(1).below(0), 0);
    }
}
