// SPDX-License-Identifier: Apache-2.0
//! A cache that forgets what was not used for long.
//!
//! It has two halves. When the young one is full it becomes the old one, which is forgotten. What is used moves to the
//! young one.

use std::collections::HashMap;
use std::hash::Hash;

/// A cache of a bounded size.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// Makes a cache of at most `most` entries.
    pub(super) fn new(most: usize) -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new(), half: (most / 2).max(1) }
    }

    /// Returns what is known of a key.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Stores a value in place of the value that was known.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_what_is_used_is_kept_and_the_size_is_bounded() {
        let mut recent = Recent::new(10);
        for key in 0..1000 {
            recent.insert(key, key * 2);
            assert_eq!(recent.get(&key).copied(), Some(key * 2));
            assert_eq!(recent.get(&0).copied(), Some(0), "{key}");
            assert!(recent.young.len() + recent.old.len() <= 10);
        }
        assert_eq!(recent.get(&500), None);
        recent.insert(0, 7);
        assert_eq!(recent.get(&0).copied(), Some(7));
    }
}
