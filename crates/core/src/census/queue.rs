// SPDX-License-Identifier: Apache-2.0
//! The processes in the order in which they are read.
//!
//! Within a class, processes are read in the order of the times at which they are due. Each class has a delay, which is added
//! to that time. Of the processes that are due, the one with the earliest sum is read first. So a class with a long delay lets
//! others pass, but its processes are read too.

use std::collections::BTreeSet;
use std::time::Duration;

/// Why a process is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// It was started a moment ago.
    Started,
    /// It is large.
    Large,
    /// A scan has found it. It was never read.
    Found,
    /// It is small, and may have grown.
    Small,
}

/// How many classes there are.
const CLASSES: usize = 4;

impl Class {
    /// Returns how long it lets others pass.
    fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Class::Started => 0,
            Class::Large => 2,
            Class::Found => 60,
            Class::Small => 120,
        })
    }
}

/// When a process is read next, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    pub class: Class,
    pub due: Duration,
}

/// The turns of all processes. Each process has one.
#[derive(Default, Debug)]
pub(super) struct Queue([BTreeSet<(Duration, u32)>; CLASSES]);

impl Queue {
    /// Gives a process a turn.
    pub(super) fn insert(&mut self, pid: u32, turn: Turn) {
        self.0[turn.class as usize].insert((turn.due, pid));
    }

    /// Takes the turn of a process away.
    pub(super) fn remove(&mut self, pid: u32, turn: Turn) {
        self.0[turn.class as usize].remove(&(turn.due, pid));
    }

    /// Returns the process among the due ones that is to be read first, with its turn.
    pub(super) fn first(&self, now: Duration) -> Option<(u32, Turn)> {
        let due = self.heads().filter(|(_, turn)| turn.due <= now);
        due.min_by_key(|(_, turn)| turn.due + turn.class.patience())
    }

    /// Returns when the first process is due.
    pub(super) fn earliest(&self) -> Option<Duration> {
        self.heads().map(|(_, turn)| turn.due).min()
    }

    /// Returns how many turns there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(BTreeSet::len).sum()
    }

    fn heads(&self) -> impl Iterator<Item = (u32, Turn)> {
        let classes = [Class::Started, Class::Large, Class::Found, Class::Small];
        classes.into_iter().filter_map(|class| {
            let (due, pid) = *self.0[class as usize].first()?;
            Some((pid, Turn { class, due }))
        })
    }
}

/// Returns the next time after `now` that is the turn of a process which is read each `period`. The ids that follow each
/// other are spread evenly over the period.
pub(super) fn spread(pid: u32, period: Duration, now: Duration) -> Duration {
    // The golden ratio in 32 bits.
    const RATIO: u32 = 0x9e37_79b9;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
    let (period, now) = (nanos(period).max(1), nanos(now));
    let phase = ((u128::from(period) * u128::from(pid.wrapping_mul(RATIO))) >> 32) as u64;
    // A whole period more keeps the difference above zero.
    let since = (now + period - phase) % period;
    Duration::from_nanos(now + period - since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_turns_are_spread_evenly() {
        let (period, now) = (Duration::from_secs(60), Duration::from_millis(123_456));
        let mut of_second = [0; 60];
        for pid in 1000..4000 {
            let next = spread(pid, period, now);
            assert!(next > now && next <= now + period, "{pid}: {next:?}");
            assert_eq!(spread(pid, period, next), next + period, "{pid}");
            of_second[(next - now).as_millis().div_ceil(1000) as usize - 1] += 1;
        }
        assert!(of_second.iter().all(|&each| (40..=60).contains(&each)), "{of_second:?}");
    }

    #[test]
    fn issue_33_who_has_waited_too_long_is_read_before_a_new_one() {
        let at = Duration::from_secs;
        let mut queue = Queue::default();
        let small = Turn { class: Class::Small, due: at(10) };
        queue.insert(1, small);
        queue.insert(2, Turn { class: Class::Started, due: at(129) });
        let first = |queue: &Queue, now| queue.first(at(now)).map(|(pid, _)| pid);
        assert_eq!([9, 10, 129].map(|now| first(&queue, now)), [None, Some(1), Some(2)]);
        queue.insert(3, Turn { class: Class::Started, due: at(131) });
        queue.remove(2, Turn { class: Class::Started, due: at(129) });
        assert_eq!((first(&queue, 131), queue.earliest()), (Some(1), Some(at(10))));
        queue.remove(1, small);
        assert_eq!((first(&queue, 131), queue.earliest()), (Some(3), Some(at(131))));
    }
}
