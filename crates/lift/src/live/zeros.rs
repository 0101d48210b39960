// SPDX-License-Identifier: Apache-2.0
//! When the zeros on the huge pages of a process are given back: while memory is short, and after a pause.

use super::pressure::Pressures;
use hugelift_core::addr::Addr;
use hugelift_core::pressure::Pressure;
use hugelift_core::worth::RATIO;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process whose zeros were given back has its next turn after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// After each turn that frees nothing it is left alone twice as long, up to this.
const AGAIN_AT_MOST: Duration = Duration::from_secs(600);
/// The time of a turn. The next one goes on where it has ended.
pub(super) const TURN: Duration = Duration::from_secs(1);

/// When the zeros of the processes are given back.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    pressures: Pressures,
    turns: BTreeMap<u32, Turns>,
    /// The next turn of any process is not before this time.
    free: Option<Instant>,
}

#[derive(Debug)]
struct Turns {
    /// When the process was started.
    start: u64,
    next: Instant,
    pause: Duration,
    /// The address at which the next turn begins.
    from: Addr,
}

impl Zeros {
    /// Reads how short memory is for these processes. Returns one whose turn it is, how short memory is, and where its turn begins.
    pub(super) fn due(&mut self, pids: &BTreeSet<u32>) -> Option<(u32, Pressure, Addr)> {
        self.pressures.read(pids);
        self.turns.retain(|pid, _| pids.contains(pid));
        let now = Instant::now();
        if self.free.is_some_and(|free| now < free) {
            return None;
        }
        let is_due = |pid: &u32| self.turns.get(pid).is_none_or(|turns| turns.next <= now);
        let mut due = pids.iter().filter(|pid| is_due(pid));
        due.find_map(|pid| {
            let from = self.turns.get(pid).map_or_else(Addr::default, |turns| turns.from);
            Some((*pid, self.pressures.of(*pid)?, from))
        })
    }

    /// Returns whether memory is short for a process: nothing of it is collapsed then.
    pub(super) fn is_short(&self, pid: u32) -> bool {
        self.pressures.is_short_now(pid)
    }

    /// Takes account of a turn that has freed so many bytes in this time, and has ended at `from`, if there was more. All turns
    /// together take a small part of a CPU.
    pub(super) fn had(&mut self, pid: u32, start: u64, freed: u64, spent: Duration, from: Option<Addr>) {
        let now = Instant::now();
        self.free = Some(now + spent * RATIO);
        let last = self.turns.get(&pid).filter(|turns| turns.start == start);
        let pause = match last {
            Some(turns) if freed == 0 && from.is_none() => (turns.pause * 2).min(AGAIN_AT_MOST),
            _ => AGAIN,
        };
        let turns = Turns { start, next: now + pause, pause, from: from.unwrap_or_default() };
        self.turns.insert(pid, turns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_4_a_process_that_wastes_nothing_is_left_alone_longer_each_time() {
        let mut zeros = Zeros::default();
        for (freed, pause) in [(0, 10), (0, 20), (0, 40), (1, 10), (0, 20)] {
            zeros.had(7, 1, freed, Duration::ZERO, None);
            assert_eq!(zeros.turns[&7].pause, Duration::from_secs(pause));
        }
        // One that has more goes on there, and as soon as the others allow.
        let from = Addr(5 << 21);
        zeros.had(7, 1, 0, Duration::from_secs(1), Some(from));
        assert_eq!((zeros.turns[&7].pause, zeros.turns[&7].from), (AGAIN, from));
        assert!(zeros.free.is_some_and(|free| free > Instant::now() + Duration::from_secs(40)));
        // Another process has its id.
        zeros.had(7, 2, 0, Duration::ZERO, None);
        assert_eq!((zeros.turns[&7].pause, zeros.turns[&7].from), (AGAIN, Addr(0)));
        assert_eq!((zeros.due(&BTreeSet::new()), zeros.turns.len()), (None, 0));
    }
}
