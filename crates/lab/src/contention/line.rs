// SPDX-License-Identifier: Apache-2.0
//! A cache line that cores pass to each other.

use super::costs::Costs;
use std::collections::VecDeque;

/// A cache line: which cores have a valid copy, and the requests on their way to it.
#[derive(Clone)]
pub(super) struct Line {
    has: Vec<bool>,
    /// How many cores have a valid copy.
    shared: usize,
    /// The next moves of the line, in the order of time: when, to which core, and whether that core writes to it.
    leaves: VecDeque<(f64, usize, bool)>,
    /// When the last transfer ends, and at which core.
    free: f64,
    last: usize,
}

impl Line {
    pub fn new(cores: usize) -> Line {
        Line { has: vec![false; cores], shared: 0, leaves: VecDeque::new(), free: 0.0, last: 0 }
    }

    /// Gives the core a copy, the only one if it writes.
    fn give(&mut self, core: usize, write: bool) {
        if write {
            self.has.fill(false);
            self.shared = 0;
        }
        self.shared += usize::from(!self.has[core]);
        self.has[core] = true;
    }

    /// Reads the line or makes an atomic operation on it; returns when that is done.
    pub fn access(&mut self, now: f64, core: usize, write: bool, costs: &Costs) -> f64 {
        while let Some(&(leaves, to, writes)) = self.leaves.front()
            && leaves <= now
        {
            self.leaves.pop_front();
            self.give(to, writes);
        }
        let takes = if write { costs.atomic } else { 0.0 };
        // Before its first use no core has the line, and no transfer is needed.
        let unused = self.shared == 0 && self.leaves.is_empty();
        if unused || (self.has[core] && (!write || self.shared == 1)) {
            self.give(core, write);
            if unused {
                self.last = core;
            }
            return now + takes;
        }
        let time = if self.has[core] {
            // The others drop their copies. This takes as long as a transfer from the farthest of them.
            let others = (0..self.has.len()).filter(|&other| self.has[other] && other != core);
            others.map(|other| costs.transfer.nanoseconds(other, core)).fold(0.0, f64::max)
        } else {
            costs.transfer.nanoseconds(self.last, core)
        };
        self.free = self.free.max(now) + time;
        self.last = core;
        self.leaves.push_back((self.free - time / 2.0, core, write));
        self.free + takes
    }
}
