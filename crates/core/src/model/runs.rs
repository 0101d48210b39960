// SPDX-License-Identifier: Apache-2.0
//! A map from addresses (or offsets) to values, stored as runs, so that its size depends on the number
//! of mappings and not on their bytes.

use crate::addr::{Addr, Range};
use std::collections::BTreeMap;

/// The value of a run's first byte, from which the values of the others follow.
pub trait Shift: Copy {
    /// Returns the value of the byte that is `bytes` further on in the run.
    fn shift(self, bytes: u64) -> Self;
}

/// Disjoint runs by their start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs<T>(BTreeMap<Addr, (Addr, T)>);

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs(BTreeMap::new())
    }
}

impl<T: Shift + PartialEq> Runs<T> {
    /// Returns all runs, by address.
    pub fn all(&self) -> impl Iterator<Item = (Range, T)> {
        self.0.iter().map(|(&start, &(end, value))| (Range { start, end }, value))
    }

    /// Returns the pieces of runs inside `range`.
    pub fn within(&self, range: Range) -> Vec<(Range, T)> {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.start..range.end.max(range.start));
        let clip = |(&start, &(end, value)): (&Addr, &(Addr, T))| {
            let cut = Range { start, end }.intersect(range)?;
            Some((cut, value.shift(cut.start.0 - start.0)))
        };
        before.into_iter().chain(inside).filter_map(clip).collect()
    }

    /// Returns whether runs hold every byte of `range`.
    pub fn cover(&self, range: Range) -> bool {
        self.within(range).iter().map(|(r, _)| r.len()).sum::<u64>() == range.len()
    }

    /// Removes and returns the pieces of runs inside `range`.
    pub fn remove(&mut self, range: Range) -> Vec<(Range, T)> {
        let out = self.within(range);
        let before = self.0.range(..range.start).next_back().map(|(&start, _)| start);
        let inside = self.0.range(range.start..range.end.max(range.start)).map(|(&start, _)| start);
        for start in before.into_iter().chain(inside).collect::<Vec<_>>() {
            let Some((end, value)) = self.0.remove(&start) else { continue };
            for rest in (Range { start, end }).minus(range) {
                self.0.insert(rest.start, (rest.end, value.shift(rest.start.0 - start.0)));
            }
        }
        out
    }

    /// Inserts a run, which replaces what is at `range`. Joins it with runs that it continues.
    pub fn insert(&mut self, range: Range, value: T) {
        self.remove(range);
        if range.is_empty() {
            return;
        }
        let (mut whole, mut first) = (range, value);
        if let Some((&start, &(end, before))) = self.0.range(..range.start).next_back()
            && end == range.start
            && before.shift(end.0 - start.0) == value
        {
            (whole.start, first) = (start, before);
        }
        if let Some(&(end, behind)) = self.0.get(&range.end)
            && value.shift(range.len()) == behind
        {
            self.0.remove(&range.end);
            whole.end = end;
        }
        self.0.insert(whole.start, (whole.end, first));
    }

    /// Changes the values of the pieces inside `range`.
    pub fn change(&mut self, range: Range, mut how: impl FnMut(&mut T)) {
        for (part, mut value) in self.remove(range) {
            how(&mut value);
            self.insert(part, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shift for u64 {
        fn shift(self, bytes: u64) -> u64 {
            self + bytes
        }
    }

    fn r(start: u64, end: u64) -> Range {
        Range { start: Addr(start), end: Addr(end) }
    }

    #[test]
    fn pieces_of_a_run_keep_their_values() {
        let mut runs = Runs::default();
        runs.insert(r(10, 50), 10_u64);
        runs.insert(r(20, 30), 120);
        assert_eq!(runs.all().collect::<Vec<_>>(), vec![(r(10, 20), 10), (r(20, 30), 120), (r(30, 50), 30)]);
        assert_eq!(runs.within(r(25, 35)), vec![(r(25, 30), 125), (r(30, 35), 30)]);
        assert_eq!(runs.remove(r(0, 45)), vec![(r(10, 20), 10), (r(20, 30), 120), (r(30, 45), 30)]);
        assert_eq!(runs.all().collect::<Vec<_>>(), vec![(r(45, 50), 45)]);
        assert!(runs.cover(r(46, 50)) && !runs.cover(r(44, 50)) && !runs.cover(r(46, 51)));
    }

    #[test]
    fn runs_that_continue_each_other_are_one() {
        let mut runs = Runs::default();
        runs.insert(r(10, 20), 10_u64);
        runs.insert(r(30, 40), 30);
        runs.insert(r(20, 30), 20);
        assert_eq!(runs.all().collect::<Vec<_>>(), vec![(r(10, 40), 10)]);
        runs.change(r(15, 25), |_| ());
        assert_eq!(runs.all().collect::<Vec<_>>(), vec![(r(10, 40), 10)]);
        runs.insert(r(40, 50), 41);
        assert_eq!(runs.all().collect::<Vec<_>>(), vec![(r(10, 40), 10), (r(40, 50), 41)]);
    }
}
