// SPDX-License-Identifier: Apache-2.0
//! When the zeros on the huge pages of a process are given back: while memory is short, and after a pause.

use super::pressure::Pressures;
use hugelift_core::pressure::Pressure;
use hugelift_core::worth::RATIO;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process whose zeros were given back has its next turn after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// After each turn that frees nothing it is left alone twice as long, up to this.
const AGAIN_AT_MOST: Duration = Duration::from_secs(600);
/// The CPU time of a turn. The rest follows in the next one.
pub(super) const TURN: Duration = Duration::from_secs(1);

/// When the zeros of the processes are given back.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    pressures: Pressures,
    turns: BTreeMap<u32, Turns>,
}

#[derive(Debug)]
struct Turns {
    /// When the process was started.
    start: u64,
    next: Instant,
    pause: Duration,
}

impl Zeros {
    /// Reads how short memory is for these processes. Returns those whose turn it is, and how short memory is.
    pub(super) fn due(&mut self, pids: &BTreeSet<u32>) -> Vec<(u32, Pressure)> {
        self.pressures.read(pids);
        self.turns.retain(|pid, _| pids.contains(pid));
        let now = Instant::now();
        let is_due = |pid: &u32| self.turns.get(pid).is_none_or(|turns| turns.next <= now);
        pids.iter()
            .filter(|pid| is_due(pid))
            .filter_map(|pid| Some((*pid, self.pressures.of(*pid)?)))
            .collect()
    }

    /// Returns whether memory is short for a process: nothing of it is collapsed then.
    pub(super) fn is_short(&self, pid: u32) -> bool {
        self.pressures.of(pid).is_some()
    }

    /// Takes account of a turn that has freed so many bytes, with this CPU time. The next one is so far away that all take a small
    /// part of a CPU, also if the process fills its memory with zeros again and again.
    pub(super) fn had(&mut self, pid: u32, start: u64, freed: u64, spent: Duration) {
        let (next, pause) = (Instant::now(), AGAIN / 2);
        let turns = self.turns.entry(pid).or_insert(Turns { start, next, pause });
        if turns.start != start {
            *turns = Turns { start, next, pause };
        }
        turns.pause = if freed > 0 { AGAIN } else { (turns.pause * 2).min(AGAIN_AT_MOST) };
        turns.next = Instant::now() + turns.pause.max(spent * RATIO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_4_a_process_that_wastes_nothing_is_left_alone_longer_each_time() {
        let mut zeros = Zeros::default();
        for (freed, pause) in [(0, 10), (0, 20), (0, 40), (1, 10), (0, 20)] {
            zeros.had(7, 1, freed, Duration::ZERO);
            assert_eq!(zeros.turns[&7].pause, Duration::from_secs(pause));
        }
        zeros.had(7, 1, 1, Duration::from_secs(1));
        assert!(zeros.turns[&7].next > Instant::now() + Duration::from_secs(40));
        // Another process has its id.
        zeros.had(7, 2, 0, Duration::ZERO);
        assert_eq!(zeros.turns[&7].pause, AGAIN);
        assert_eq!((zeros.due(&BTreeSet::new()), zeros.turns.len()), (Vec::new(), 0));
    }
}
